"""What the command lines of clients share: options of the server and of what to request, and exit status."""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import sys
from collections.abc import Coroutine
from typing import Any

import httpx

from .manifests import BadManifest
from .speech import Gateway, RequestFailed, base, complaint, unreachable
from .text import Generate, OpenAi, Text
from .triton import TritonClient

Speech = Gateway | TritonClient


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that the speech commands share."""
    where = _add_shared(parser, "transcription")
    where.add_argument(
        "--triton", metavar="HOST:PORT", help="Triton's gRPC port instead, for recordings of up to 30 s"
    )
    parser.add_argument(
        "--language", default="", help="ISO 639-1 code such as en; without it the language is detected"
    )


def add_text_options(parser: argparse.ArgumentParser, ability: str = "completion") -> None:
    """Add the options that the text commands share; `ability` is what the model must be able to do."""
    where = _add_shared(parser, ability)
    where.add_argument(
        "--triton", metavar="URL", help="Triton's HTTP port instead, such as http://127.0.0.1:8000"
    )
    parser.add_argument(
        "--facade",
        choices=["ensemble", "tensorrt_llm_bls"],
        default="ensemble",
        help="of Triton's models (default: %(default)s)",
    )


def _add_shared(parser: argparse.ArgumentParser, ability: str) -> argparse._MutuallyExclusiveGroup:
    parser.set_defaults(ability=ability)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", default="http://127.0.0.1:8080", help="the gateway (default: %(default)s)")
    parser.add_argument("--model", default="", help="default: the first that is served and can do this")
    parser.add_argument("--stream", action="store_true", help="ask for the words as they are found")
    parser.add_argument(
        "--api-key",
        default=os.environ.get("OPENAI_API_KEY", ""),
        help="default: $OPENAI_API_KEY",
        metavar="KEY",
    )
    return where


def add_tasks(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of concurrent requests."""
    parser.add_argument(
        "--num-tasks", type=positive, default=8, help="requests at once (default: %(default)s)"
    )


def positive(text: str) -> int:
    """Parse a positive number for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small; it must be at least 1")
    return number


def choose_model(arguments: argparse.Namespace) -> None:
    """Replace a missing --model with the first served model that has the ability. Triton's own ports need
    none: their plain paths lead to the first model.

    Raises:
        RequestFailed: there is no answer, or no model can.
    """
    if arguments.model or arguments.triton:
        return
    url = base(arguments.url)
    headers = {"Authorization": f"Bearer {arguments.api_key}"} if arguments.api_key else {}
    trusted = ssl.create_default_context()
    with unreachable(url), httpx.Client(trust_env=False, verify=trusted, headers=headers) as client:
        answer = client.get(f"{url}/v1/models", timeout=60)
    if answer.status_code != 200:
        raise RequestFailed(complaint(answer))
    able = [row["id"] for row in answer.json()["data"] if arguments.ability in row.get("capabilities", ())]
    if not able:
        raise RequestFailed(
            f"{url} serves no model for {arguments.ability}; start it with one, or name --model"
        )
    arguments.model = able[0]
    if sys.stderr.isatty():
        print(f"conch: model {able[0]}", file=sys.stderr)


def connect(arguments: argparse.Namespace, *, progress: bool = False) -> Speech:
    """Connect as the options say; call it inside the event loop that will use it."""
    if arguments.triton:
        return TritonClient(arguments.triton, arguments.api_key)
    return Gateway(arguments.url, arguments.api_key, progress=progress)


def connect_text(arguments: argparse.Namespace) -> Text:
    """Connect to a text model as the options say."""
    if arguments.triton:
        return Text(arguments.triton, Generate(arguments.facade), arguments.api_key, "--triton")
    return Text(arguments.url, OpenAi(), arguments.api_key)


def exit_status(work: Coroutine[Any, Any, int]) -> int:
    """Run a command and return its exit status: 1, with one sentence, if it failed, and 130 after Ctrl-C."""
    try:
        return asyncio.run(work)
    except (BadManifest, RequestFailed, OSError) as error:
        print(f"conch: {str(error) or type(error).__name__}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
