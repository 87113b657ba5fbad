"""The two ways to a running Conch: its gateway in OpenAI's dialect over HTTP, and Triton's own gRPC."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx
import numpy as np
import tritonclient.grpc.aio as grpc
from httpx_sse import EventSource
from numpy.typing import NDArray
from tqdm import tqdm
from tqdm.utils import CallbackIOWrapper
from tritonclient.utils import InferenceServerException

from gateway.media import RATE, BadMedia, decode

SECONDS = 600.0
WINDOW = 30
Said = Callable[[str], None]


class RequestFailed(Exception):
    """No transcript; the message says why, in the server's words where it had any."""


@dataclass(frozen=True)
class Ask:
    """What is wanted. `language`: ISO 639-1 code, empty to have it detected; `form`: OpenAI's response_format."""

    model: str
    language: str = ""
    prompt: str = ""
    task: str = "transcribe"
    form: str = "text"
    stream: bool = False


class Speech(Protocol):
    """A way to a server."""

    async def transcribe(self, path: Path, ask: Ask, said: Said) -> str:
        """The whole answer; `said` gets it as it arrives: piece by piece if it is streamed, otherwise once.

        Raises:
            RequestFailed: there is none.
        """

    async def aclose(self) -> None:
        """Close connections."""


class Gateway:
    """/v1/audio/transcriptions and /v1/audio/translations. `progress`: show a bar while sending, if standard error is a terminal."""

    def __init__(self, url: str, key: str = "", *, progress: bool = False) -> None:
        self.url, self.progress = url.rstrip("/").removesuffix("/v1"), progress
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.client = httpx.AsyncClient(headers=headers, timeout=SECONDS, limits=httpx.Limits(max_connections=None))

    async def transcribe(self, path: Path, ask: Ask, said: Said) -> str:
        """See `Speech`."""
        try:
            with path.open("rb") as file, self._bar(path) as bar:
                files = {"file": (path.name, CallbackIOWrapper(bar.update, file, "read"))}
                route = f"{self.url}/v1/audio/{'translations' if ask.task == 'translate' else 'transcriptions'}"
                async with self.client.stream("POST", route, data=fields(ask), files=files) as response:
                    bar.close()  # the words that follow may go to the same terminal
                    return await answer(response, ask, said)
        except OSError as error:
            raise RequestFailed(f"{path} cannot be read ({error.strerror}); name an audio file") from error
        except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            raise RequestFailed(f"nothing answers at {self.url} ({error}); start Conch (make serve) or name its address with --url") from error
        except httpx.HTTPError as error:
            raise RequestFailed(f"{self.url} broke off ({str(error) or type(error).__name__}); send it again") from error

    def _bar(self, path: Path) -> Any:
        shown = None if self.progress else True  # None: tqdm looks whether there is a terminal
        return tqdm(total=path.stat().st_size, desc=f"sending {path.name}", unit="B", unit_scale=True, leave=False, disable=shown)

    async def aclose(self) -> None:
        """See `Speech`."""
        await self.client.aclose()


def fields(ask: Ask) -> dict[str, str]:
    """The form beside the file, without what was not asked for."""
    form = {"model": ask.model, "language": ask.language, "prompt": ask.prompt, "response_format": ask.form, "stream": "true" if ask.stream else ""}
    return {name: value for name, value in form.items() if value}


async def answer(response: httpx.Response, ask: Ask, said: Said) -> str:
    """The text of a response, streamed or whole."""
    if response.status_code == 200 and ask.stream:
        return await events(response, said)
    await response.aread()
    if response.status_code != 200:
        raise RequestFailed(complaint(response))
    text = response.text.strip("\n")
    said(text)
    return text


