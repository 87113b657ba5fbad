"""What all exported decoders share: names of graph inputs, key/value caches as state, 8-bit weights, tensors
split into heads.

A decoder module's forward takes ids [batch, new]; positions [batch, new] unless it has none; mask [batch,
heads or 1, new, past + new] and, with a memory, cross mask [batch, 1, 1, memory], both added to attention
scores; bias [batch or 1, vocabulary or 1], added to the logits; beam_idx [batch]; past, then memory keys and
values of each layer [batch, heads, length, head width]. It returns logits of the last id [batch, vocabulary],
log(sum(exp(logits))) [batch], and the present keys and values.

A decoder without a memory reads long prompts. Its caches stay inputs, kept by the server in slots of a length
of their own: no beam_idx, and the keys and values that it returns are those of the new ids alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import openvino as ov
import torch
from openvino import opset13 as op
from openvino._offline_transformations import apply_make_stateful_transformation
from torch import Tensor, nn


def rename(model: ov.Model, inputs: Sequence[tuple[str, list[int]]], outputs: Sequence[str]) -> None:
    """Give the ports of a traced graph names, and the inputs their (partly dynamic, -1) shapes."""
    for port, (name, shape) in zip(model.inputs, inputs, strict=True):
        port.get_node().set_partial_shape(ov.PartialShape(shape))
        port.get_tensor().set_names({name})
    for port, name in zip(model.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    model.validate_nodes_and_infer_types()


def make_stateful(
    model: ov.Model, past: Sequence[str], present: Sequence[str], heads: int, width: int
) -> None:
    """Turn pairs of past inputs and present outputs into variables that start empty: [batch, heads, 0,
    width].

    With a gather by `beam_idx` in front of the concatenation, the CPU plugin fuses cache and attention into
    one node.
    """
    apply_make_stateful_transformation(model, dict(zip(past, present, strict=True)))
    batch = op.gather(
        op.shape_of(model.input("ids").get_node().output(0), "i64"),
        op.constant(np.int64([0])),
        op.constant(0),
    )
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            shape = op.concat([batch, op.constant(np.int64([heads, 0, width]))], 0)
            node.set_arguments([op.broadcast(op.constant(np.float32(0)), shape).output(0)])
    model.validate_nodes_and_infer_types()


def compress_int8(model: ov.Model) -> None:
    """Store the weights of matrix products as int8 with one scale per output channel (symmetric)."""
    for node in list(model.get_ops()):
        constant = node.input_value(1).get_node() if node.get_type_name() == "MatMul" else None
        if constant is None or constant.get_type_name() != "Constant" or constant.data.ndim != 2:
            continue
        weight = constant.data.astype(np.float32)
        axis = 1 if node.get_attributes()["transpose_b"] else 0
        scale = (
            np.maximum(np.abs(weight).max(axis, keepdims=True), 1e-8) / 127
        )  # a padding row may be all zero
        small = op.multiply(
            op.convert(op.constant(np.round(weight / scale).astype(np.int8)), "f32"), op.constant(scale)
        )
        node.input(1).replace_source_output(small.output(0))
    model.validate_nodes_and_infer_types()


@dataclass(frozen=True)
class Shape:
    """Of a decoder: layers, attention heads and their width; whether it attends to a memory, whether it takes
    positions, and whether its mask differs from head to head (relative position bias).
    """

    layers: int
    heads: int
    head_width: int
    memory: bool = True
    positions: bool = True
    mask_per_head: bool = False


def decoder_graph(module: nn.Module, shape: Shape) -> ov.Model:
    """Trace one decoder step and, if it has a memory, turn its self-attention caches into state."""
    heads, width = shape.heads, shape.head_width
    cache = [f"{c}{i}" for i in range(shape.layers) for c in "kv"]
    batch, past, memory, masks = 2, 3, 10, heads if shape.mask_per_head else 1
    kinds = ("past", "memory") if shape.memory else ("past",)
    example = [torch.zeros(batch, 1, dtype=torch.long)] * (2 if shape.positions else 1)
    example += [
        torch.zeros(batch, masks, 1, past + 1),
        *([torch.zeros(batch, 1, 1, memory)] if shape.memory else []),
    ]
    example += [torch.zeros(1, 1), *([torch.arange(batch, dtype=torch.int32)] if shape.memory else [])]
    example += [
        torch.randn(batch, heads, past if kind == "past" else memory, width) for kind in kinds for _ in cache
    ]
    graph = ov.convert_model(module, example_input=tuple(example))
    inputs = [
        ("ids", [-1, -1]),
        *([("positions", [-1, -1])] if shape.positions else []),
        ("mask", [-1, masks, -1, -1]),
    ]
    inputs += [
        *([("cross_mask", [-1, 1, 1, -1])] if shape.memory else []),
        ("bias", [-1, -1]),
        *([("beam_idx", [-1])] if shape.memory else []),
    ]
    inputs += [(f"{kind}.{name}", [-1, heads, -1, width]) for kind in kinds for name in cache]
    rename(graph, inputs, ["logits", "log_sum", *(f"present.{name}" for name in cache)])
    if shape.memory:
        make_stateful(
            graph, [f"past.{name}" for name in cache], [f"present.{name}" for name in cache], heads, width
        )
    return graph


def split(x: Tensor, heads: int) -> Tensor:
    """[batch, time, width] -> [batch, heads, time, width / heads]."""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """The inverse of split."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def extended(past: Tensor, new: Tensor, beam_idx: Tensor) -> Tensor:
    """A cache that continues the rows of `beam_idx`, with what is new behind it."""
    return torch.cat([past.index_select(0, beam_idx), new], 2)


def attended(q: Tensor, past: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
    """Attention to past and new (keys, values), apart: joining them would copy the whole past at every step.
    `q` is scaled already.
    """
    scores = torch.cat([q @ past[0].transpose(-1, -2), q @ new[0].transpose(-1, -2)], -1) + mask
    weights, count = torch.softmax(scores, -1), past[0].shape[2]
    return weights[..., :count] @ past[1] + weights[..., count:] @ new[1]


def looked_up(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention to a memory. Written out: measured faster than the fused operator on memory that arrives as
    an input.
    """
    return torch.softmax(q @ keys.transpose(-1, -2) + mask, -1) @ values


def scored(logits: Tensor, present: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A decoder's outputs."""
    return (logits, torch.logsumexp(logits, -1), *present)
