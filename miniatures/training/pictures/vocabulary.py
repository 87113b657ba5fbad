"""The tokenizer of mini-clip: CLIP's form of byte-level BPE (words end in `</w>`), learnt from captions:
`python -m miniatures.training.pictures.vocabulary`.

How texts are normalized and cut into words, and the special tokens, are those of transformers' CLIPTokenizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPTokenizer

from .scenes import KINDS, WORLD, scene

START, END, SUFFIX = "<|startoftext|>", "<|endoftext|>", "</w>"
SIZE = 900
POSITIONS = 77
CAPTIONS = 3000  # of each kind


def make_tokenizer(folder: Path) -> Tokenizer:
    """Learn it and write tokenizer.json and tokenizer_config.json. Ids are in the order of CLIP's vocabulary:
    bytes, bytes that end a word, what was merged, start and end.
    """
    rng = Random(1)
    captions = [scene(rng, kind, held=False).worded(rng) for kind in KINDS for _ in range(CAPTIONS)]
    learnt = Tokenizer(models.BPE(end_of_word_suffix=SUFFIX))
    learnt.pre_tokenizer = CLIPTokenizer().backend_tokenizer.pre_tokenizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(alphabet) - 2,
        initial_alphabet=alphabet,
        end_of_word_suffix=SUFFIX,
        show_progress=False,
    )
    learnt.train_from_iterator([*captions, *WORLD["words"]], trainer)
    merges = [tuple(pair) for pair in json.loads(learnt.to_str())["model"]["merges"]]
    pieces = [*alphabet, *(one + SUFFIX for one in alphabet), *map("".join, merges), START, END]
    ids = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = CLIPTokenizer(ids, merges, model_max_length=POSITIONS)
    tokenizer.save_pretrained(folder)
    return tokenizer.backend_tokenizer


if __name__ == "__main__":
    make_tokenizer(Path("miniatures/clip"))