def complaint(response: httpx.Response) -> str:
    """The message of an error in OpenAI's shape; nginx's own pages have none."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{response.url} answered {response.status_code} {response.reason_phrase}; the logs of nginx and the gateway say why"


async def events(response: httpx.Response, said: Said) -> str:
    """Read transcript.text.delta events up to transcript.text.done (OpenAI's API reference, streaming transcriptions)."""
    heard, text = "", None
    async for event in EventSource(response).aiter_sse():
        data = event.json()
        if "error" in data:
            raise RequestFailed(str(data["error"]["message"]))
        if data["type"] == "transcript.text.delta":
            heard += data["delta"]
            said(data["delta"])
        elif data["type"] == "transcript.text.done":
            text = str(data["text"])
    if text is None:
        raise RequestFailed(f"the stream ended after {len(heard)} characters, before its last event; send it again")
    if text.startswith(heard) and text != heard:
        said(text.removeprefix(heard))
    return text


class Triton:
    """whisper_bls and whisper_bls_stream over gRPC; recordings are decoded here and must fit into one window of Whisper."""

    def __init__(self, address: str, key: str = "") -> None:
        self.address, self.key = address, key
        self.client = grpc.InferenceServerClient(address)

    async def transcribe(self, path: Path, ask: Ask, said: Said) -> str:
        """See `Speech`."""
        if ask.form != "text":
            raise RequestFailed(f"Triton answers bare text; ask for --format text, or the gateway (--url) for {ask.form}")
        inputs = tensors(await asyncio.to_thread(sound, path), text_prefix(ask))
        headers = {"x-model-id": ask.model, **({"authorization": f"Bearer {self.key}"} if self.key else {})}
        try:
            return await (self._stream if ask.stream else self._whole)(inputs, headers, said)
        except InferenceServerException as error:
            raise RequestFailed(f"Triton at {self.address}: {error.message()}") from error

    async def _whole(self, inputs: list[Any], headers: dict[str, str], said: Said) -> str:
        outputs = [grpc.InferRequestedOutput("TRANSCRIPTS")]
        text = words(await self.client.infer("whisper_bls", inputs, outputs=outputs, headers=headers, client_timeout=SECONDS))
        said(text)
        return text

    async def _stream(self, inputs: list[Any], headers: dict[str, str], said: Said) -> str:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": "whisper_bls_stream", "inputs": inputs, "outputs": [grpc.InferRequestedOutput("TRANSCRIPTS")]}

        heard, text = "", ""
        async for result, error in self.client.stream_infer(requests(), stream_timeout=SECONDS, headers=headers):
            if error:
                raise error
            text = words(result)
            whole = text.rstrip("\ufffd")  # a character may be cut between two tokens
            if whole.startswith(heard) and whole != heard:
                said(whole.removeprefix(heard))
                heard = whole
        return text

    async def aclose(self) -> None:
        """See `Speech`."""
        await self.client.close()


def sound(path: Path) -> NDArray[np.float32]:
    """float32 [samples] at 16 kHz, at most one window."""
    try:
        wave = decode(path, max_seconds=math.inf, time_limit=SECONDS)
    except BadMedia as error:
        raise RequestFailed(f"{path}: {error}") from error
    if len(wave) > WINDOW * RATE:
        raise RequestFailed(f"{path} lasts {len(wave) / RATE:.1f} s, Triton's whisper_bls takes {WINDOW} s; send it to the gateway (--url), which cuts it at pauses")
    return wave


def text_prefix(ask: Ask) -> str:
    """Whisper's decoder prompt; without a language the façade detects it."""
    context = f"<|startofprev|> {ask.prompt.strip()}" if ask.prompt.strip() else ""
    language = f"<|{ask.language}|>" if ask.language else ""
    return f"{context}<|startoftranscript|>{language}<|{ask.task}|><|notimestamps|>"


def tensors(wave: NDArray[np.float32], prefix: str) -> list[Any]:
    """Inputs of whisper_bls for one recording: WAV FP32 [1, samples], TEXT_PREFIX BYTES [1, 1]."""
    arrays = {"WAV": (wave[None], "FP32"), "TEXT_PREFIX": (np.array([[prefix.encode()]], object), "BYTES")}
    inputs = [grpc.InferInput(name, list(array.shape), kind) for name, (array, kind) in arrays.items()]
    for tensor, (array, _) in zip(inputs, arrays.values(), strict=True):
        tensor.set_data_from_numpy(array)
    return inputs


def words(result: Any) -> str:
    """TRANSCRIPTS of one recording."""
    return str(result.as_numpy("TRANSCRIPTS").ravel()[0].decode())


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
