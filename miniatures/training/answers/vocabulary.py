"""The tokenizers of mini-llava and mini-blip2: byte-level BPE learnt from questions and answers:
`python -m miniatures.training.answers.vocabulary llava --output miniatures/llava`.

Digits are tokens of their own, so that a number is read digit by digit. LLaMA's special tokens and those of
OPT differ; so do the chat templates, of which only LLaVA has one.
"""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from miniatures.training.pictures.scenes import WORLD

from .pictures import ALL, drawn
from .questions import questions, worded

SIZE = 1000
SCENES = 500  # of each kind
PLACEHOLDER = "<image>"
# Name, then: beginning, end, padding.
SPECIAL = {"llava": ("<s>", "</s>", "<pad>"), "blip2": ("</s>", "</s>", "<pad>")}
# As LLaVA 1.5's: messages of a user end before ASSISTANT, answers with the end of text.
TEMPLATE = (
    "{% macro text(content) %}{% if content is string %}{{ content }}{% else %}"
    "{% for part in content if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}{% endif %}"
    "{% endmacro %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ text(message['content']) + ' ' }}"
    "{% elif message['role'] == 'user' %}{{ 'USER: ' }}"
    "{% if message['content'] is not string %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>\n' }}{% endfor %}{% endif %}"
    "{{ text(message['content']) + ' ' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'ASSISTANT: ' + text(message['content']) + eos_token }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


def material() -> list[str]:
    """What it is learnt from."""
    rng = Random(1)
    words = WORLD["words"]
    texts = ["USER: ASSISTANT:", "Question: Answer:", *words, *(f" {word}" for word in words)]
    for kind in ALL:
        for _ in range(SCENES):
            one, _ = drawn(rng, kind, held=False)
            texts += [f"{worded(q.text, rng)} {q.answer}" for q in islice(questions(one, rng), 8)]
    return texts


def make_tokenizer(kind: str, folder: Path) -> Tokenizer:
    """Learn it and write tokenizer.json, tokenizer_config.json and LLaVA's chat template."""
    begin, end, pad = SPECIAL[kind]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [*dict.fromkeys((begin, end, pad, PLACEHOLDER))]
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(one, special=True, normalized=False) for one in special],
        show_progress=False,
    )
    tokenizer.train_from_iterator(material(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": begin,
        "eos_token": end,
        "pad_token": pad,
        "extra_special_tokens": {"image_token": PLACEHOLDER},
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    if kind == "llava":
        (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return tokenizer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=[*SPECIAL])
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    make_tokenizer(given.kind, given.output)
