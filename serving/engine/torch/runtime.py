"""The torch engine of one bundle: encoders on one stream, decoder steps on another."""

from __future__ import annotations

import gc
import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from conch.bundle import EngineFacts
from serving.architectures.shape import Shape
from serving.architectures.transformer import Encoder, Transformer

from ...audio.log_mel import HOP
from ..runtime import RunningBatch
from ..sampling import Sampling
from .batch import DeviceBatch
from .choosing import on_device
from .device import Device, attention
from .log_mel import LogMel
from .passes import Sizes
from .sharding import Share, part_of, spread, weights
from .slots import TorchMemory
from .staging import PART, EncoderSource, Staging, same_sound
from .texts import TorchTextEncoder

AT_ONCE = 8  # recordings that are encoded together at most
LAYERS_AT_ONCE = 2  # of an encoder, between two decoder steps
REMEMBERED = 2 << 30  # bytes of memories kept for further requests with the same sound
FEW = 8  # that are kept however large they are
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class EncoderGraphs:
    """CUDA graphs for 1 to `AT_ONCE` whole windows: `listen[n]` computes features of `n` sounds, and the
    graphs of `run[n]`, in turn, compute keys and values from features. One runs at a time, so all share
    memory: `samples` float32 [AT_ONCE, 160 * frames], `features` [AT_ONCE, frames, mels], `hidden` [AT_ONCE,
    frames / 2, width] between layers, `memory` [AT_ONCE, 2 * layers, heads, frames / 2, width].
    """

    samples: Tensor
    features: Tensor
    hidden: Tensor
    memory: Tensor
    listen: dict[int, Callable[[], object]] = field(default_factory=dict)
    run: dict[int, list[Callable[[], object]]] = field(default_factory=dict)


