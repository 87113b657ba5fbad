"""Graphs of decoders: names of their inputs, caches of keys and values, weights of 8 and 4 bits.

A decoder of an encoder output takes ids [batch, new]; positions [batch, new], if it has positions; mask
[batch, heads or 1, new, past + new] and cross mask [outputs, 1, 1, 1, length], both added to attention
scores; bias [batch or 1, vocabulary or 1], added to the logits; beam_idx [batch]; past keys and values of
each layer [batch, heads, past, head width], then those of the encoder outputs [outputs, heads, length, head
width]. Rows may share an encoder output: sharers [outputs, most] lists the rows that attend to each, padded
with any row; shares [batch] is each row's place in sharers, flattened. It returns the last id's logits
[batch, vocabulary], log(sum(exp(logits))) [batch], the last id's cross-attention in the alignment heads
[batch, heads, encoder positions] if the shape has any, and the present keys and
values, which become state.

A decoder alone takes the new ids of all rows in a row, ids [new]; rows [n, width] for ids beyond its
vocabulary, if it takes a prompt table; positions [new]; last [batch], where each row's last id is; bias as
above. It returns logits and log(sum(exp(logits))). Its caches are added when it is loaded
(serving/engine/openvino/attention.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from openvino import opset13 as op
from openvino._offline_transformations import apply_make_stateful_transformation, apply_moc_transformations
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder
from torch import Tensor, nn
from torch.nn import functional as F

from serving.architectures.transformer import Decoder

GROUP = 32  # inputs that share a scale of 4-bit weights


def traced(
    module: nn.Module, example: Any, inputs: Sequence[tuple[str, list[int]]], outputs: Sequence[str]
) -> ov.Model:
    """Trace a module by an example of its inputs. The ports of the graph are named, and the inputs have
    (partly dynamic, -1) shapes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a tracer that will go, and of sizes that it takes for constants
        decoder = TorchScriptPythonDecoder(
            module, example_input=example, trace_kwargs={"check_trace": False}
        )  # the check traces and runs everything once more
        frontend = FrontEndManager().load_by_framework("pytorch")
        model = frontend.convert(frontend.load(decoder))
    # As ov.convert_model does, without its preprocessing step, which takes most of the time and changes
    # nothing in these graphs.
    apply_moc_transformations(model, cf=False, smart_reshape=True)
    for port, (name, shape) in zip(model.inputs, inputs, strict=True):
        port.get_node().set_partial_shape(ov.PartialShape(shape))
        port.get_tensor().set_names({name})
    for port, name in zip(model.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    model.validate_nodes_and_infer_types()
    return model


def picture_graph(network: nn.Module, size: int) -> ov.Model:
    """Trace a picture encoder for any number of pictures of `size` pixels on a side: pixels [pictures, 3,
    size, size] to vectors, or to rows of the prompt table [pictures, rows, width].
    """
    example = (torch.zeros(2, 3, size, size),)
    return traced(network, example, [("pixels", [-1, 3, size, size])], ["embedding"])


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


def weights_of(model: ov.Model) -> Iterator[tuple[ov.Node, NDArray[np.float32], int]]:
    """Find matrix products with constant weights: the node, the weights, and the axis of their inputs."""
    for node in list(model.get_ops()):
        constant = node.input_value(1).get_node() if node.get_type_name() == "MatMul" else None
        if constant is not None and constant.get_type_name() == "Constant" and constant.data.ndim == 2:
            yield node, constant.data.astype(np.float32), 1 if node.get_attributes()["transpose_b"] else 0


def compress_int8(model: ov.Model) -> None:
    """Store the weights of matrix products as int8 with one scale per output channel (symmetric). Activations
    are quantized when the products are computed: serving.engine.openvino.runtime.
    """
    for node, weight, axis in weights_of(model):
        # A padding row may be all zero.
        scale = np.maximum(np.abs(weight).max(axis, keepdims=True), 1e-8) / 127
        small = op.multiply(
            op.convert(op.constant(np.round(weight / scale).astype(np.int8)), "f32"), op.constant(scale)
        )
        node.input(1).replace_source_output(small.output(0))
    model.validate_nodes_and_infer_types()


def compress_int4(model: ov.Model, vocabulary: int) -> None:
    """Store the weights of matrix products in 4 bits, with a float16 scale and a zero point for each group of
    32 inputs of an output. Products with `vocabulary` outputs, which make logits, are stored in 8 bits
    (compress_int8), as OpenVINO's own tools do, and so are those whose inputs are not a multiple of 32.
    """
    for node, weight, axis in weights_of(model):
        outputs, inputs = weight.shape
        if axis == 0 or inputs % GROUP or outputs == vocabulary:
            continue
        groups = weight.reshape(outputs, inputs // GROUP, GROUP)
        low = np.minimum(groups.min(-1, keepdims=True), 0)
        high = np.maximum(groups.max(-1, keepdims=True), 0)
        scale = np.maximum((high - low) / 15, 1e-7).astype(np.float16)
        zero = np.clip(np.round(-low / scale), 0, 15)
        small = op.subtract(
            op.convert(_four_bits(np.clip(np.round(groups / scale) + zero, 0, 15)), "f16"),
            op.convert(_four_bits(zero), "f16"),
        )
        whole = op.reshape(
            op.multiply(small, op.constant(scale)), op.constant(np.int64([outputs, inputs])), False
        )
        node.input(1).replace_source_output(op.convert(whole, "f32").output(0))
    compress_int8(model)


def compress(model: ov.Model, kind: str, vocabulary: int) -> None:
    """Store a graph's weights as "int8" or "int4", or leave them as they are ("none")."""
    if kind == "int8":
        compress_int8(model)
    elif kind == "int4":
        compress_int4(model, vocabulary)


def _four_bits(values: NDArray[np.float32]) -> ov.Node:
    """Make a constant of numbers from 0 to 15, two per byte, the first in the lower half."""
    flat, tensor = values.astype(np.uint8).ravel(), ov.Tensor(ov.Type.u4, ov.Shape(values.shape))
    tensor.data[:] = (flat[::2] | flat[1::2] << 4).reshape(tensor.data.shape)
    return op.constant(tensor, shared_memory=False)


class Stateful:
    """Caches of a traced decoder with an encoder output: past keys and values, reordered by `beam_idx`.
    `seen` is the last id's cross-attention of the (layer, head) `pairs`, [batch, heads, encoder positions]
    for each layer that has any.
    """

    def __init__(
        self,
        caches: Sequence[Tensor],
        mask: Tensor,
        cross_mask: Tensor,
        sharing: tuple[Tensor, Tensor],
        beam_idx: Tensor,
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        count = len(caches) // 2
        self.pairs, self.seen = pairs, list[Tensor]()
        self.past, self.memories, self.present = caches[:count], caches[count:], list[Tensor]()
        self.mask, self.cross_mask, self.beam_idx = mask, cross_mask, beam_idx
        self.sharers, self.shares = sharing

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        keys = self._extended(self.past[2 * layer], k)
        values = self._extended(self.past[2 * layer + 1], v)
        self.present += [keys, values]
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=self.mask, scale=scale)

    def memory(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """See Caches. Written out: measured faster than the fused operator on memory that arrives as an
        input. Rows that share a memory are products of their own in turn, which find it in the CPU's caches:
        of twelve rows and four memories four times as fast as with a memory for each row
        (docs/benchmarks/real-speech.md).
        """
        keys, values = (tensor.unsqueeze(2) for tensor in self.memories[2 * layer : 2 * layer + 2])
        q = q if scale == 1.0 else q * scale
        grouped = q[self.sharers].transpose(1, 2)  # [memories, heads, most, new, head width]
        weights = torch.softmax(grouped @ keys.transpose(-1, -2) + self.cross_mask, -1)
        if heads := [head for at, head in self.pairs if at == layer]:
            self.seen.append(self._by_row(weights[..., -1, :].index_select(1, torch.tensor(heads))))
        return self._by_row(weights @ values)

    def _by_row(self, grouped: Tensor) -> Tensor:
        """Gather [outputs, heads, most, ...] to [batch, heads, ...]."""
        return grouped.transpose(1, 2).flatten(0, 1)[self.shares]

    def _extended(self, past: Tensor, new: Tensor) -> Tensor:
        return torch.cat([past.index_select(0, self.beam_idx), new], 2)


class AttentionPlaceholder:
    """Attention of each id's heads among themselves, which paged attention replaces when the graph is loaded:
    OpenVINO's files cannot hold that operator.
    """

    def own(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        q, k, v = (part.squeeze(2) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, scale=scale).unsqueeze(2)

    def memory(self, layer: int, q: Tensor, scale: float) -> Tensor:
        """Raise: there is no encoder output."""
        raise NotImplementedError


class DecoderStep(nn.Module):
    """One step of a decoder as a function of tensors alone."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, ids: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        shape = self.decoder.shape
        positions, rest = (rest[0], rest[1:]) if shape.targets else (None, rest)
        mask, cross_mask, sharers, shares, bias, beam_idx, *tensors = rest
        caches = Stateful(tensors, mask, cross_mask, (sharers, shares), beam_idx, shape.alignment_heads)
        x = self.decoder(ids, positions, caches)
        logits = self.decoder.logits(x[:, -1]) + bias
        seen = [torch.cat(caches.seen, 1)] if caches.seen else []
        return (logits, torch.logsumexp(logits, -1), *seen, *caches.present)


class DecoderOnlyStep(DecoderStep):
    """One step of a decoder-only model, for the new ids of all rows."""

    def forward(self, ids: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        *table, positions, last, bias = rest
        x = self.decoder(
            ids[:, None], positions[:, None], AttentionPlaceholder(), table=table[0] if table else None
        )
        logits = self.decoder.logits(x[:, 0][last]) + bias
        return logits, torch.logsumexp(logits, -1)


def memories(layers: int) -> list[str]:
    """Return the names of an encoder output's keys and values."""
    return [f"memory.{c}{i}" for i in range(layers) for c in "kv"]


def decoder_graph(decoder: Decoder) -> ov.Model:
    """Trace one decoder step."""
    decoder.pack()
    if decoder.shape.encoder_layers:
        return _stateful_graph(decoder)
    shape, zeros = decoder.shape, torch.zeros(3, dtype=torch.long)
    ports = [
        ("ids", [-1], zeros),
        *([("table", [-1, shape.width], torch.zeros(4, shape.width))] if shape.prompt_table else []),
        ("positions", [-1], zeros),
        ("last", [-1], zeros[:1]),
        ("bias", [-1, -1], torch.zeros(1, 1)),
    ]
    example = tuple(example for _, _, example in ports)
    return traced(DecoderOnlyStep(decoder), example, [port[:2] for port in ports], ["logits", "log_sum"])


def _stateful_graph(decoder: Decoder) -> ov.Model:
    """Trace one step of a decoder with an encoder output and turn its self-attention caches into state."""
    shape = decoder.shape
    heads, width = shape.cached_heads, shape.head_width
    cache = [f"{c}{i}" for i in range(shape.decoder_layers) for c in "kv"]
    batch, past, length, masks = 2, 3, 10, heads if shape.relative else 1
    indices = torch.arange(batch, dtype=torch.int32)
    ports: list[tuple[str, list[int], Tensor]] = [
        ("ids", [-1, -1], torch.zeros(batch, 1, dtype=torch.long)),
        *([("positions", [-1, -1], torch.zeros(batch, 1, dtype=torch.long))] if shape.targets else []),
        ("mask", [-1, masks, -1, -1], torch.zeros(batch, masks, 1, past + 1)),
        ("cross_mask", [-1, 1, 1, 1, -1], torch.zeros(1, 1, 1, 1, length)),
        ("sharers", [-1, -1], indices[None]),
        ("shares", [-1], indices),
        ("bias", [-1, -1], torch.zeros(1, 1)),
        ("beam_idx", [-1], indices),
    ]
    cached = [(f"past.{name}", torch.randn(batch, heads, past, width)) for name in cache]
    cached += [(f"memory.{name}", torch.randn(1, heads, length, width)) for name in cache]
    ports += [(name, [-1, heads, -1, width], tensor) for name, tensor in cached]
    seen = ["cross_attention"] if shape.alignment_heads else []
    outputs = ["logits", "log_sum", *seen, *(f"present.{name}" for name in cache)]
    example = tuple(example for _, _, example in ports)
    graph = traced(DecoderStep(decoder), example, [port[:2] for port in ports], outputs)
    make_stateful(
        graph, [f"past.{name}" for name in cache], [f"present.{name}" for name in cache], heads, width
    )
    return graph
