"""`scripts/transcribe FILE…`: transcribe recordings of any format.

The transcript goes to standard output, everything else to standard error. Exit status 1 if a file has no
transcript.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from .cli_options import add_options, choose_model, connect, exit_status
from .speech import RequestFailed, SpeechOptions

FORMATS = ("text", "json", "srt", "vtt", "verbose_json")


async def transcribe(arguments: argparse.Namespace) -> int:
    """Transcribe all files one after another, and return 1 if one failed.

    Raises:
        RequestFailed: no server, or no model for it.
    """
    choose_model(arguments)
    task = "translate" if arguments.translate else "transcribe"
    ask = SpeechOptions(
        arguments.model, arguments.language, arguments.prompt, task, arguments.format, arguments.stream
    )
    status = 0
    async with aclosing(connect(arguments, progress=True)) as speech:
        for path in arguments.files:
            try:
                await speech.transcribe(path, ask, lambda piece: print(piece, end="", flush=True))
                print(flush=True)
            except RequestFailed as error:
                status = 1
                print(f"conch: {path}: {error}", file=sys.stderr)
    return status


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Define the command line."""
    parser = argparse.ArgumentParser(prog="transcribe", description="Transcribe recordings of any format.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    add_options(parser)
    parser.add_argument("--prompt", default="", help="text that goes before: names, spelling, style")
    parser.add_argument("--translate", action="store_true", help="into English")
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: %(default)s")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit status 0, or 1 if a file has no transcript."""
    return exit_status(transcribe(options(argv)))


if __name__ == "__main__":
    sys.exit(main())
