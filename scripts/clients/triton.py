"""Client for speech-to-text directly at Triton: whisper_bls and whisper_bls_stream over gRPC, with the
tensors of NVIDIA's own client.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio as grpc
from grpc.aio import AioRpcError
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from conch.whisper import text_prefix
from speech.media import RATE, BadMedia, decode

from .speech import SECONDS, OnText, RequestFailed, SpeechOptions

WINDOW = 30


class TritonClient:
    """Calls a gRPC address. Recordings are decoded here and must fit into one window of Whisper."""

    def __init__(self, address: str, key: str = "") -> None:
        self.address, self.key = address, key
        self.client = grpc.InferenceServerClient(address)

    async def transcribe(self, path: Path, ask: SpeechOptions, on_text: OnText) -> str:
        """See Gateway."""
        if ask.form != "text":
            raise RequestFailed(
                f"Triton returns plain text only; use --format text, or the gateway (--url) for {ask.form}"
            )
        prefix = ask.prefix or text_prefix(ask.task, ask.language, ask.prompt, timestamps=False)
        inputs = tensors(await asyncio.to_thread(sound, path), prefix)
        headers = {"x-model-id": ask.model, **({"authorization": f"Bearer {self.key}"} if self.key else {})}
        try:
            return await (self._stream if ask.stream else self._whole)(inputs, headers, on_text)
        except (InferenceServerException, AioRpcError) as error:
            raise RequestFailed(f"Triton at {self.address}: {complaint(error)}") from error

    async def _whole(self, inputs: list[Any], headers: dict[str, str], on_text: OnText) -> str:
        outputs = [grpc.InferRequestedOutput("TRANSCRIPTS")]
        text = words(
            await self.client.infer(
                "whisper_bls", inputs, outputs=outputs, headers=headers, client_timeout=SECONDS
            )
        )
        on_text(text)
        return text

    async def _stream(self, inputs: list[Any], headers: dict[str, str], on_text: OnText) -> str:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {
                "model_name": "whisper_bls_stream",
                "inputs": inputs,
                "outputs": [grpc.InferRequestedOutput("TRANSCRIPTS")],
            }

        received, text = "", ""
        async for result, error in self.client.stream_infer(
            requests(), stream_timeout=SECONDS, headers=headers
        ):
            if error:
                raise error
            text = words(result)
            whole = text.rstrip("\ufffd")  # a character may be cut between two tokens
            if whole.startswith(received) and whole != received:
                on_text(whole.removeprefix(received))
                received = whole
        return text

    async def aclose(self) -> None:
        await self.client.close()


def complaint(error: Any) -> str:
    """Return the error's message: tritonclient has its own exceptions, but passes on gRPC's in streams."""
    grpc_own = isinstance(error, AioRpcError)
    text, status = (error.details(), str(error.code())) if grpc_own else (error.message(), error.status())
    return f"{text}; start Conch or correct --triton" if status == "StatusCode.UNAVAILABLE" else str(text)


def sound(path: Path) -> NDArray[np.float32]:
    """Decode a file to float32 [samples] at 16 kHz, at most one window."""
    try:
        wave = decode(path, max_seconds=math.inf, time_limit=SECONDS)
    except BadMedia as error:
        raise RequestFailed(str(error)) from error
    if len(wave) > WINDOW * RATE:
        raise RequestFailed(
            f"it lasts {len(wave) / RATE:.1f} s, Triton's whisper_bls takes {WINDOW} s; send it to the "
            "gateway (--url), which cuts it at pauses"
        )
    return wave


def tensors(wave: NDArray[np.float32], prefix: str) -> list[Any]:
    """Make the inputs of whisper_bls for one recording: WAV FP32 [1, samples], TEXT_PREFIX BYTES [1, 1]."""
    arrays = {"WAV": (wave[None], "FP32"), "TEXT_PREFIX": (np.array([[prefix.encode()]], object), "BYTES")}
    inputs = [grpc.InferInput(name, list(array.shape), kind) for name, (array, kind) in arrays.items()]
    for tensor, (array, _) in zip(inputs, arrays.values(), strict=True):
        tensor.set_data_from_numpy(array)
    return inputs


def words(result: Any) -> str:
    """Return the TRANSCRIPTS of one recording."""
    return str(result.as_numpy("TRANSCRIPTS").ravel()[0].decode())
