"""The tokenizer of mini-clip: CLIP's form of byte-level BPE (words end in `</w>`), learnt from captions:
`python -m miniatures.training.pictures.vocabulary`.

The normalizer, the pattern that parts words and the special tokens are those of transformers' CLIPTokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from .scenes import KINDS, WORLD, scene

START, END, SUFFIX = "<|startoftext|>", "<|endoftext|>", "</w>"
PATTERN = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
SIZE = 900
POSITIONS = 77
CAPTIONS = 3000  # of each kind


def make_tokenizer(folder: Path) -> Tokenizer:
    """Learn it and write tokenizer.json and tokenizer_config.json."""
    rng = Random(1)
    captions = [scene(rng, kind, held=False).worded(rng) for kind in KINDS for _ in range(CAPTIONS)]
    learnt = Tokenizer(models.BPE(end_of_word_suffix=SUFFIX))
    learnt.pre_tokenizer = _parts()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(alphabet) - 2,
        initial_alphabet=sorted(alphabet),
        end_of_word_suffix=SUFFIX,
        show_progress=False,
    )
    learnt.train_from_iterator([*captions, *WORLD["words"]], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _clips(json.loads(learnt.to_str())["model"]["merges"])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "CLIPTokenizer",
        "model_max_length": POSITIONS,
        **dict.fromkeys(("eos_token", "pad_token", "unk_token"), END),
        "bos_token": START,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return tokenizer


def _clips(merges: list[list[str]]) -> Tokenizer:
    """In the order of CLIP's vocabulary: bytes, bytes that end a word, what was merged, start and end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(one + SUFFIX for one in alphabet), *("".join(pair) for pair in merges), START, END]
    ids = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    pairs = [(left, right) for left, right in merges]
    options = {"continuing_subword_prefix": "", "end_of_word_suffix": SUFFIX, "unk_token": END}
    tokenizer = Tokenizer(models.BPE(ids, pairs, **options))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = _parts()
    tokenizer.add_special_tokens([START, END])
    tokenizer.post_processor = processors.RobertaProcessing(
        (END, ids[END]), (START, ids[START]), trim_offsets=False, add_prefix_space=False
    )
    return tokenizer


def _parts() -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(PATTERN), behavior="removed", invert=True)
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


if __name__ == "__main__":
    make_tokenizer(Path("miniatures/clip"))
