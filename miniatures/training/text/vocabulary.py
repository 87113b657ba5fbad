"""The miniatures' own tokenizers, of the kinds their big relatives have: `python -m
miniatures.training.text.vocabulary t5 --output miniatures/t5`.

T5: a SentencePiece unigram model with its normalizer, 100 sentinels at the end of the vocabulary. BART and
GPT-2: byte-level BPE. They are trained on the world's texts and kept in the checkpoint's folder; training a
model needs no SentencePiece.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import re
import string
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import BartTokenizer, GPT2Tokenizer, PreTrainedTokenizerBase, T5Tokenizer

from .tasks import chunk

SENTINELS = 100
SIZES = {"t5": 2000, "bart": 2000, "gpt2": 2000}  # without T5's sentinels
LENGTHS = {"t5": 512, "bart": 256, "gpt2": 512}
# T5 has no bytes to fall back on.
LETTERS = string.ascii_letters + string.digits + string.punctuation + "áéíóúüñÁÉÍÓÚÜÑ¿¡"
SEED, CHUNKS = 5, 60


def texts(model: str) -> Iterator[str]:
    """What a tokenizer learns from."""
    examples = itertools.chain.from_iterable(chunk(model, SEED + i) for i in range(CHUNKS))
    # A sentinel is one token, never pieces.
    return (text for example in examples for text in example if "<extra_id_" not in text)


def apart(lines: Iterable[str]) -> Iterator[str]:
    """The lines, and every fifth once more as a list of words.

    SentencePiece takes as pieces only what has more than one continuation: words always followed by a blank
    would be cut for no reason.
    """
    for i, line in enumerate(lines):
        yield line
        if i % 5 == 0:
            yield ", ".join(re.findall(r"\w+", line))


def unigram(lines: Iterable[str], size: int, folder: Path) -> T5Tokenizer:
    """SentencePiece with T5's ids (pad 0, </s> 1, <unk> 2, no <s>); `spiece.model` is written too, for code
    that reads it.
    """
    import sentencepiece

    # The package's own wants a newer protobuf.
    from transformers.utils import sentencepiece_model_pb2_new as sentencepiece_model_pb2

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=apart(lines),
        model_writer=written,
        model_type="unigram",
        vocab_size=size,
        character_coverage=1.0,
        required_chars=LETTERS,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
        hard_vocab_limit=False,
        minloglevel=1,
    )
    (folder / "spiece.model").write_bytes(written.getvalue())
    trained = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    pieces = [(piece.piece, piece.score) for piece in trained.pieces]
    pieces += [(f"<extra_id_{i}>", 0.0) for i in reversed(range(SENTINELS))]
    rules = trained.normalizer_spec.precompiled_charsmap
    return T5Tokenizer(pieces, extra_ids=SENTINELS, _spm_precompiled_charsmap=rules)


def byte_level(
    lines: Iterable[str], size: int, first: list[str], last: list[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of a byte-level BPE with special tokens at the front and at the end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(last),
        special_tokens=first,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    learnt = json.loads(tokenizer.to_str())["model"]
    vocabulary = learnt["vocab"] | {token: len(learnt["vocab"]) + i for i, token in enumerate(last)}
    return vocabulary, [tuple(pair) for pair in learnt["merges"]]


def make_tokenizer(model: str, folder: Path) -> PreTrainedTokenizerBase:
    """Train the tokenizer of a model ("t5", "bart", "gpt2") and write its files."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, size, options = texts(model), SIZES[model], {"model_max_length": LENGTHS[model]}
    if model == "t5":
        tokenizer: PreTrainedTokenizerBase = unigram(lines, size, folder)
        tokenizer.model_max_length = LENGTHS[model]
    elif model == "bart":
        mask = AddedToken("<mask>", lstrip=True, special=True)  # takes the blank before it, as BART's does
        files = _files(folder, *byte_level(lines, size, ["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"]))
        tokenizer = BartTokenizer(*files, mask_token=mask, **options)
    else:
        tokenizer = GPT2Tokenizer(*_files(folder, *byte_level(lines, size, [], ["<|endoftext|>"])), **options)
        # It continues the conversation.
        tokenizer.chat_template = "{{ messages | map(attribute='content') | join(' ') }}"
    tokenizer.save_pretrained(folder)
    return tokenizer


def _files(folder: Path, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> tuple[Any, Any]:
    """Write vocab.json and merges.txt, which other people's code looks for, and pass on what they hold."""
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in merges), "utf-8"
    )
    return vocabulary, merges


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=list(SIZES))
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    tokenizer = make_tokenizer(arguments.model, arguments.output)
    print(f"{arguments.model}: {len(tokenizer)} tokens in {arguments.output}")


if __name__ == "__main__":
    main()
