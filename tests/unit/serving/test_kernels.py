"""Kernels in Triton's language beside plain torch: on a GPU, or in Triton's interpreter on a CPU."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="this build of torch brings no Triton")

from serving.engine.torch.caches import plain_attend
from serving.engine.torch.kernels import attend

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("rows", "positions", "width"), [(1, 40, 16), (3, 300, 32), (20, 130, 64)])
@pytest.mark.parametrize("extra", [0, 1])
def test_attention_of_one_query_is_torchs(
    rows: int, positions: int, width: int, extra: int, relative: bool
) -> None:
    """Rows of all lengths, slots that are not contiguous, and NaN where nothing has been written."""
    torch.manual_seed(3)
    heads = 4
    arena = torch.randn(rows, 6, heads, positions, width, device=DEVICE)
    lengths = torch.randint(1, positions - 1, (rows,), device=DEVICE, dtype=torch.int32)
    beyond = torch.arange(positions, device=DEVICE) >= (lengths + extra)[:, None]
    q = torch.randn(rows, 1, heads, width, device=DEVICE).transpose(1, 2)
    table = torch.randn(33, heads, device=DEVICE) if relative else None
    keys, values = arena[:, 2], arena[:, 3]
    expected = plain_attend(q, keys, values, lengths, extra, 0.3, table)
    for part in (keys, values):
        part.masked_fill_(beyond[:, None, :, None], torch.nan)
    found = attend(q, keys, values, lengths, extra, 0.3, table)
    assert found.shape == (rows, heads, 1, width)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
