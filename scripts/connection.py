"""Options of the command line that say where a server is and what is asked of it."""

from __future__ import annotations

import argparse
import os

from .speech_client import Gateway, Speech
from .triton_client import Triton


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that both commands share."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", default="http://127.0.0.1:8080", help="the gateway (default: %(default)s)")
    where.add_argument("--triton", metavar="HOST:PORT", help="Triton's gRPC port instead, for recordings of up to 30 s")
    parser.add_argument("--model", default="mini-whisper", help="default: %(default)s")
    parser.add_argument("--language", default="", help="ISO 639-1 code such as en; without it the language is detected")
    parser.add_argument("--stream", action="store_true", help="ask for the words as they are found")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", ""), help="default: $OPENAI_API_KEY", metavar="KEY")


def connect(arguments: argparse.Namespace, *, progress: bool = False) -> Speech:
    """The way that the options name; call it inside the event loop that will use it."""
    if arguments.triton:
        return Triton(arguments.triton, arguments.api_key)
    return Gateway(arguments.url, arguments.api_key, progress=progress)
