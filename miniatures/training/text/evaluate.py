"""Held-out figures of the text miniatures, on a CPU: `python -m miniatures.training.text.evaluate t5`.
Nothing asked here was in any training text.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rouge_score.rouge_scorer import RougeScorer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from .grammar import is_paragraph, readings, sentences
from .tasks import TASKS, Pair, Task, condense, document, restore, restore_paragraph, summarize
from .world import Draw

SEED = 77
BATCH = 32
GOAL = 0.9  # of every figure that has one
LONG: tuple[Task, ...] = (summarize, condense, restore, restore_paragraph)


@dataclass
class Student:
    """A checkpoint in plain transformers, in float32, decoding as its generation config says."""

    name: str
    folder: Path
    model: PreTrainedModel = field(init=False)
    tokenizer: PreTrainedTokenizerBase = field(init=False)

    def __post_init__(self) -> None:
        loader = AutoModelForCausalLM if self.name == "gpt2" else AutoModelForSeq2SeqLM
        self.model = loader.from_pretrained(self.folder, dtype=torch.float32).eval()
        side = "left" if self.name == "gpt2" else "right"
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder, padding_side=side)
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token

    @torch.no_grad()
    def write(self, texts: list[str], **options: Any) -> list[str]:
        """What the model writes for each text: the answer, or for GPT-2 the text and how it goes on."""
        out = []
        for at in range(0, len(texts), BATCH):
            given = self.tokenizer(texts[at : at + BATCH], padding=True, return_tensors="pt")
            written = self.model.generate(**given, pad_token_id=self.tokenizer.pad_token_id, **options)
            out += [self.words(row.tolist()) for row in written]
        return out

    def words(self, ids: list[int]) -> str:
        """Text without special tokens, but with T5's sentinels."""
        dropped = {self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, self.tokenizer.bos_token_id}
        text = str(self.tokenizer.decode([token for token in ids if token not in dropped]))
        return text.replace("<extra_id", " <extra_id").strip()


def squeeze(text: str) -> str:
    """One blank between words."""
    return " ".join(text.split())


def asked(student: Student, task: Task, count: int) -> dict[str, float]:
    """Share of exact answers; for tasks with long answers the mean F of ROUGE-L too."""
    rng = random.Random(f"{SEED} {task.__name__}")
    pairs: list[Pair] = [task(rng, True) for _ in range(count)]
    answers = [squeeze(answer) for answer in student.write([pair.source for pair in pairs])]
    both = [(pair.target, answer) for pair, answer in zip(pairs, answers, strict=True)]
    exact = statistics.mean(target == answer for target, answer in both)
    figures = {f"{task.__name__}, exact": exact, "wanted": GOAL}
    if task in LONG:
        scorer = RougeScorer(["rougeL"])
        figures["ROUGE-L"] = statistics.mean(scorer.score(*one)["rougeL"].fmeasure for one in both)
    return figures


def prompts(count: int) -> list[str]:
    """The first words, two to half of them, of held-out sentences."""
    rng = random.Random(SEED)
    starts = [sentences(document(rng, True))[0].split(" ") for _ in range(count)]
    return [" ".join(words[: rng.randint(2, max(2, len(words) // 2))]) for words in starts]


def grammatical(student: Student, count: int, **options: Any) -> float:
    """Share of prompts that the model continues to a sentence of the world."""
    written = [sentences(text) for text in student.write(prompts(count), max_length=64, **options)]
    return statistics.mean(bool(text and readings(text[0])) for text in written)


def coherent(student: Student, count: int, **options: Any) -> float:
    """Share of first sentences of held-out paragraphs that the model continues to a whole paragraph: in
    order, names and pronouns right.
    """
    draw = Draw(random.Random(SEED))
    openings = [draw.paragraph(held=True).sentences[0].text for _ in range(count)]
    return statistics.mean(is_paragraph(text) for text in student.write(openings, max_length=200, **options))


def continued(student: Student, count: int) -> Iterator[dict[str, float]]:
    """GPT-2's figures, greedy and sampled as it is, without top-k or a temperature."""
    ways: dict[str, dict[str, Any]] = {
        "greedy": {"do_sample": False},
        "sampled": {"do_sample": True, "top_k": 0, "temperature": 1.0},
    }
    for way, options in ways.items():
        torch.manual_seed(SEED)
        yield {f"sentences grammatical, {way}": grammatical(student, count, **options), "wanted": GOAL}
        yield {f"paragraphs whole, {way}": coherent(student, count, **options)}


def figures(student: Student, count: int) -> Iterator[dict[str, float]]:
    """All figures of a model."""
    if student.name == "gpt2":
        yield from continued(student, count)
    for task in TASKS.get(student.name, {}):
        yield asked(student, task, count)


def main() -> None:
    """Print one JSON line per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=[*TASKS, "gpt2"])
    parser.add_argument("--checkpoint", type=Path, help="default: miniatures/MODEL")
    parser.add_argument("--count", type=int, default=200, help="questions for each figure")
    arguments = parser.parse_args()
    student = Student(arguments.model, arguments.checkpoint or Path("miniatures") / arguments.model)
    for row in figures(student, arguments.count):
        print(json.dumps({name: round(value, 4) for name, value in row.items()}), flush=True)


if __name__ == "__main__":
    main()
