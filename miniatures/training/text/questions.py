"""Held-out questions with their answers as JSONL: `python -m miniatures.training.text.questions t5 --count
200 > questions.jsonl`, for `scripts/prompts`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator

from .tasks import TASKS, Pair, Task, fill


def drawn(model: str, count: int, seed: int) -> Iterator[tuple[Task, Pair]]:
    """Tasks in the shares of the model's training; nothing of it was in any training text. Answers of `fill`
    are special tokens, which servers skip.
    """
    rng = random.Random(seed)
    tasks = {task: share for task, share in TASKS[model].items() if task is not fill}
    for task in rng.choices(list(tasks), list(tasks.values()), k=count):
        yield task, task(rng, True)


def main() -> None:
    """One question a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=list(TASKS))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=77)
    arguments = parser.parse_args()
    for i, (task, pair) in enumerate(drawn(arguments.model, arguments.count, arguments.seed)):
        row = {"id": f"{task.__name__} {i}", "prompt": pair.source, "reference": pair.target}
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
