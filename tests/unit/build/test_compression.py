"""Weights of the OpenVINO engine in 8 and 4 bits."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from build.targets.openvino.stateful import compress

pytestmark = pytest.mark.slow  # imports torch
VOCABULARY = 50


def graph(outputs: int, inputs: int) -> tuple[ov.Model, np.ndarray]:
    """One product with random weights [outputs, inputs]."""
    weights = np.random.default_rng(1).standard_normal((outputs, inputs)).astype(np.float32)
    x = op.parameter([-1, inputs], np.float32)
    return ov.Model([op.matmul(x, op.constant(weights), False, True)], [x]), weights


@pytest.mark.parametrize(
    ("kind", "outputs", "inputs", "bits", "error"),
    [
        ("none", 40, 96, 32, 1e-6),
        ("int8", 40, 96, 8, 0.015),
        ("int4", 40, 96, 4, 0.12),
        ("int4", VOCABULARY, 96, 8, 0.015),  # logits
        ("int4", 40, 95, 8, 0.015),  # no groups of 32
    ],
)
def test_weights(kind: str, outputs: int, inputs: int, bits: int, error: float) -> None:
    model, weights = graph(outputs, inputs)
    compress(model, kind, VOCABULARY)
    sizes = [
        node.get_element_type().bitwidth
        for node in model.get_ops()
        if node.get_type_name() == "Constant" and node.get_element_type() != ov.Type.i64
    ]
    assert min(sizes) == bits
    x = np.random.default_rng(2).standard_normal((200, inputs)).astype(np.float32)
    precise = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    found = ov.compile_model(model, "CPU", precise)(x)[0]
    wanted = x @ weights.T
    assert np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)) < error


def test_a_row_of_zeros() -> None:
    """What pads a vocabulary stays zero."""
    weights = np.zeros((4, 64), np.float32)
    x = op.parameter([-1, 64], np.float32)
    for kind in ("int8", "int4"):
        model = ov.Model([op.matmul(x, op.constant(weights), False, True)], [x])
        compress(model, kind, VOCABULARY)
        assert not ov.compile_model(model, "CPU")(np.ones((1, 64), np.float32))[0].any()
