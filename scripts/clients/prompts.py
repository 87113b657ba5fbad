"""`scripts/prompts FILE`: send the prompts of a JSONL file to a text model, several concurrently, and report
quality and speed of the answers.

One object per line: `prompt` (or `text`, or `question`), optionally `reference` (or `answer`), `id`, and
`image`, a picture or a list of them. Exit status 1 if a request failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path

from .answers_page import page
from .cli_options import add_tasks, add_text_options, choose_model, connect_text, exit_status, positive
from .concurrency import at_once
from .manifests import BadManifest, objects
from .speech import RequestFailed
from .text import Text, TextOptions, data_url
from .text_scores import Figures, Question, TextOutcome, figures, table

PROMPTS = ("prompt", "text", "question")


def read(path: Path) -> list[Question]:
    """Return all questions of a file in order.

    Raises:
        BadManifest: no such file, a line that cannot be read, or no prompt in it.
    """
    questions = []
    for number, row in objects(path):
        prompt = next((row[key] for key in PROMPTS if key in row), None)
        reference = row.get("reference", row.get("answer"))
        if not isinstance(prompt, str):
            raise BadManifest(f"{path}, line {number}: no prompt is given; add the key prompt with a text")
        if not isinstance(reference, str | None):
            raise BadManifest(
                f"{path}, line {number}: the reference is not a string; write the one right answer as a "
                "string, "
                "or omit it"
            )
        pictures = _pictures(path, number, row.get("image", []))
        questions.append(Question(str(row.get("id", number)), prompt, reference, pictures))
    if not questions:
        raise BadManifest(f"{path} contains no prompts; write one JSON object a line")
    return questions


def _pictures(path: Path, number: int, given: object) -> tuple[Path, ...]:
    """Resolve paths of pictures relative to the file, unless they are absolute."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadManifest(f"{path}, line {number}: image must be a file's path, or a list of them")
    found = tuple(path.parent / name for name in names)
    if missing := next((one for one in found if not one.is_file()), None):
        raise BadManifest(f"{path}, line {number}: {missing} does not exist; correct the path")
    return found


async def one(server: Text, ask: TextOptions, question: Question) -> TextOutcome:
    """Send one question."""
    try:
        ask = replace(ask, pictures=tuple(map(data_url, question.pictures)))
    except (OSError, ValueError) as error:
        return TextOutcome(question, error=str(error))
    begin, marks = time.perf_counter(), list[float]()
    try:
        answer = await server.complete(
            question.prompt, ask, lambda _: marks.append(time.perf_counter() - begin)
        )
    except RequestFailed as error:
        return TextOutcome(question, error=str(error))
    return TextOutcome(
        question,
        answer.text,
        answer.tokens,
        time.perf_counter() - begin,
        marks[0] if ask.stream and marks else 0.0,
    )


async def answered(arguments: argparse.Namespace) -> tuple[list[TextOutcome], Figures]:
    """Send the whole file."""
    questions = read(arguments.path)
    choose_model(arguments)
    ask = TextOptions(
        arguments.model, arguments.max_tokens, arguments.temperature, tuple(arguments.stop), arguments.stream
    )
    async with aclosing(connect_text(arguments)) as server:
        outcomes, wall = await at_once(
            lambda question: one(server, ask, question), questions, arguments.num_tasks, "question"
        )
    return outcomes, figures(outcomes, wall)


def write(path: Path, outcomes: Sequence[TextOutcome]) -> None:
    """Write answers as JSONL, in the order of the questions."""
    rows = []
    for outcome in outcomes:
        row = asdict(outcome)
        question = row.pop("question")
        rows.append(
            {
                "id": question["name"],
                "prompt": question["prompt"],
                "reference": question["reference"],
                **({"image": [str(one) for one in question["pictures"]]} if question["pictures"] else {}),
                "answer": row.pop("text"),
                **row,
            }
        )
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Define the command line."""
    parser = argparse.ArgumentParser(
        prog="prompts",
        description="Send a file of prompts to a text model; print ROUGE, exact answers, speed, latencies.",
    )
    parser.add_argument("path", type=Path, metavar="FILE", help="JSONL: prompt, optionally reference and id")
    add_text_options(parser)
    add_tasks(parser)
    parser.add_argument(
        "--max-tokens", type=positive, default=128, help="of an answer at most (default: %(default)s)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (default): the likeliest words")
    parser.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="WORDS",
        help="ends an answer before these words; may be repeated",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the answers there, as JSONL")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page of all answers (HTML)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser.parse_args(argv)


async def run(arguments: argparse.Namespace) -> int:
    """Send the file, print and write the answers' figures, and return 1 if a request failed."""
    outcomes, found = await answered(arguments)
    if arguments.output:
        write(arguments.output, outcomes)
    if arguments.report:
        arguments.report.write_text(page(arguments.model, outcomes, found), "utf-8")
    print(
        json.dumps(asdict(found))
        if arguments.json
        else "\n".join(f"{name:<12} {value}" for name, value in table(found))
    )
    for outcome in outcomes:
        if outcome.error:
            print(f"conch: {outcome.question.name}: {outcome.error}", file=sys.stderr)
    return 1 if found.failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit status 0, or 1 if a request failed or the file cannot be used."""
    return exit_status(run(options(argv)))


if __name__ == "__main__":
    sys.exit(main())
