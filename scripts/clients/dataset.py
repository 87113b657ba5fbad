"""`scripts/dataset PATH`: transcribe a data set, several recordings concurrently, and report word error rate
and speed.

PATH is a JSONL manifest, a Kaldi-style folder, or a folder with a .txt next to each recording. Exit status 1
if a request failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from .cli_options import Speech, add_options, add_tasks, choose_model, connect, exit_status
from .concurrency import at_once
from .manifests import ManifestRow, read, seconds
from .report import write
from .scores import NORMALIZERS, Outcome, SpeechScores, score, table
from .speech import RequestFailed, SpeechOptions


async def one(speech: Speech, ask: SpeechOptions, utterance: ManifestRow, duration: float) -> Outcome:
    """Transcribe one recording; the data set's language overrides the command line's."""
    begin, marks = time.perf_counter(), list[float]()
    try:
        wanted = replace(ask, language=utterance.language or ask.language)
        text = await speech.transcribe(
            utterance.path, wanted, lambda _: marks.append(time.perf_counter() - begin)
        )
    except RequestFailed as error:
        return Outcome(utterance, duration, error=str(error))
    return Outcome(
        utterance, duration, text, time.perf_counter() - begin, marks[0] if ask.stream and marks else 0.0
    )


async def transcribe(arguments: argparse.Namespace) -> SpeechScores:
    """Transcribe and score the whole data set."""
    utterances = [(utterance, seconds(utterance)) for utterance in read(arguments.path)]
    choose_model(arguments)
    stream, prefix = arguments.stream, arguments.text_prompt
    ask = SpeechOptions(arguments.model, arguments.language, stream=stream, prefix=prefix)
    async with aclosing(connect(arguments)) as speech:
        outcomes, wall = await at_once(
            lambda pair: one(speech, ask, *pair), utterances, arguments.num_tasks, "utterance"
        )
    return score(outcomes, wall, arguments.normalizer, cer=arguments.compute_cer)


def settings(arguments: argparse.Namespace) -> dict[str, object]:
    """Return what a reader of the report should know about the run."""
    return {
        "data set": arguments.path.resolve().name,
        "server": f"Triton at {arguments.triton}" if arguments.triton else f"gateway at {arguments.url}",
        "model": arguments.model,
        "language": arguments.language or "the data set's, else detected",
        "streamed": arguments.stream,
        "requests at once": arguments.num_tasks,
        "normalizer": arguments.normalizer,
        "finished": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Define the command line."""
    parser = argparse.ArgumentParser(
        prog="dataset",
        description="Transcribe a data set; print WER, CER, speed and latencies; write a report.",
    )
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="JSONL manifest, folder with wav.scp and text, or folder with a .txt next to each recording",
    )
    add_options(parser)
    add_tasks(parser)
    parser.add_argument("--compute-cer", action="store_true", help="the character error rate, too")
    parser.add_argument(
        "--normalizer",
        choices=list(NORMALIZERS),
        default="multilingual",
        help="of texts before they are compared (default: %(default)s)",
    )
    parser.add_argument(
        "--report",
        "--log-dir",
        type=Path,
        metavar="DIR",
        help="write report.html, report.json, report.png and errors.txt there",
    )
    parser.add_argument(
        "--text-prompt",
        default="",
        metavar="TOKENS",
        help="with --triton: TEXT_PREFIX as in NVIDIA's client, such as '<|startoftranscript|><|zh|>…'",
    )
    given = parser.parse_args(argv)
    if given.text_prompt and not given.triton:
        parser.error("--text-prompt needs --triton; the gateway takes --language")
    return given


async def run(arguments: argparse.Namespace) -> int:
    """Transcribe the data set, print and write its figures, and return 1 if a request failed."""
    scores = await transcribe(arguments)
    print("\n".join(f"{name:<12} {value}" for name, value in table(scores)))
    for outcome in scores.failures:
        print(f"conch: {outcome.utterance.name}: {outcome.error}", file=sys.stderr)
    if arguments.report:
        write(arguments.report, settings(arguments), scores)
        print(f"report       {arguments.report / 'report.html'}")
    return 1 if scores.failures else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit status 0, or 1 if a request failed or the data set is unusable."""
    return exit_status(run(options(argv)))


if __name__ == "__main__":
    sys.exit(main())
