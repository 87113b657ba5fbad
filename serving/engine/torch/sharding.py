"""Tensor parallelism: each GPU has some heads and a part of the inner width of every layer, and the partial
results are summed (Shoeybi et al. 2019, Megatron-LM).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from serving.architectures.shape import Shape
from serving.architectures.transformer import Transformer

# Which dimension of a weight is divided, by its name; what is not named is whole everywhere.
DIVIDED = (
    (re.compile(r"\.(q|k|v|up|gate)\.(weight|bias)$"), 0),
    (re.compile(r"^encoder\.(keys|values)\.\d+\.(weight|bias)$"), 0),
    (re.compile(r"\.(out|down)\.weight$"), 1),
    (re.compile(r"\.relative\.weight$"), 1),
)
# All ranks are on one host. NCCL's multicast gains nothing for sums of a few rows, and hangs in virtual
# machines without NVIDIA's fabric manager. torch's monitor of NCCL looks into the file that ranks met by, for
# another rank that wants a dump; where the file has gone it waits for it, and closing its groups waits
# for the monitor (ProcessGroupNCCL.cpp, `HeartbeatMonitor::runLoop`; FileStore.cpp, `check`).
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


@dataclass(frozen=True)
class Share:
    """Which of `count` parts a process has, and its process groups: encoders and decoder steps run at the
    same time, so each has its own.
    """

    rank: int
    count: int
    steps: Any
    encodes: Any

    @classmethod
    def join(cls, rank: int, count: int, meeting: Path) -> Share:
        """Connect to the other ranks through the same new file, and wait for all, so that the file may be
        removed. NCCL makes each group's connections at the first sum.
        """
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        gpu = torch.cuda.is_available()
        if gpu:
            torch.cuda.set_device(rank)
        distributed.init_process_group(
            "nccl" if gpu else "gloo", init_method=f"file://{meeting}", rank=rank, world_size=count
        )
        share = cls(rank, count, distributed.group.WORLD, distributed.new_group())
        for group in (share.steps, share.encodes):
            distributed.all_reduce(torch.zeros(1, device="cuda" if gpu else "cpu"), group=group)
        if gpu:
            torch.cuda.synchronize()
        return share


class SummedLinear(nn.Module):
    """A linear layer over an inner width that is split among ranks; all get the sum, and then its bias."""

    def __init__(self, part: nn.Linear, group: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.group = part.weight, part.bias, group
        self.after = getattr(part, "after", None)

    def product(self, y: Tensor) -> Tensor:
        """Compute the sum without the bias: [..., inner / ranks] to [..., width]."""
        x = F.linear(y, self.weight)
        distributed.all_reduce(x, group=self.group)
        return x

    def forward(self, y: Tensor) -> Tensor:
        x = self.product(y)
        x = x if self.bias is None else x + self.bias
        return x if self.after is None else self.after(x)


def part_of(shape: Shape, count: int) -> Shape:
    """Return the shape of one rank's part.

    Raises:
        ValueError: heads or inner widths cannot be divided so.
    """
    names = ("encoder_heads", "encoder_inner", "decoder_heads", "decoder_inner", "key_heads")
    sizes = {name: getattr(shape, name) for name in names}
    for name, size in sizes.items():
        if size % count:
            raise ValueError(f"tp_size={count} does not divide {name}={size}; choose a smaller tp_size")
    return replace(shape, **{name: size // count for name, size in sizes.items()})


def weights(file: Path, kind: str, share: Share | None) -> Iterator[tuple[str, Tensor]]:
    """Load tensors of a safetensors file onto a device, or only a rank's part."""
    device = f"{kind}:{share.rank}" if share and kind == "cuda" else kind
    with safe_open(file, "pt", device=device) as state:
        for name in state.keys():  # noqa: SIM118  # it is no dictionary
            dimension = _divided(name) if share else None
            yield name, state.get_tensor(name) if dimension is None else _part(state, name, dimension, share)


def _divided(name: str) -> int | None:
    return next((dimension for pattern, dimension in DIVIDED if pattern.search(name)), None)


def _part(state: Any, name: str, dimension: int, share: Any) -> Tensor:
    whole = state.get_slice(name)
    size = whole.get_shape()[dimension] // share.count
    own = slice(share.rank * size, (share.rank + 1) * size)
    part: Tensor = whole[own] if dimension == 0 else whole[:, own]
    return part.contiguous()


def spread(model: Transformer, share: Share) -> None:
    """Insert sums where the parts of layers meet."""
    for part, group in ((model.encoder, share.encodes), (model.decoder, share.steps)):
        for layer in part.layers if part is not None else ():
            layer.own.out = SummedLinear(layer.own.out, group)
            layer.feed.down = SummedLinear(layer.feed.down, group)
            if layer.cross is not None:
                layer.cross.out = SummedLinear(layer.cross.out, group)
