"""What all exported decoders share: names of graph inputs, key/value caches as state, 8-bit weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from openvino import opset13 as op
from openvino._offline_transformations import apply_make_stateful_transformation


def rename(model: ov.Model, inputs: Sequence[tuple[str, list[int]]], outputs: Sequence[str]) -> None:
    """Give the ports of a traced graph names, and the inputs their (partly dynamic, -1) shapes."""
    for port, (name, shape) in zip(model.inputs, inputs, strict=True):
        port.get_node().set_partial_shape(ov.PartialShape(shape))
        port.get_tensor().set_names({name})
    for port, name in zip(model.outputs, outputs, strict=True):
        port.get_tensor().set_names({name})
    model.validate_nodes_and_infer_types()


def make_stateful(model: ov.Model, past: Sequence[str], present: Sequence[str], heads: int, width: int) -> None:
    """Turn pairs of past inputs and present outputs into variables that start empty: [batch, heads, 0, width].

    With a gather by `beam_idx` in front of the concatenation, the CPU plugin fuses cache and attention into one node.
    """
    apply_make_stateful_transformation(model, dict(zip(past, present, strict=True)))
    batch = op.gather(op.shape_of(model.input("ids").get_node().output(0), "i64"), op.constant(np.int64([0])), op.constant(0))
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
        scale = np.maximum(np.abs(weight).max(axis, keepdims=True), 1e-8) / 127  # a padding row may be all zero
        small = op.multiply(op.convert(op.constant(np.round(weight / scale).astype(np.int8)), "f32"), op.constant(scale))
        node.input(1).replace_source_output(small.output(0))
    model.validate_nodes_and_infer_types()