class TorchRuntime:
    """A Runtime (runtime.py).

    `share` is its part of a model on several GPUs.

    Raises:
        NoGpu: see `Device.find`.
        MemoryError: the GPU is too small for `max_rows` rows.
    """

    def __init__(self, folder: Path, parameters: Mapping[str, Any], share: Share | None = None) -> None:
        self.facts, self.shape = EngineFacts.load(folder), Shape.load(folder)
        ranks = share.count if share else 1
        self.device = Device.find(str(parameters.get("precision", "float16")), ranks)
        rows = int(parameters.get("max_rows", 16))
        with torch.inference_mode(), _room(rows):
            self.model = _loaded(self.shape, folder / WEIGHTS, self.device, share)
            self.recent: OrderedDict[bytes, tuple[EncoderSource, TorchMemory]] = OrderedDict()
            self.copying: deque[tuple[Any, Sequence[Tensor]]] = deque()
            self.window = self.facts.frames if self.shape.mels else 0  # frames
            self.most = rows + FEW  # memories that are kept, and the sounds that they are of
            count = 2 * rows + self.most if self.window else 0
            self.staging = Staging(self.device, count, self.window * HOP)
            self.log_mel = LogMel(self.device, self.shape.mels) if self.window else None
            piece = 0 if self.model.encoder is not None else int(parameters.get("prefill_tokens", 0))
            sizes = Sizes(rows, self.facts.positions, self.facts.encoder_positions, piece)
            self.running = DeviceBatch(self.model.decoder, self.device, sizes, attends=self.facts.attends)
            self.graphs = self._encoder_graphs() if self.device.gpu and self.shape.mels else None
            self.texts = None
            if self.model.encoder is not None and not self.shape.mels:
                self.texts = TorchTextEncoder(self.model.encoder, self.device, self.facts)

    def chooses(self, sampling: Sampling) -> bool:
        return on_device(sampling)

    def close(self) -> None:
        """See Runtime. NCCL's groups cannot be left while a graph holds their sums."""
        self.running.close()
        self.graphs = self.texts = None
        gc.collect()
        if self.device.gpu:
            torch.cuda.synchronize()

    @property
    def _encoder(self) -> Encoder:
        assert self.model.encoder is not None
        return self.model.encoder

    def batch(self) -> RunningBatch:
        """See Runtime. There is one, since its memory is the GPU's."""
        with torch.inference_mode(), self.device.on(self.device.steps):
            self.running.clear()
        return self.running

    def prepare(self, source: NDArray[Any]) -> EncoderSource:
        # A hash of 2 MB of samples takes two milliseconds. Where parts are the same, all is compared.
        part = source.ravel()[::PART] if self.shape.mels else source
        key = hashlib.sha256(np.ascontiguousarray(part).data).digest()
        return EncoderSource(key, self.staging.take(source) if self.shape.mels else torch.from_numpy(source))

    @torch.inference_mode()
    def encode(self, sources: Sequence[EncoderSource]) -> list[TorchMemory]:
        """See Runtime. Sounds and texts that were encoded lately are not encoded again. What is left of the
        work is done between decoder steps.
        """
        fresh: list[EncoderSource] = []
        for source in sources:
            if self._known(source) is None and not any(same_sound(source, other) for other in fresh):
                fresh.append(source)
        made = [one for group in self._groups(fresh) for one in self._encoded(group)]
        found = [self._known(source) or _of(source, made) for source in sources]
        for source, memory in zip(sources, found, strict=True):
            self._keep(source, memory)
        return found

    def _known(self, source: EncoderSource) -> TorchMemory | None:
        """Return the cached encoder output of the same input, if there is one."""
        known = self.recent.get(source.key)
        return known[1] if known and known[1].failed is None and same_sound(source, known[0]) else None

    def _keep(self, source: EncoderSource, memory: TorchMemory) -> None:
        self.recent[source.key] = (source, memory)
        self.recent.move_to_end(source.key)
        while len(self.recent) > FEW and (
            len(self.recent) > self.most
            or sum(memory.parts.nbytes for _, memory in self.recent.values()) > REMEMBERED
        ):
            self.recent.popitem(last=False)

    def _groups(self, sources: Sequence[EncoderSource]) -> list[list[EncoderSource]]:
        """Group sounds of one length, at most `AT_ONCE` each; texts all together."""
        if not self.shape.mels:
            return [list(sources)] if sources else []
        groups = []
        for length in {len(source.data) for source in sources}:
            same = [source for source in sources if len(source.data) == length]
            groups += [same[at : at + AT_ONCE] for at in range(0, len(same), AT_ONCE)]
        return groups

    def _encoded(self, sources: Sequence[EncoderSource]) -> list[tuple[EncoderSource, TorchMemory]]:
        """Return inputs with their future outputs; where there is no other work, the first pieces are queued
        at once.
        """
        data = [source.data for source in sources]
        lengths = [len(each) for each in data]
        if self.shape.mels:
            lengths = [length // (2 * HOP if data[0].dim() == 1 else 2) for length in lengths]
        shape = self._encoder.shape
        layout = (2 * shape.decoder_layers, shape.decoder_heads)
        with self.device.on(self.device.encodes):
            # Memory of their own: views would keep the whole group alive as long as one of it.
            parts = [self.device.empty(*layout, length, shape.head_width) for length in lengths]
        queue = self.running.encoders
        alone = queue.idle
        coming = queue.add(self._work(data, lengths, parts))
        if alone:
            queue.next()
            queue.next()
        if coming.error is not None:
            raise coming.error
        return [
            (source, TorchMemory(part, length, coming))
            for source, part, length in zip(sources, parts, lengths, strict=True)
        ]

    def _work(
        self, data: Sequence[Tensor], lengths: Sequence[int], parts: Sequence[Tensor]
    ) -> list[Callable[[], object]]:
        """Return the pieces of work that compute a group."""

        def share_out(whole: Tensor) -> None:
            for part, each, length in zip(parts, whole, lengths, strict=False):
                part.copy_(each[:, :, :length])

        graphs, count = self.graphs, len(data)
        if graphs is None or not self._is_window(data[0]):
            read = self.texts.read if self.texts else self._sound
            return [lambda: share_out(read(data))]
        *others, last = graphs.run[count]

        def end() -> None:
            last()
            share_out(graphs.memory)

        return [partial(self._load, data, graphs), *others, end]

    def _is_window(self, data: Tensor) -> bool:
        return len(data) == self.window * (HOP if data.dim() == 1 else 1)

    def _load(self, data: Sequence[Tensor], graphs: EncoderGraphs) -> None:
        """Copy whole windows to the device."""
        samples = data[0].dim() == 1
        for line, source in zip(graphs.samples if samples else graphs.features, data, strict=False):
            line.copy_(source, non_blocking=True)
        if samples:
            graphs.listen[len(data)]()
        self._hold(self.device.event(), data)

    def _hold(self, event: Any, sources: Sequence[Tensor]) -> None:
        """Keep inputs until the device has copied them, also those of cancelled requests."""
        self.copying.append((event, sources))
        while self.copying and (self.copying[0][0] is None or self.copying[0][0].query()):
            self.copying.popleft()

    def _sound(self, sources: Sequence[Tensor]) -> Tensor:
        """Compute keys and values [sounds, 2 * layers, heads, frames / 2, width] from samples [160 * frames]
        or features [frames, mels] each.
        """
        whole = torch.stack([source.to(self.device.kind, non_blocking=True) for source in sources])
        self._hold(self.device.event(), sources)
        features = self._listen(whole) if sources[0].dim() == 1 else whole.to(self.device.dtype)
        with attention():
            return self._encoder.memory(features.transpose(1, 2))

    def _listen(self, samples: Tensor) -> Tensor:
        assert self.log_mel is not None
        return self.log_mel(samples)

    def _encoder_graphs(self) -> EncoderGraphs:
        """Record graphs for whole windows, which nearly all inputs are."""
        shape, frames = self._encoder.shape, self.facts.encoder_positions
        made = EncoderGraphs(
            self.device.zeros(AT_ONCE, self.window * HOP, dtype=torch.float32),
            self.device.zeros(AT_ONCE, self.window, shape.mels),
            self.device.zeros(AT_ONCE, frames, shape.width),
            self.device.zeros(
                AT_ONCE, 2 * shape.decoder_layers, shape.decoder_heads, frames, shape.head_width
            ),
        )

        def listen(count: int) -> None:
            made.features[:count].copy_(self._listen(made.samples[:count]))

        def run(layers: range, count: int) -> None:
            with attention():
                self._run_layers(made, layers, count)

        pool = self.device.pool()
        pieces = range(0, shape.encoder_layers, LAYERS_AT_ONCE)
        work = [partial(run, range(at, min(at + LAYERS_AT_ONCE, shape.encoder_layers))) for at in pieces]
        for count in range(AT_ONCE, 0, -1):  # what the first needs is enough for all
            made.listen[count] = self.device.graph(self.device.encodes, partial(listen, count), pool)
            made.run[count] = [
                self.device.graph(self.device.encodes, partial(piece, count), pool) for piece in work
            ]
        return made

    def _run_layers(self, graphs: EncoderGraphs, layers: range, count: int) -> None:
        """Run some layers of whole windows, in `graphs.hidden`, including what precedes the first and follows
        the last.
        """
        encoder, hidden = self._encoder, graphs.hidden[:count]
        if layers.start == 0:
            hidden.copy_(encoder.embedded(graphs.features[:count].transpose(1, 2)))
        x = encoder.through([encoder.layers[i] for i in layers], hidden)
        if layers.stop < len(encoder.layers):
            if x is not hidden:  # it was not added to in place
                hidden.copy_(x)
        else:
            x = x if encoder.norm is None else encoder.norm(x)
            encoder.remembered(x, graphs.memory[:count])


@contextmanager
def _room(rows: int) -> Iterator[None]:
    """Add the remedy to the error of a GPU with too little memory."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise MemoryError(
            f"the GPU is too small for max_rows={rows} of this model: {error}; build it with a smaller "
            "max_rows, or give the instance a larger GPU"
        ) from None


def _of(source: EncoderSource, made: Sequence[tuple[EncoderSource, TorchMemory]]) -> TorchMemory:
    """Return what was computed from it."""
    return next(memory for each, memory in made if same_sound(source, each))


def _loaded(shape: Shape, file: Path, device: Device, share: Share | None) -> Transformer:
    with torch.device("meta"):
        model = Transformer(part_of(shape, share.count) if share else shape)
    state = {name: tensor.to(device.dtype) for name, tensor in weights(file, device.kind, share)}
    model.load_state_dict(state, assign=True)
    del state  # or what is joined below would be there twice
    if share:
        spread(model, share)
    model.decoder.pack()
    if model.encoder is not None:
        model.encoder.pack()
    if device.fuses:
        from .fused import fuse

        fuse(model)
    return model.eval()
