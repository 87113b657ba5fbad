"""Functions of rows and of the decoder's output for the running batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from serving.architectures.transformer import Decoder

from ..runtime import Row
from ..sampling import Sampling
from .choosing import simple

LIKELIEST = Sampling(max_tokens=1, end_id=-1)


def scored(decoder: Decoder, x: Tensor, out: Tensor | None = None) -> Tensor:
    """Compute logits float32 [rows, vocabulary] of x [rows, width], into `out` if given; half-precision
    products are summed and stored in float32.
    """
    logits, cap = _scored(decoder.head, x, out), decoder.shape.logit_cap
    return logits.div_(cap).tanh_().mul_(cap) if cap else logits


def _scored(head: Any, x: Tensor, out: Tensor | None) -> Tensor:
    if not x.is_cuda or x.dtype == torch.float32:
        logits = head(x).float()
        return logits if out is None else out.copy_(logits)
    if out is None:
        out = torch.empty(len(x), head.weight.shape[0], dtype=torch.float32, device=x.device)
    from .kernels import alone, product

    if alone(x, head.weight):
        return product(x, head.weight, head.bias, out=out)
    torch.mm(x, head.weight.t(), out_dtype=torch.float32, out=out)
    return out if head.bias is None else out.add_(head.bias)


def in_order(rows: Sequence[Row], old: Sequence[int], fresh: Sequence[int]) -> list[int]:
    """Return the slots of all rows, from those that ran and those that join."""
    running, joining = iter(old), iter(fresh)
    return [next(joining) if row.parent is None else next(running) for row in rows]


def numbered(rows: Sequence[Row], vocabulary: int) -> tuple[NDArray[np.int64], NDArray[Any] | None]:
    """Return ids of prompts, [rows, longest] padded with zeros, and the tables of all rows joined, [n,
    prompt_width], if there are any: ids from the vocabulary's end on are shifted to where their row's table
    starts.
    """
    ids, tables, before = np.zeros((len(rows), max(len(row.ids) for row in rows)), np.int64), [], 0
    for line, row in zip(ids, rows, strict=True):
        own = np.array(row.ids, np.int64)
        line[: len(own)] = np.where(own < vocabulary, own, own + before)
        if row.table is not None:
            tables.append(row.table)
            before += len(row.table)
    return ids, np.concatenate(tables) if tables else None


def is_plain(row: Row) -> bool:
    """Tell whether a graph can read its prompt."""
    return row.table is None and (row.choice is None or simple(row.choice))


def biased(row: Row) -> Sampling:
    """Return the likeliest id under its bias of a row that the host chooses for."""
    return Sampling(max_tokens=1, end_id=-1, bias=row.bias) if row.bias is not None else LIKELIEST
