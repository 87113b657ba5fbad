"""Mix the channels of decoded frames into one without losing what only some channels contain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from av.audio.frame import AudioFrame
from numpy.typing import NDArray

Floats = NDArray[np.float32]
# ITU-R BS.775, as FFmpeg mixes: what a layout of loudspeakers gives to one in the middle; others give 0.5.
MIDDLE = {"FC": 1.0, "FL": 0.5**0.5, "FR": 0.5**0.5, "LFE": 0.0}
PIECES = 10  # a second: the mix is judged in pieces of 0.1 s
FAINT = 0.1  # of the loudest channel's energy: channels that cancel each other out, or one among many
STAYS = 2.0  # a channel is left only for one that has so many times its energy
RAMP = 0.1  # of a piece, in which one choice passes into the next, without a click


def planes(frame: AudioFrame) -> Floats:
    """Return a frame's samples, float32 [channels, samples], with integers scaled to -1 to 1."""
    found: NDArray[Any] = frame.to_ndarray()
    if not frame.format.is_planar:
        found = found.reshape(-1, frame.layout.nb_channels).T
    if found.dtype.kind == "f":
        return found.astype(np.float32, copy=False)
    half = 2 ** (8 * found.dtype.itemsize - 1)
    wide: NDArray[Any] = found.astype(np.float32 if half < 2**16 else np.float64)
    scaled: Floats = ((wide - (half if found.dtype.kind == "u" else 0)) / half).astype(np.float32)
    return scaled


class Mixer:
    """Mixes one stream. Where the mix of a block has far less energy than its loudest channel (inverted
    channels, one voice among sixty microphones), that channel is used instead.
    """

    def __init__(self, names: Sequence[str], rate: int) -> None:
        even = MIDDLE["FL"] if len(names) == 2 else 1 / len(names)
        declared = len(names) > 2 and "FC" in names
        self.weights = np.array([MIDDLE.get(name, 0.5) if declared else even for name in names], np.float32)
        self.piece = max(1, rate // PIECES)
        self.before = self.weights
        self.channel = 0

    def mixed(self, sound: Floats) -> Floats:
        """Mix float32 [channels, samples] to float32 [samples]."""
        if len(sound) == 1:
            alone: Floats = sound[0]
            return alone
        mix: Floats = self.weights @ sound
        products = self._products(sound)
        energies = np.einsum("pcc->cp", products)
        whole = np.einsum("c,pcd,d->p", self.weights, products, self.weights)
        faint = whole < FAINT * energies.max(0)
        if not faint.any() and self.before is self.weights:
            return mix
        chosen = [
            self._chosen(energies[:, i]) if is_faint else self.weights for i, is_faint in enumerate(faint)
        ]
        shares = np.repeat(np.array(chosen, np.float32), self.piece, 0)[: sound.shape[1]]
        for i, (old, new) in enumerate(zip([self.before, *chosen], chosen, strict=False)):
            if old is not new:
                ramp = shares[i * self.piece :][: max(1, int(RAMP * self.piece))]
                ramp += (old - new) * np.linspace(1, 0, len(ramp), dtype=np.float32)[:, None]
        self.before = chosen[-1]
        found: Floats = np.einsum("sc,cs->s", shares, sound)
        return found

    def _chosen(self, energies: Floats) -> Floats:
        if energies.max() > STAYS * energies[self.channel]:
            self.channel = int(energies.argmax())
        share: Floats = (np.arange(len(energies)) == self.channel).astype(np.float32)
        return share

    def _products(self, sound: Floats) -> Floats:
        """Return float32 [blocks, channels, channels]: the summed products of each pair of channels."""
        count, rest = divmod(sound.shape[1], self.piece)
        whole = sound[:, : count * self.piece].reshape(len(sound), count, self.piece).transpose(1, 0, 2)
        found = [whole @ whole.transpose(0, 2, 1)]
        if rest:
            found.append((sound[:, -rest:] @ sound[:, -rest:].T)[None])
        products: Floats = np.concatenate(found)
        return products
