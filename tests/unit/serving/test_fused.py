"""Fused layers compared with plain ones, their kernels on a GPU or in Triton's interpreter on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton", reason="this build of torch brings no Triton")

from serving.architectures.shape import Shape
from serving.architectures.transformer import Transformer
from serving.engine.torch.fused import fuse

pytestmark = pytest.mark.slow  # torch, and Triton's interpreter

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DECODER = Shape("gpt2", 32, 16, 90, decoder_layers=2, decoder_heads=2, decoder_inner=48, targets=20)
BOTH = replace(DECODER, encoder_layers=1, encoder_heads=2, encoder_inner=48, sources=20)
RMS: dict[str, Any] = {"norm": "rms", "bias": False, "targets": 0, "sources": 0}
GATED = replace(DECODER, norm="rms", bias=False, gated=True, rotary=True, key_heads=1)
SHAPES = {
    "norms first, GELU": replace(DECODER, activation="gelu_new"),
    "norms behind, GELU": replace(BOTH, norm_first=False, embedding_norm=True),
    "norms behind, ReLU": replace(BOTH, norm_first=False, activation="relu"),
    "ReLU": replace(BOTH, **RMS, activation="relu", relative=8),
    "gated GELU": replace(BOTH, **RMS, activation="gelu_new", gated=True, relative=8),
    "gated SiLU": replace(GATED, activation="silu"),
    "norms of heads, biases of queries": replace(GATED, activation="silu", head_norm=True, qkv_bias=True),
    "norms of what is added, two rotary tables": replace(
        GATED, activation="gelu_new", post_norms=True, layer_turns=(1, 0), embedding_scale=2.0
    ),
}


class Reads:
    """Caches of a decoder that reads whole texts; `memory` of the encoder, layer by layer."""

    def __init__(self, memory: Tensor | None) -> None:
        self.parts = memory

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)

    def memory(self, layer: int, q: Tensor, scale: float) -> Tensor:
        assert self.parts is not None
        keys, values = self.parts[:, 2 * layer], self.parts[:, 2 * layer + 1]
        return F.scaled_dot_product_attention(q, keys, values, scale=scale)


def said(model: Transformer, texts: int, length: int) -> list[Tensor]:
    """What its parts make of texts."""
    ids = torch.arange(texts * length, device=DEVICE).view(texts, length) % 90
    memory = None
    places = torch.arange(length, device=DEVICE)
    if model.encoder is not None:
        memory = model.encoder.memory(ids, places < torch.tensor([[length], [2]], device=DEVICE)[:texts])
    return [
        model.decoder(ids, places.expand(texts, length), Reads(memory)),
        *([] if memory is None else [memory]),
    ]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.mark.parametrize(("texts", "length"), [(1, 1), (2, 7)])
@pytest.mark.parametrize("name", SHAPES)
def test_fused_layers_are_plain_ones(name: str, texts: int, length: int) -> None:
    """Of one row, and of more than `product` takes."""
    torch.manual_seed(3)
    model = Transformer(SHAPES[name]).to(DEVICE)
    for tensor in model.parameters():
        tensor.copy_(torch.randn_like(tensor) * 0.3)
    model.decoder.pack()
    if model.encoder is not None:
        model.encoder.pack()
    other = copy.deepcopy(model)
    fuse(other)
    for found, expected in zip(said(other, texts, length), said(model, texts, length), strict=True):
        assert expected.std() > 0.1
        torch.testing.assert_close(found, expected, atol=3e-3, rtol=3e-3)
