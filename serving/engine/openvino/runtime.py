"""OpenVINO graphs of one engine folder: an encoder, a decoder, and the tensors between them."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino.preprocess import PrePostProcessor

from conch.bundle import EngineFacts

from ..runtime import Floats, RunningBatch
from ..sampling import Sampling
from .attention import add_caches

KERNELS = 32
# Where weights are int8, activations are rounded by groups of so many numbers: in MiniLM 32 keeps a cosine of
# 0.998 and more, 128 is a quarter faster and loses 0.002 of it; Whisper: docs/benchmarks/int8-cpu.md.
GROUP = 32
# Memories that no text uses any more: so many at least and at most, and between them so many bytes.
REMEMBERED, REMEMBERED_MOST, REMEMBERED_BYTES = 8, 32, 512 << 20
AMD = "AuthenticAMD"


@dataclass(frozen=True)
class OpenVinoMemory:
    """An encoder output: keys and values per layer, as bit patterns [heads, length, head width]. `key` is a
    hash of the input.
    """

    parts: tuple[NDArray[Any], ...]
    length: int
    key: bytes = b""

    @property
    def size(self) -> int:
        """Return its size in bytes."""
        return sum(part.nbytes for part in self.parts)

    @property
    def failed(self) -> Exception | None:
        """See runtime.Memory: `encode` raises what goes wrong."""
        return None

    def ready(self, *, wait: bool = False) -> bool:
        """See runtime.Memory: encoders are waited for."""
        return True


@cache
def this_cpu() -> frozenset[str]:
    """Return vendor and flags of this machine's CPU with all other words of /proc/cpuinfo; empty on other
    systems.
    """
    cpuinfo = Path("/proc/cpuinfo")
    return frozenset(cpuinfo.read_text().split() if cpuinfo.exists() else ())


def hardware_precision(cpu: Set[str], *, many_rows: bool) -> str:
    """Return the precision that a CPU is faster in, "bf16" or "f32"; `cpu` is from `this_cpu`. `many_rows` is
    for encoders, as opposed to decoder steps.

    Few rows are limited by the weights' bytes, which bf16 halves. Many rows are limited by multiplications,
    which AMX speeds up in bf16, as does AVX-512 on AMD's cores; on Intel's without AMX, f32 is 1.8 times as
    fast (docs/benchmarks/bf16-cpu.md).
    """
    fast = "amx_bf16" in cpu or ("avx512_bf16" in cpu and (AMD in cpu or not many_rows))
    return "bf16" if fast else "f32"


def compile_settings(precision: str) -> dict[str, Any]:
    """Return OpenVINO's settings for a graph that computes in `precision`."""
    return {
        "INFERENCE_PRECISION_HINT": precision,
        # The default cache of keys and values is 8 bits wide and costs accuracy even at f32.
        "KV_CACHE_PRECISION": precision,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
        "ENABLE_CPU_PINNING": False,
        # Kernels are cached by shape, and every step of a decoder is a new one: with the default capacity
        # memory grew for hours. 32 cost no CPU time a token (docs/benchmarks/real-speech.md).
        "CPU_RUNTIME_CACHE_CAPACITY": KERNELS,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP,
    }


