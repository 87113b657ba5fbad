"""Paged attention of decoder-only models (Kwon et al. 2023): keys and values are cached in blocks.

A graph's file has ScaledDotProductAttention of the new ids' queries [new, heads, head width], keys and values
[new, key heads, head width], with a scale. What is loaded in its place also takes the caches k0, v0, k1, ...
[blocks, key heads, SIZE, head width] and where each sequence's positions are in them:

    past [sequences]: cached positions
    begins [sequences + 1]: where its new ids begin and end
    blocks: the blocks of all sequences in turn
    block_begins [sequences + 1]: where its blocks begin and end
    longest: positions of the longest sequence

The operator is OpenVINO's PagedAttentionExtension (openvino/op/paged_attention.hpp), which writes the new
ids' keys and values into the caches, and whose further inputs are for cache eviction and the like.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op
from openvino.op import _PagedAttentionExtension as PagedAttention

from conch.bundle import EngineFacts

SIZE = 32  # positions of a block: the one size that the CPU plugin supports
INDICES = ("past", "begins", "blocks", "block_begins")


def add_caches(model: ov.Model, facts: EngineFacts) -> None:
    """Put paged attention in the place of a model's attention."""
    indices = [_parameter(name, ov.Type.i32, [-1]) for name in INDICES]
    longest = _parameter("longest", ov.Type.i32, [])
    added = [*indices, longest]
    nodes = [node for node in model.get_ordered_ops() if node.get_type_name() == "ScaledDotProductAttention"]
    shape = [-1, facts.heads, SIZE, facts.head_width]
    for layer, node in enumerate(nodes):
        caches = [
            _parameter(f"{c}{layer}", ov.Type.f32 if facts.score_cap else ov.Type.dynamic, shape)
            for c in "kv"
        ]
        added += caches
        q, k, v = (_joined(node.input_value(i)) for i in range(3))
        inputs = [q, k, v, *(port.output(0) for port in (*caches, *indices)), node.input_value(4)]
        window = facts.windows[layer] if facts.windows else 0
        attention = (
            CappedAttention(inputs, facts.head_width, window, facts.score_cap)
            if facts.score_cap
            else _paged_attention(inputs, window, longest, facts)
        )
        heads = op.constant(np.array([0, -1, facts.head_width]))
        node.output(0).replace(op.reshape(attention.output(0), heads, True).output(0))
    model.add_parameters(added)
    model.validate_nodes_and_infer_types()


def _parameter(name: str, kind: ov.Type, shape: Sequence[int]) -> Any:
    made = op.parameter(ov.PartialShape(list(shape)), kind, name)
    made.output(0).get_tensor().set_names({name})
    return made


def _joined(port: ov.Output) -> ov.Output:
    """Reshape [new, heads, head width] to [new, heads * head width]."""
    return op.reshape(port, op.constant(np.array([0, -1])), True).output(0)


def _paged_attention(
    inputs: Sequence[ov.Output], window: int, longest: Any, facts: EngineFacts
) -> PagedAttention:
    def number(value: int) -> ov.Output:
        return op.constant(np.int32(value)).output(0)

    def none(kind: type, dimensions: int = 1) -> ov.Output:
        return op.constant(np.zeros([0] * dimensions, kind)).output(0)

    i32, f32 = np.int32, np.float32
    made = PagedAttention(
        [
            *inputs,
            *(number(window), none(f32), longest.output(0)),
            # Unused: score aggregation, rotation, sparse attention, sinks, eviction, token types, biases
            *(none(i32), none(i32), none(i32), none(f32), none(f32), number(0), number(0), none(f32, 4)),
            *(number(0), none(i32), none(i32), none(i32), none(i32), none(np.uint8), none(i32)),
        ]
    )
    info = made.get_rt_info()
    for c in "kv":
        info[f"{c}_head_size"], info[f"num_{c}_heads"] = facts.head_width, facts.heads
    return made


class CappedAttention(ov.Op):  # type: ignore[misc]
    """Paged attention with capped scores, in numpy: OpenVINO's operator has no cap. In float32."""

    def __init__(
        self, inputs: Sequence[ov.Output] | None = None, width: int = 0, window: int = 0, cap: float = 0.0
    ) -> None:
        super().__init__(self, inputs)
        self.width, self.window, self.cap = width, window, cap
        if inputs is not None:
            self.constructor_validate_and_infer_types()

    def validate_and_infer_types(self) -> None:
        """See ov.Op: the output is like the queries."""
        self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

    def clone_with_new_inputs(self, new_inputs: Sequence[ov.Output]) -> CappedAttention:
        return CappedAttention(new_inputs, self.width, self.window, self.cap)

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: Sequence[ov.Tensor], inputs: Sequence[ov.Tensor]) -> bool:
        """See ov.Op: compute one sequence after the other."""
        q, k, v, keys, values, past, begins, blocks, block_begins, scale = (one.data for one in inputs)
        outputs[0].shape = inputs[0].shape
        for i, start in enumerate(past):
            new = slice(begins[i], begins[i + 1])
            own = blocks[block_begins[i] : block_begins[i + 1]]
            places = np.arange(start, start + new.stop - new.start)
            first = max(0, start - self.window + 1) // SIZE if self.window else 0
            for cache, fresh in ((keys, k), (values, v)):
                cache[own[places // SIZE], :, places % SIZE] = self._heads(fresh[new])
            seen_keys, seen_values = (
                self._cached(cache[own[first:]], places[-1] + 1 - first * SIZE) for cache in (keys, values)
            )
            queries = self._heads(q[new]) * scale
            outputs[0].data[new] = self._attended(queries, seen_keys, seen_values, places - first * SIZE)
        return True

    def _heads(self, x: NDArray[Any]) -> NDArray[Any]:
        return x.reshape(len(x), -1, self.width)

    @staticmethod
    def _cached(blocks: NDArray[Any], length: int) -> NDArray[Any]:
        """Return the first positions of blocks as [key heads, length, head width]."""
        heads = blocks.swapaxes(0, 1)
        return heads.reshape(len(heads), -1, heads.shape[-1])[:, :length]

    def _attended(
        self, q: NDArray[Any], keys: NDArray[Any], values: NDArray[Any], places: NDArray[Any]
    ) -> NDArray[Any]:
        """Attend from `places` of the cached positions to all up to each: [new, heads * head width]."""
        # [key heads, sharers, new, head width]
        grouped = q.reshape(len(q), len(keys), -1, self.width).transpose(1, 2, 0, 3)
        scores = np.tanh(grouped @ keys.swapaxes(1, 2)[:, None] / self.cap) * self.cap
        back = places[:, None] - np.arange(keys.shape[1])
        hidden = (back < 0) | (back >= (self.window or len(back[0])))
        scores = np.where(hidden, np.float32(-np.inf), scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended: NDArray[Any] = (weights @ values[:, None]).transpose(2, 0, 1, 3).reshape(len(q), -1)
        return attended
