"""Decode the base64 audio of live sessions to float32 at 16 kHz."""

from __future__ import annotations

from typing import Any, Literal

import av
import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

from conch.errors import invalid
from conch.pictures import from_base64
from speech.vad import RATE

Floats = NDArray[np.float32]
LONGEST = 30  # seconds in one piece


def _g711(codec: Literal["pcm_mulaw", "pcm_alaw"]) -> NDArray[np.int16]:
    """Return the sample of each of 256 bytes, as FFmpeg's codec of this name decodes it."""
    decoder = av.CodecContext.create(codec, "r")
    decoder.layout, decoder.sample_rate = "mono", 8000
    (frame,) = decoder.decode(av.Packet(bytes(range(256))))
    return np.asarray(frame.to_ndarray()[0], np.int16)


TABLES = {"audio/pcmu": _g711("pcm_mulaw"), "audio/pcma": _g711("pcm_alaw")}


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
            raise invalid("audio", "audio is not base64; send the samples in base64") from None
        if not raw or len(raw) % self.size:
            raise invalid("audio", f"audio has {len(raw)} bytes; send whole samples of {8 * self.size} bits")
        if len(raw) > self.size * self.rate * LONGEST:
            raise invalid("audio", f"audio holds more than {LONGEST} s; send smaller pieces")
        samples = (
            np.frombuffer(raw, "<i2") if self.table is None else self.table[np.frombuffer(raw, np.uint8)]
        )
        frame = AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = self.rate
        return _joined(self.resampler.resample(frame))


def _joined(frames: list[AudioFrame]) -> Floats:
    joined: Floats = np.concatenate([np.zeros(0, np.float32), *(frame.to_ndarray()[0] for frame in frames)])
    return joined