class OpenVinoRuntime:
    """The compiled encoder and decoder of one engine folder."""

    def __init__(self, folder: Path, precision: str | None = None) -> None:
        self.facts = EngineFacts.load(folder)
        encoder_precision = precision or hardware_precision(this_cpu(), many_rows=True)
        decoder_precision = precision or hardware_precision(this_cpu(), many_rows=False)
        if self.facts.score_cap:  # computed in numpy, which has no bf16
            decoder_precision = "f32"
        self.precision = f"encoder {encoder_precision}, decoder {decoder_precision}"  # for people
        self.memory_type = ov.Type.bf16 if decoder_precision == "bf16" else ov.Type.f32
        core = ov.Core()
        encoding, settings = compile_settings(encoder_precision), compile_settings(decoder_precision)
        decoder = self._typed(core.read_model(folder / "decoder.xml"))
        if not self.facts.encodes:
            add_caches(decoder, self.facts)
        self.decoder = core.compile_model(decoder, "CPU", settings)
        has_encoder = (folder / "encoder.xml").exists()
        self.encoder = (
            core.compile_model(self._typed(core.read_model(folder / "encoder.xml")), "CPU", encoding)
            if has_encoder
            else None
        )
        self.encoding = self.encoder.create_infer_request() if self.encoder else None
        self._inputs = {name for port in self.decoder.inputs for name in port.get_names()}
        bias = folder / "relative_bias.npy"
        self.relative_bias: Floats | None = (
            np.load(bias) if bias.exists() else None
        )  # [heads, distance]; the last distance stands for all beyond
        self._living: WeakValueDictionary[bytes, OpenVinoMemory] = WeakValueDictionary()
        self._recent: OrderedDict[bytes, OpenVinoMemory] = OrderedDict()
        if self.encoder and not self.facts.mels:
            # If the first text that BART's bf16 encoder reads has a single id, it gives NaN for every longer
            # one (seen with OpenVINO 2026.4.1).
            self._encode(np.full(16, self.facts.pad_id, np.int64))

    def _typed(self, model: ov.Model) -> ov.Model:
        """Set the graphs' keys and values to the precision they compute in; f32 would be converted at every
        step.
        """
        steps = PrePostProcessor(model)
        for port in model.inputs:
            if port.get_any_name().startswith("memory."):
                steps.input(port.get_any_name()).tensor().set_element_type(self.memory_type)
        for port in model.outputs:
            if port.get_any_name().startswith("memory."):
                steps.output(port.get_any_name()).tensor().set_element_type(self.memory_type)
            if port.get_any_name() == "cross_attention":  # numpy takes 30 ms for what underflows
                steps.output("cross_attention").tensor().set_element_type(ov.Type.f16)
        return steps.build()

    def batch(self) -> RunningBatch:
        """See Runtime: of the kind that the decoder is made for."""
        from .paged import PagedBatch
        from .timeline import TimelineBatch

        return TimelineBatch(self) if self.facts.encodes else PagedBatch(self)

    def close(self) -> None:
        """See Runtime: nothing is left."""

    def chooses(self, sampling: Sampling) -> bool:
        """See Runtime: the likeliest id is known."""
        return sampling.plain

    def prepare(self, source: NDArray[Any]) -> NDArray[Any]:
        return source

    def encode(self, sources: Sequence[NDArray[Any]]) -> list[OpenVinoMemory]:
        """See Runtime. One after the other: on a CPU that is as fast. The same sound again is free: while
        its text is made, and for a few others after it.
        """
        return [self._encode(source) for source in sources]

    def _encode(self, source: NDArray[Any]) -> OpenVinoMemory:
        assert self.encoding is not None
        key = hashlib.blake2b(source.tobytes(), digest_size=16).digest()
        if (known := self._living.get(key)) is not None:
            return self.remember(known)
        sound = source.ndim == 2
        self.encoding.infer(
            {"features": np.ascontiguousarray(source.T, dtype=np.float32)[None]}
            if sound
            else {"ids": source[None]}
        )
        parts = tuple(
            bits(self.encoding.get_output_tensor(i))[0].copy() for i in range(2 * self.facts.layers)
        )
        self._living[key] = made = OpenVinoMemory(parts, parts[0].shape[1], key)
        return made

    def remember(self, memory: OpenVinoMemory) -> OpenVinoMemory:
        """Keep an unused encoder output in the cache until enough others were used after it. A new one is not
        cached: its own text holds it, and what is transcribed again is a text that has ended.
        """
        self._recent[memory.key] = memory
        self._recent.move_to_end(memory.key)
        while len(self._recent) > REMEMBERED and (
            len(self._recent) > REMEMBERED_MOST
            or sum(one.size for one in self._recent.values()) > REMEMBERED_BYTES
        ):
            self._recent.popitem(last=False)
        return memory

    def takes(self, name: str) -> bool:
        """Tell whether the decoder has an input of this name."""
        return name in self._inputs


def bits(tensor: ov.Tensor) -> NDArray[Any]:
    """Return a view of a tensor's memory as numpy array of the same shape; bf16, which numpy lacks, as uint16
    bit patterns.
    """
    data: NDArray[Any] = tensor.data
    return data.view(np.uint16) if tensor.element_type == ov.Type.bf16 else data
