"""Client for speech-to-text through the gateway's OpenAI API."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import EventSource
from tqdm import tqdm
from tqdm.utils import CallbackIOWrapper

SECONDS = 600.0
OnText = Callable[[str], None]


class RequestFailed(Exception):
    """There is no answer; the message gives the reason, in the server's words if it had any."""


@dataclass(frozen=True)
class SpeechOptions:
    """Options of a request. `language` is an ISO 639-1 code, empty for detection; `form` is OpenAI's
    response_format; `prefix` replaces, at Triton, what language, task and prompt would make.
    """

    model: str
    language: str = ""
    prompt: str = ""
    task: str = "transcribe"
    form: str = "text"
    stream: bool = False
    prefix: str = ""


def base(url: str) -> str:
    """Normalize an address as the OpenAI SDKs take it, or without its /v1."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def connections(key: str) -> httpx.AsyncClient:
    """Make a client that sends an API key, if any, and opens as many connections as it needs."""
    return httpx.AsyncClient(
        trust_env=False,
        verify=ssl.create_default_context(),  # the system's certificates, or those of SSL_CERT_FILE
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=SECONDS,
        limits=httpx.Limits(max_connections=None),
    )


class Gateway:
    """Calls /v1/audio/transcriptions and /v1/audio/translations. `progress` shows a bar during the upload, if
    standard error is a terminal.
    """

    def __init__(self, url: str, key: str = "", *, progress: bool = False) -> None:
        self.url, self.progress = base(url), progress
        self.client = connections(key)

    async def transcribe(self, path: Path, ask: SpeechOptions, on_text: OnText) -> str:
        """Return the whole answer; `on_text` is called as it arrives: piece by piece if streamed, otherwise
        once.

        Raises:
            RequestFailed: there is none.
        """
        try:
            with unreachable(self.url), path.open("rb") as file, self._bar(path) as bar:
                files = {"file": (path.name, CallbackIOWrapper(bar.update, file, "read"))}
                route = (
                    f"{self.url}/v1/audio/{'translations' if ask.task == 'translate' else 'transcriptions'}"
                )
                async with self.client.stream("POST", route, data=fields(ask), files=files) as response:
                    bar.close()  # the words that follow may go to the same terminal
                    return await answer(response, ask, on_text)
        except OSError as error:
            raise RequestFailed(f"the file cannot be read ({error.strerror}); name an audio file") from error

    def _bar(self, path: Path) -> Any:
        shown = None if self.progress else True  # None: tqdm looks whether there is a terminal
        size, what = path.stat().st_size, f"sending {path.name}"
        return tqdm(total=size, desc=what, unit="B", unit_scale=True, leave=False, disable=shown)

    async def aclose(self) -> None:
        await self.client.aclose()


def fields(ask: SpeechOptions) -> dict[str, str]:
    """Return the form fields besides the file, without empty ones."""
    # Events are JSON whatever is asked for, and servers may refuse to stream another format.
    written = "json" if ask.stream and ask.form == "text" else ask.form
    form = {
        "model": ask.model,
        "language": ask.language,
        "prompt": ask.prompt,
        "response_format": written,
        "stream": "true" if ask.stream else "",
    }
    return {name: value for name, value in form.items() if value}


async def answer(response: httpx.Response, ask: SpeechOptions, on_text: OnText) -> str:
    """Return the text of a response, streamed or whole."""
    if response.status_code == 200 and ask.stream:
        return await events(response, on_text)
    await response.aread()
    if response.status_code != 200:
        raise RequestFailed(complaint(response))
    text = response.text.strip("\n")
    on_text(text)
    return text


@contextmanager
def unreachable(url: str, option: str = "--url") -> Iterator[None]:
    """Turn connection failures into RequestFailed; `option` names the server's option."""
    try:
        yield
    except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise RequestFailed(
                f"the certificate of {url} is not trusted ({error}); name its chain with "
                "SSL_CERT_FILE=chain.pem"
            ) from error
        raise RequestFailed(
            f"no answer from {url} ({error}); start Conch (make serve) or name its address with {option}"
        ) from error
    except (httpx.HTTPError, json.JSONDecodeError) as error:
        raise RequestFailed(
            f"{url} closed the connection early ({str(error) or type(error).__name__}); send it again"
        ) from error


def complaint(response: httpx.Response) -> str:
    """Return the message of an error, from a body or from the single event of a stream; nginx's own pages
    have none.
    """
    try:
        problem = trouble(json.loads(response.text.strip().removeprefix("data: ")))
    except ValueError:
        problem = ""
    return (
        problem
        or f"{response.url} answered {response.status_code} {response.reason_phrase}; the logs of nginx and "
        "the server say why"
    )


def trouble(data: object) -> str:
    """Return the message of an error in OpenAI's or Triton's shape; empty for anything else."""
    match data:
        case {"error": {"message": message}} | {"error": message}:
            return str(message)
    return ""


async def events(response: httpx.Response, on_text: OnText) -> str:
    """Read transcript.text.delta events up to transcript.text.done (OpenAI's API reference, streaming
    transcriptions).
    """
    received, text = "", None
    async for event in EventSource(response).aiter_sse():
        match event.json():
            case {"error": _} as data:
                raise RequestFailed(trouble(data))
            case {"type": "transcript.text.delta", "delta": str(delta)}:
                received += delta
                on_text(delta)
            case {"type": "transcript.text.done", "text": str(final)}:
                text = final
    if text is None:
        raise RequestFailed(
            f"the stream ended after {len(received)} characters, before its last event; send it again"
        )
    if text.startswith(received) and text != received:
        on_text(text.removeprefix(received))
    return text
