"""The torch engine of one bundle: encoders on a stream of their own, decoder steps on another."""

from __future__ import annotations

import gc
import hashlib
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conch.bundle import EngineFacts
from serving.architectures.transformer import AlignmentCaches, Encoder, Model, Shape

from ...audio.log_mel import HOP
from ..sampling import Sampling
from .batch import DeviceBatch, Memory
from .choosing import on_device
from .device import Device, attention
from .log_mel import LogMel
from .sharding import Share, part_of, spread, weights

AT_ONCE = 8  # recordings that are encoded together at most
PADDED_TO = 16  # texts of similar length share a shape
ALIGNED_TO = 64  # and texts that are aligned a graph
REMEMBERED = 2 << 30  # bytes of memories kept for a second look at the same sound
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Source:
    """What an encoder reads: a hash of it, and samples float32 [160 * frames] in memory that a GPU copies
    from by itself, features [frames, mels], or ids int64 [n].
    """

    key: bytes
    data: Tensor


class Staging:
    """Sounds on their way to the device, in memory that it copies from by itself: as many buffers of a whole
    window of samples as may wait, used in turn; what is more, and features, get memory of their own. From
    other memory a copy would wait for the encoders that are queued before it, and every step with it.
    """

    def __init__(self, device: Device, count: int, samples: int) -> None:
        self.pins = device.gpu
        made = (torch.zeros(samples, pin_memory=True) for _ in range(count))
        self.free: list[Tensor] = list(made) if device.gpu else []

    @torch.inference_mode()
    def take(self, source: NDArray[Any]) -> Tensor:
        """A copy of the source; its buffer is free again when nobody holds the copy."""
        try:
            buffer = self.free.pop() if source.ndim == 1 else None
        except IndexError:
            buffer = None
        if buffer is None:
            whole = torch.from_numpy(source)
            return whole.pin_memory() if self.pins else whole
        staged = buffer[: len(source)]
        staged.copy_(torch.from_numpy(source))
        weakref.finalize(staged, self.free.append, buffer)
        return staged


@dataclass(frozen=True)
class EncoderGraphs:
    """CUDA graphs for 1 to `AT_ONCE` whole windows: `listen[n]` makes features of `n` sounds, `run[n]` keys
    and values of features. One runs at a time, so all of them use the same memory: `samples` float32
    [AT_ONCE, 160 * frames], `features` [AT_ONCE, frames, mels], `memory` [AT_ONCE, 2 * layers, heads,
    frames / 2, width].
    """

    samples: Tensor
    features: Tensor
    memory: Tensor
    listen: dict[int, Callable[[], object]] = field(default_factory=dict)
    run: dict[int, Callable[[], object]] = field(default_factory=dict)


@dataclass(frozen=True)
class AlignmentGraphs:
    """CUDA graphs that read texts beside a whole window: one for all positions, one for `ALIGNED_TO` less,
    and so on. One runs at a time. `ids` int64 [1, positions]; `memory` [2 * layers, heads, frames / 2, width]
    of the layers that are needed; `run[n]` leaves in `seen` float16 [heads, positions, frames / 2] where `n`
    ids look.
    """

    ids: Tensor
    memory: Tensor
    seen: Tensor
    run: dict[int, Callable[[], object]] = field(default_factory=dict)


