"""`scripts/ask PICTURE… QUESTION`: print a model's answer about pictures, or without pictures about the text
alone.

The answer goes to standard output, everything else to standard error. Exit status 1 if there is none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from .cli_options import add_text_options, choose_model, connect_text, exit_status, positive
from .speech import RequestFailed
from .text import TextOptions, data_url


async def ask(arguments: argparse.Namespace) -> int:
    """Send the question, print the answer as it arrives, and return 0.

    Raises:
        RequestFailed: there is none.
    """
    choose_model(arguments)
    *pictures, question = arguments.asked
    try:
        urls = tuple(data_url(Path(picture)) for picture in pictures)
    except OSError as error:
        raise RequestFailed(f"{error.filename}: {error.strerror}; name a picture") from error
    except ValueError as error:
        raise RequestFailed(str(error)) from error
    wanted = TextOptions(
        arguments.model, arguments.max_tokens, arguments.temperature, (), arguments.stream, pictures=urls
    )
    async with aclosing(connect_text(arguments)) as server:
        await server.complete(question, wanted, lambda piece: print(piece, end="", flush=True))
    print(flush=True)
    return 0


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Define the command line."""
    parser = argparse.ArgumentParser(prog="ask", description="Ask a model about pictures.")
    parser.add_argument(
        "asked", nargs="+", metavar="PICTURE… QUESTION", help="files of pictures, and last what is asked"
    )
    add_text_options(parser, "pictures")
    parser.add_argument(
        "--max-tokens", type=positive, default=128, help="of the answer at most (default: %(default)s)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (default): the likeliest words")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit status 0, or 1 without an answer."""
    return exit_status(ask(options(argv)))


if __name__ == "__main__":
    sys.exit(main())
