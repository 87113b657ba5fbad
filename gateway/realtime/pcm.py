"""Decode the base64 audio of live sessions to float32 at 16 kHz."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

from conch.errors import ApiError, invalid
from conch.pictures import from_base64
from speech.vad import RATE

Floats = NDArray[np.float32]
LONGEST = 30  # seconds in one piece


def mu_law() -> NDArray[np.int16]:
    """Return the sample of each of 256 bytes (ITU-T G.711, table 2)."""
    code = ~np.arange(256, dtype=np.uint8)
    size = ((((code & 15).astype(np.int32) << 3) + 132) << ((code >> 4) & 7)) - 132
    return np.where(code & 128, -size, size).astype(np.int16)


def a_law() -> NDArray[np.int16]:
    """Return the sample of each of 256 bytes (ITU-T G.711, table 1)."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    part = (code >> 4) & 7
    size = ((code & 15).astype(np.int32) << 4) + np.where(part > 0, 264, 8)
    size = size << np.maximum(part.astype(np.int32) - 1, 0)
    return np.where(code & 128, size, -size).astype(np.int16)


TABLES = {"audio/pcmu": mu_law(), "audio/pcma": a_law()}


class SoundDecoder:
    """One audio stream; `kind` is audio/pcm, audio/pcmu or audio/pcma."""

    def __init__(self, kind: str, rate: int) -> None:
        self.table, self.rate = TABLES.get(kind), rate
        self.size = 2 if self.table is None else 1  # bytes of a sample
        self._begin()

    def _begin(self) -> None:
        self.resampler = av.AudioResampler(format="fltp", layout="mono", rate=RATE)

    def flush(self) -> Floats:
        """Return the samples, float32 [n] at 16 kHz, that the resampler still holds; a new stream starts
        after it.
        """
        held = _joined(self.resampler.resample(None))
        self._begin()
        return held

    def feed(self, audio: Any) -> Floats:
        """Return the samples, float32 [n] at 16 kHz, of a base64 text.

        Raises:
            ApiError: 400: no base64, half a sample, or too much at once.
        """
        try:
            raw = from_base64(audio)
        except (TypeError, ValueError, AttributeError):
            raise _refused("audio is not base64; send the samples in base64") from None
        if not raw or len(raw) % self.size:
            raise _refused(f"audio has {len(raw)} bytes; send whole samples of {8 * self.size} bits")
        if len(raw) > self.size * self.rate * LONGEST:
            raise _refused(f"audio holds more than {LONGEST} s; send smaller pieces")
        samples = (
            np.frombuffer(raw, "<i2") if self.table is None else self.table[np.frombuffer(raw, np.uint8)]
        )
        frame = AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = self.rate
        return _joined(self.resampler.resample(frame))


def _refused(message: str) -> ApiError:
    return invalid("audio", message)


def _joined(frames: list[AudioFrame]) -> Floats:
    joined: Floats = np.concatenate([np.zeros(0, np.float32), *(frame.to_ndarray()[0] for frame in frames)])
    return joined
