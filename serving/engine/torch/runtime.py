"""The torch engine of one bundle: encoders on a stream of their own, decoder steps on another."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from conch.bundle import EngineFacts
from serving.architectures.transformer import Encoder, Looking, Model, Shape

from ..sampling import Sampling
from .batch import DeviceBatch, Memory
from .choosing import on_device
from .device import Device, attention

GROUPS = (8, 4, 2, 1)  # recordings that are encoded at once
PADDED_TO = 16  # texts of similar length share a shape
REMEMBERED = 2 << 30  # bytes of memories kept for a second look at the same sound
WEIGHTS = "model.safetensors"


@dataclass
class Recorded:
    """An encoder's CUDA graph for a fixed number of whole windows: its input, its work, its output."""

    features: Tensor
    run: Callable[[], object]
    memory: list[Tensor]


class TorchRuntime:
    """A Runtime (runtime.py).

    Raises:
        NoGpu: see `Device.find`.
        MemoryError: the GPU is too small for `max_rows` rows.
    """

    def __init__(self, folder: Path, parameters: Mapping[str, Any], device: Device | None = None) -> None:
        self.facts, self.shape = EngineFacts.load(folder), Shape.load(folder)
        self.device = device or Device.find(str(parameters.get("precision", "float16")))
        with torch.inference_mode():
            self.model = _loaded(self.shape, folder / WEIGHTS, self.device)
            self.keys: OrderedDict[bytes, Memory] = OrderedDict()
            rows = int(parameters.get("max_rows", 16))
            try:
                self.running = DeviceBatch(
                    self.model.decoder, self.device, rows, self.facts.positions, self.facts.memory
                )
                self.graphs = self._record() if self.device.gpu and self.shape.mels else {}
            except torch.cuda.OutOfMemoryError as error:
                raise MemoryError(
                    f"the GPU is too small for max_rows={rows} of this model: {error}; build it with a "
                    "smaller max_rows, or give the instance a larger GPU"
                ) from None

    def chooses(self, sampling: Sampling) -> bool:
        """See Runtime."""
        return on_device(sampling)

    @property
    def _encoder(self) -> Encoder:
        assert self.model.encoder is not None
        return self.model.encoder

    def batch(self) -> DeviceBatch:
        """See Runtime. There is one, since its memory is the GPU's."""
        with torch.inference_mode():
            self.running.clear()
        return self.running

    @torch.inference_mode()
    def encode(self, sources: Sequence[NDArray[Any]]) -> list[Memory]:
        """See Runtime. Sounds and texts that were encoded lately are not encoded again."""
        keys = [hashlib.blake2b(source.tobytes(), digest_size=16).digest() for source in sources]
        new = {key: source for key, source in zip(keys, sources, strict=True) if key not in self.keys}
        made: dict[bytes, Memory] = {}
        with self.device.on(self.device.encodes):
            for group in self._groups(new):
                made |= zip(group, self._encoded([new[key] for key in group]), strict=True)
        found = [made.get(key) or self.keys[key] for key in keys]
        self._keep(dict(zip(keys, found, strict=True)))
        return found

    def _keep(self, memories: Mapping[bytes, Memory]) -> None:
        for key, memory in memories.items():
            self.keys[key] = memory
            self.keys.move_to_end(key)
        while len(self.keys) > 8 and sum(m.parts.nbytes for m in self.keys.values()) > REMEMBERED:
            self.keys.popitem(last=False)

    def _groups(self, sources: Mapping[bytes, NDArray[Any]]) -> list[list[bytes]]:
        """Sounds of one length in groups that have a graph; texts all together."""
        if not self.shape.mels:
            return [list(sources)] if sources else []
        groups = []
        for length in {len(source) for source in sources.values()}:
            same = [key for key, source in sources.items() if len(source) == length]
            while same:
                size = next(size for size in GROUPS if size <= len(same))
                groups.append(same[:size])
                same = same[size:]
        return groups

    def _encoded(self, sources: Sequence[NDArray[Any]]) -> list[Memory]:
        if self.shape.mels:
            whole = self._sound(sources)
            lengths = [whole.shape[3]] * len(sources)
        else:
            lengths = [len(source) for source in sources]
            whole = self._text(sources, lengths)
        # Copies: views would keep the whole group alive as long as one of it.
        parts = [whole[i, :, :, :length].clone() for i, length in enumerate(lengths)]
        event = self.device.event()
        return [Memory(part, length, event) for part, length in zip(parts, lengths, strict=True)]

    def _sound(self, sources: Sequence[NDArray[Any]]) -> Tensor:
        """Features [frames, mels] each, to keys and values [sounds, 2 * layers, heads, frames / 2, width]."""
        features = self.device.upload(np.stack(sources)).to(self.device.dtype).transpose(1, 2)
        recorded = self.graphs.get(len(sources)) if features.shape[2] == 2 * self.facts.memory else None
        if recorded is None:
            with attention():
                return self._encoder.memory(features)
        recorded.features.copy_(features)
        recorded.run()
        return recorded.memory[0]

    def _text(self, sources: Sequence[NDArray[Any]], lengths: Sequence[int]) -> Tensor:
        """Ids [n] each, padded to one length."""
        longest = min(-(-max(lengths) // PADDED_TO) * PADDED_TO, self.facts.memory)
        ids = np.full((len(sources), longest), self.facts.pad_id, np.int64)
        for line, source in zip(ids, sources, strict=True):
            line[: len(source)] = source
        seen = np.arange(longest) < np.array(lengths)[:, None]
        with attention():
            return self._encoder.memory(self.device.upload(ids), self.device.upload(seen))

    def _record(self) -> dict[int, Recorded]:
        """Graphs for whole windows, which nearly all are."""
        return {size: self._recorded(size) for size in GROUPS}

    def _recorded(self, size: int) -> Recorded:
        features = self.device.zeros(size, self.shape.mels, 2 * self.facts.memory)
        memory: list[Tensor] = []

        def run() -> None:
            with attention():
                memory[:] = [self._encoder.memory(features)]

        return Recorded(features, self.device.recorded(self.device.encodes, run), memory)

    @torch.inference_mode()
    def align(self, ids: Sequence[int], memory: Memory) -> NDArray[np.float16]:
        """See Runtime."""
        with self.device.on(self.device.encodes):
            parts = memory.parts[:, None]
            caches = Looking([parts[i] for i in range(len(parts))], self.shape.alignment_heads)
            line = self.device.upload(np.array([ids], np.int64))
            positions = torch.arange(len(ids), device=line.device)[None]
            self.model.decoder(line, positions, caches, caches.layers)
            return np.asarray(torch.cat(caches.seen).half().cpu().numpy())


def _loaded(shape: Shape, weights: Path, device: Device) -> Model:
    with torch.device("meta"):
        model = Model(shape)
    state = {name: tensor.to(device.dtype) for name, tensor in load_file(weights, device.kind).items()}
    model.load_state_dict(state, assign=True)
    model.decoder.pack()
    if model.encoder is not None:
        model.encoder.pack()
    if device.fuses:
        from .fused import fuse

        fuse(model)
    return model.eval()