class TorchRuntime:
    """A Runtime (runtime.py).

    `share`: of several GPUs, on which other processes have the rest of the model.

    Raises:
        NoGpu: see `Device.find`.
        MemoryError: the GPU is too small for `max_rows` rows.
    """

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Any],
        device: Device | None = None,
        share: Share | None = None,
    ) -> None:
        self.facts, self.shape = EngineFacts.load(folder), Shape.load(folder)
        ranks = share.count if share else 1
        self.device = device or Device.find(str(parameters.get("precision", "float16")), ranks)
        with torch.inference_mode():
            self.model = _loaded(self.shape, folder / WEIGHTS, self.device, share)
            self.recent: OrderedDict[bytes, Memory] = OrderedDict()
            self.copying: deque[tuple[Any, Sequence[Tensor]]] = deque()
            rows = int(parameters.get("max_rows", 16))
            self.window = self.facts.frames if self.shape.mels else 0  # frames
            self.staging = Staging(self.device, 2 * rows if self.window else 0, self.window * HOP)
            self.log_mel = LogMel(self.device, self.shape.mels) if self.window else None
            try:
                self.running = DeviceBatch(
                    self.model.decoder, self.device, rows, self.facts.positions, self.facts.encoder_positions
                )
                sound = self.device.gpu and self.shape.mels
                self.graphs = self._encoder_graphs() if sound else None
                self.alignments = self._alignment_graphs() if sound and self.facts.aligns else None
            except torch.cuda.OutOfMemoryError as error:
                raise MemoryError(
                    f"the GPU is too small for max_rows={rows} of this model: {error}; build it with a "
                    "smaller max_rows, or give the instance a larger GPU"
                ) from None

    def chooses(self, sampling: Sampling) -> bool:
        """See Runtime."""
        return on_device(sampling)

    def close(self) -> None:
        """See Runtime. NCCL's groups cannot be left while a graph holds their sums."""
        self.running.close()
        self.graphs = self.alignments = None
        gc.collect()
        if self.device.gpu:
            torch.cuda.synchronize()

    @property
    def _encoder(self) -> Encoder:
        assert self.model.encoder is not None
        return self.model.encoder

    def batch(self) -> DeviceBatch:
        """See Runtime. There is one, since its memory is the GPU's."""
        with torch.inference_mode():
            self.running.clear()
        return self.running

    def prepare(self, source: NDArray[Any]) -> Source:
        """See Runtime."""
        # Most processors have instructions for it: half of the time of BLAKE2 for 2 MB of samples.
        key = hashlib.sha256(np.ascontiguousarray(source).data).digest()
        return Source(key, self.staging.take(source) if self.shape.mels else torch.from_numpy(source))

    @torch.inference_mode()
    def encode(self, sources: Sequence[Source]) -> list[Memory]:
        """See Runtime. Sounds and texts that were encoded lately are not encoded again."""
        new = {source.key: source.data for source in sources if source.key not in self.recent}
        made: dict[bytes, Memory] = {}
        with self.device.on(self.device.encodes):
            for group in self._groups(new):
                made |= zip(group, self._encoded([new[key] for key in group]), strict=True)
        found = [made.get(source.key) or self.recent[source.key] for source in sources]
        self._keep({source.key: memory for source, memory in zip(sources, found, strict=True)})
        return found

    def _keep(self, memories: Mapping[bytes, Memory]) -> None:
        for key, memory in memories.items():
            self.recent[key] = memory
            self.recent.move_to_end(key)
        while len(self.recent) > 8 and sum(m.parts.nbytes for m in self.recent.values()) > REMEMBERED:
            self.recent.popitem(last=False)

    def _groups(self, sources: Mapping[bytes, Tensor]) -> list[list[bytes]]:
        """Sounds of one length in groups of `AT_ONCE` at most; texts all together."""
        if not self.shape.mels:
            return [list(sources)] if sources else []
        groups = []
        for length in {len(source) for source in sources.values()}:
            same = [key for key, source in sources.items() if len(source) == length]
            groups += [same[at : at + AT_ONCE] for at in range(0, len(same), AT_ONCE)]
        return groups

    def _encoded(self, sources: Sequence[Tensor]) -> list[Memory]:
        if self.shape.mels:
            whole = self._sound(sources)
            lengths = [whole.shape[3]] * len(sources)
        else:
            lengths = [len(source) for source in sources]
            whole = self._text(sources, lengths)
        # Copies: views would keep the whole group alive as long as one of it.
        parts = [whole[i, :, :, :length].clone() for i, length in enumerate(lengths)]
        event = self.device.event()
        self._hold(event, sources)
        return [Memory(part, length, event) for part, length in zip(parts, lengths, strict=True)]

    def _hold(self, event: Any, sources: Sequence[Tensor]) -> None:
        """Keep sources until the device has copied them, also those of requests that are cancelled."""
        self.copying.append((event, sources))
        while self.copying and (self.copying[0][0] is None or self.copying[0][0].query()):
            self.copying.popleft()

    def _sound(self, sources: Sequence[Tensor]) -> Tensor:
        """Samples [160 * frames] or features [frames, mels] each, to keys and values
        [sounds, 2 * layers, heads, frames / 2, width].
        """
        heard = sources[0].dim() == 1
        frames = len(sources[0]) // HOP if heard else len(sources[0])
        graphs, count = self.graphs, len(sources)
        if graphs is None or frames != self.window:
            whole = torch.stack(list(sources)).to(self.device.kind)
            return self._run_encoder(self._listen(whole) if heard else whole.to(self.device.dtype))
        for line, source in zip(graphs.samples if heard else graphs.features, sources, strict=False):
            line.copy_(source, non_blocking=True)
        if heard:
            graphs.listen[count]()
        graphs.run[count]()
        return graphs.memory[:count]

    def _listen(self, samples: Tensor) -> Tensor:
        assert self.log_mel is not None
        return self.log_mel(samples)

    def _run_encoder(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        with attention():
            return self._encoder.memory(features.transpose(1, 2), out=out)

    def _text(self, sources: Sequence[Tensor], lengths: Sequence[int]) -> Tensor:
        """Ids [n] each, padded to one length."""
        longest = min(-(-max(lengths) // PADDED_TO) * PADDED_TO, self.facts.encoder_positions)
        ids = np.full((len(sources), longest), self.facts.pad_id, np.int64)
        for line, source in zip(ids, sources, strict=True):
            line[: len(source)] = source.numpy()
        seen = np.arange(longest) < np.array(lengths)[:, None]
        with attention():
            return self._encoder.memory(self.device.upload(ids), self.device.upload(seen))

    def _encoder_graphs(self) -> EncoderGraphs:
        """Graphs for whole windows, which nearly all are."""
        shape, frames = self._encoder.shape, self.facts.encoder_positions
        made = EncoderGraphs(
            self.device.zeros(AT_ONCE, self.window * HOP, dtype=torch.float32),
            self.device.zeros(AT_ONCE, self.window, shape.mels),
            self.device.zeros(
                AT_ONCE, 2 * shape.decoder_layers, shape.decoder_heads, frames, shape.head_width
            ),
        )

        def listen(count: int) -> None:
            made.features[:count].copy_(self._listen(made.samples[:count]))

        def run(count: int) -> None:
            self._run_encoder(made.features[:count], made.memory[:count])

        pool = self.device.pool()
        for count in range(AT_ONCE, 0, -1):  # what the first needs is enough for all
            for graphs, work in ((made.listen, listen), (made.run, run)):
                graphs[count] = self.device.graph(self.device.encodes, partial(work, count), pool)
        return made

    @torch.inference_mode()
    def align(self, ids: Sequence[int], memory: Memory) -> NDArray[np.float16]:
        """See Runtime. Among the steps: behind the encoders it would wait for all that are queued."""
        with self.device.on(self.device.steps):
            memory.arrive(self.device.steps)
            line, graphs = self.device.upload(np.array([ids], np.int64)), self.alignments
            if graphs is None or memory.parts.shape[2] != graphs.memory.shape[2]:
                seen = self._seen(line, memory.parts)
            else:
                graphs.ids[:, : len(ids)] = line
                graphs.memory.copy_(memory.parts[: len(graphs.memory)])
                graphs.run[min(size for size in graphs.run if size >= len(ids))]()
                seen = graphs.seen[:, : len(ids)]
            return np.asarray(seen.cpu().numpy())

    def _seen(self, ids: Tensor, memory: Tensor) -> Tensor:
        """Where the decoder looks while it reads `ids` int64 [1, n]: float16 [heads, n, frames / 2]. `memory`
        [2 * layers, heads, frames / 2, width].
        """
        caches = AlignmentCaches(memory[:, None].unbind(), self.shape.alignment_heads)
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        self.model.decoder(ids, positions, caches, caches.layers)
        return torch.cat(caches.seen).half()

    def _alignment_graphs(self) -> AlignmentGraphs:
        """What stands behind a text changes nothing before it."""
        shape, frames, most = self._encoder.shape, self.facts.encoder_positions, self.facts.positions
        pairs = self.shape.alignment_heads
        layers = AlignmentCaches((), pairs).layers
        made = AlignmentGraphs(
            self.device.zeros(1, most, dtype=torch.int64),
            self.device.zeros(2 * layers, shape.decoder_heads, frames, shape.head_width),
            self.device.zeros(len(pairs), most, frames, dtype=torch.float16),
        )

        def run(count: int) -> None:
            made.seen[:, :count].copy_(self._seen(made.ids[:, :count], made.memory))

        pool = self.device.pool()
        for count in range(most, 0, -ALIGNED_TO):
            made.run[count] = self.device.graph(self.device.steps, partial(run, count), pool)
        return made


def _loaded(shape: Shape, file: Path, device: Device, share: Share | None) -> Model:
    with torch.device("meta"):
        model = Model(part_of(shape, share.count) if share else shape)
    state = {name: tensor.to(device.dtype) for name, tensor in weights(file, device.kind, share)}
    model.load_state_dict(state, assign=True)
    if share:
        spread(model, share)
    model.decoder.pack()
    if model.encoder is not None:
        model.encoder.pack()
    if device.fuses:
        from .fused import fuse

        fuse(model)
    return model.eval()
