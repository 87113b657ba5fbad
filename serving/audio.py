"""Whisper's log-mel spectrogram in numpy.

Formula and constants: openai/whisper, audio.py (`log_mel_spectrogram`): 16 kHz, window 400, hop 160, Slaney-scaled mel filters,
log10 clamped at 1e-10, floored 8 below the maximum, then (x + 4) / 4.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
WINDOW = 400
HOP = 160
FULL_FRAMES = 3_000
MAX_SAMPLES = FULL_FRAMES * HOP

Floats = NDArray[np.float32]


class AudioTooLong(ValueError):
    """A single window holds at most 30 s; longer sound has to be cut by the caller."""


def _slaney_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slaney's mel scale to hertz: linear below 1 kHz (200/3 Hz per mel), logarithmic above (Auditory Toolbox, 1998)."""
    return np.where(mel < 15.0, mel * 200.0 / 3.0, 1000.0 * np.exp((mel - 15.0) * np.log(6.4) / 27.0))


@cache
def mel_filters(mels: int) -> Floats:
    """Triangular filters of unit area, float32 [201, mels], as librosa.filters.mel(sr=16000, n_fft=400)."""
    top = 15.0 + 27.0 * np.log(8000.0 / 1000.0) / np.log(6.4)
    edges = _slaney_hertz(np.linspace(0.0, top, mels + 2))
    hertz = np.linspace(0.0, RATE / 2, WINDOW // 2 + 1)[:, None]
    rising = (hertz - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - hertz) / np.diff(edges)[1:]
    filters = np.maximum(0.0, np.minimum(rising, falling)) * (2.0 / (edges[2:] - edges[:-2]))
    return np.ascontiguousarray(filters, dtype=np.float32)


@cache
def _hann() -> Floats:
    window: Floats = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)).astype(np.float32)
    return window


def _power(padded: Floats, frames: int) -> Floats:
    """Squared magnitudes, float32 [frames, 201]."""
    strides = (padded.strides[0] * HOP, padded.strides[0])
    windows = np.lib.stride_tricks.as_strided(padded, (frames, WINDOW), strides, writeable=False)
    spectrum = np.fft.rfft(windows * _hann())
    power: Floats = np.square(spectrum.real) + np.square(spectrum.imag)
    return power


def log_mel(wave: Floats, mels: int, *, pad: bool = True) -> Floats:
    """Features of up to 30 s of 16 kHz mono sound.

    Args:
        wave: float32 [samples].
        mels: number of mel bins (80, or 128 for the large-v3 family).
        pad: fill with silence to 30 s (3,000 frames); otherwise one frame per 10 ms, made even for the encoder's stride of two.

    Returns:
        float32 [frames, mels].

    Raises:
        AudioTooLong: more than 480,000 samples.
    """
    if len(wave) > MAX_SAMPLES:
        raise AudioTooLong(f"audio of {len(wave) / RATE:.2f} s exceeds the 30 s of one window; cut it, or send it to /v1/audio/transcriptions")
    frames = FULL_FRAMES if pad else max(2, -(-len(wave) // (2 * HOP)) * 2)
    samples = np.zeros(frames * HOP, np.float32)
    samples[: len(wave)] = wave
    padded = np.pad(samples, WINDOW // 2, mode="reflect")
    # Frames that see silence only need no transform: their power is zero.
    sounding = min(frames, (len(wave) + WINDOW // 2) // HOP + 1)
    features = np.full((frames, mels), -10.0, np.float32)
    features[:sounding] = np.log10(np.maximum(_power(padded, sounding) @ mel_filters(mels), 1e-10))
    return (np.maximum(features, features.max() - 8.0) + 4.0) / 4.0
