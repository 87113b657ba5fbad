"""PCM16 in base64, as live sessions send it, to float32 at 16 kHz."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import av
import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

from ..audio.vad import RATE
from ..errors import ApiError

Floats = NDArray[np.float32]
LONGEST = 30  # seconds in one piece


class Pcm16Decoder:
    """One stream of sound."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._begin()

    def _begin(self) -> None:
        self.resampler = av.AudioResampler(format="fltp", layout="mono", rate=RATE)

    def flush(self) -> Floats:
        """The samples, float32 [n] at 16 kHz, that the resampler still holds back; after it a new stream
        begins.
        """
        held = _joined(self.resampler.resample(None))
        self._begin()
        return held

    def feed(self, audio: Any) -> Floats:
        """The samples, float32 [n] at 16 kHz, of a base64 text.

        Raises:
            ApiError: 400: no base64, half a sample, or too much at once.
        """
        try:
            raw = base64.b64decode(audio, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ApiError(
                400,
                "audio is not base64; send PCM16 little-endian mono in base64",
                param="audio",
                code="invalid_value",
            ) from None
        if not raw or len(raw) % 2:
            raise ApiError(
                400,
                f"audio has {len(raw)} bytes; send whole 16-bit samples",
                param="audio",
                code="invalid_value",
            )
        if len(raw) > 2 * self.rate * LONGEST:
            raise ApiError(
                400,
                f"audio holds more than {LONGEST} s; send smaller pieces",
                param="audio",
                code="invalid_value",
            )
        frame = AudioFrame.from_ndarray(np.frombuffer(raw, "<i2")[None], format="s16", layout="mono")
        frame.sample_rate = self.rate
        return _joined(self.resampler.resample(frame))


def _joined(frames: list[AudioFrame]) -> Floats:
    joined: Floats = np.concatenate([np.zeros(0, np.float32), *(frame.to_ndarray()[0] for frame in frames)])
    return joined
