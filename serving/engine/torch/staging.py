"""Inputs of encoders on their way to the device."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from .device import Device

PART = 64  # every so many samples or features of a sound are hashed


@dataclass(frozen=True)
class EncoderSource:
    """An encoder's input: a hash of all of it or, for audio, of a part; and samples float32 [160 * frames] in
    pinned memory, features [frames, mels], or ids int64 [n].
    """

    key: bytes
    data: Tensor


class Staging:
    """Pinned memory for audio on its way to the device: as many buffers for a whole window of samples as may
    wait or be cached, used in turn; more audio, and features, get their own. A copy from other memory would
    wait for all encoders queued before it, and every step with it.
    """

    def __init__(self, device: Device, count: int, samples: int) -> None:
        self.pins = device.gpu
        made = (torch.zeros(samples, pin_memory=True) for _ in range(count))
        self.free: list[Tensor] = list(made) if device.gpu else []

    @torch.inference_mode()
    def take(self, source: NDArray[Any]) -> Tensor:
        """Copy the source, in its shape and dtype; its buffer is reused when nothing references the copy."""
        try:
            buffer = self.free.pop() if source.ndim == 1 else None
        except IndexError:
            buffer = None
        if buffer is None:
            whole = torch.from_numpy(source)
            return whole.pin_memory() if self.pins else whole.clone()
        staged = buffer[: len(source)]
        staged.copy_(torch.from_numpy(source))
        weakref.finalize(staged, self.free.append, buffer)
        return staged


def same_sound(one: EncoderSource, other: EncoderSource) -> bool:
    """Tell whether they are equal in all respects."""
    return one.key == other.key and (
        one.data is other.data or (one.data.dtype == other.data.dtype and torch.equal(one.data, other.data))
    )
