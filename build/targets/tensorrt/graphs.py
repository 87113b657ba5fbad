"""Export serving/architectures as ONNX graphs for TensorRT: ids as int32, pixels in the precision of the
weights, vectors as float32, tensors named as in Triton's models, any number of rows.

Precision is stated in the graph and trtexec is told to keep it (`--stronglyTyped`), so a plan computes what
onnxruntime computes, apart from the order of sums.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from .quantize import Quantized

OPSET = 17  # the first with LayerNormalization, whose sums TensorRT keeps in float32 (its `stash_type`)
QUANTIZED_OPSET = 19  # the first whose QuantizeLinear takes float16
VECTOR = "embedding"


class TooLarge(ValueError):
    """Weights that half precision cannot hold; the message gives the remedy."""


@dataclass(frozen=True)
class Graph:
    """One encoder. `inputs` maps each name to an example and a shape, -1 where sizes may differ; `dimensions`
    is the size of the vector for one row.
    """

    name: str
    module: nn.Module
    inputs: Mapping[str, tuple[Tensor, tuple[int, ...]]]
    dimensions: int


class Texts(nn.Module):
    """Map int32 `input_ids` and `attention_mask` [texts, n] to float32 [texts, dimensions]. A plan cannot
    refuse ids outside the vocabulary, and reading outside the table would crash the server: such ids are
    clamped to the nearest valid one.
    """

    def __init__(self, encoder: nn.Module, vocabulary: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("first", torch.zeros(1, dtype=torch.int32))
        self.register_buffer("last", torch.full((1,), vocabulary - 1, dtype=torch.int32))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """See the class. Uses minima and maxima, since TensorRT's parser does not take Clip for integers."""
        ids = torch.minimum(torch.maximum(input_ids, self.first), self.last)
        found: Tensor = self.encoder(ids, attention_mask)
        return found


def texts(name: str, encoder: nn.Module, vocabulary: int, dimensions: int) -> Graph:
    """Make the graph of a text encoder."""
    example = torch.ones(2, 5, dtype=torch.int32)
    inputs = dict.fromkeys(("input_ids", "attention_mask"), (example, (-1, -1)))
    return Graph(name, Texts(encoder, vocabulary), inputs, dimensions)


def pictures(name: str, encoder: nn.Module, size: int, dimensions: int, dtype: torch.dtype) -> Graph:
    """Make the graph of a picture encoder: `pixel_values` [pictures, 3, size, size] in its precision to
    float32 [pictures, dimensions].
    """
    inputs = {"pixel_values": (torch.zeros(2, 3, size, size, dtype=dtype), (-1, 3, size, size))}
    return Graph(name, encoder, inputs, dimensions)


def lowered(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert the model to another precision.

    Raises:
        TooLarge: a weight is beyond its range.
    """
    made = model.to(dtype)
    for name, weight in made.state_dict().items():
        if not torch.isfinite(weight).all():
            raise TooLarge(f'{name} is beyond the range of {dtype}; set precision = "float32" in the catalog')
    return made


def attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, *, is_causal: bool = False
) -> Tensor:
    """Compute PyTorch's scaled_dot_product_attention in plain operators of one precision: PyTorch's own
    export inserts float32 into half precision where it makes a causal mask.
    """
    scores = (q * int(q.shape[-1]) ** -0.5) @ k.transpose(-1, -2)
    if is_causal:
        places = torch.arange(scores.shape[-1])
        scores = scores.masked_fill(places[None] > places[:, None], float("-inf"))
    if attn_mask is not None:
        scores = scores + attn_mask
    return torch.softmax(scores, -1) @ v


class PlainAttention(TorchFunctionMode):
    """While entered, replaces the architectures' attention with `attention`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        called = attention if func is functional.scaled_dot_product_attention else func
        return called(*args, **(kwargs or {}))


def _read_constants_directly(graph: onnx.GraphProto) -> None:
    """Remove the Identity nodes that the exporter puts between equal constants and their readers: TensorRT's
    Identity takes no INT8.
    """
    constants = {weight.name for weight in graph.initializer}
    copies = [node for node in graph.node if node.op_type == "Identity" and node.input[0] in constants]
    originals = {node.output[0]: node.input[0] for node in copies}
    for node in copies:
        graph.node.remove(node)
    for node in graph.node:
        node.input[:] = [originals.get(name, name) for name in node.input]


def save(graph: Graph, path: Path) -> None:
    """Trace a graph, check its types and shapes, and write it."""
    examples = tuple(example for example, _ in graph.inputs.values())
    quantized = any(isinstance(layer, Quantized) for layer in graph.module.modules())
    free = {
        name: {axis: f"{name}_{axis}" if axis else "rows" for axis, size in enumerate(shape) if size == -1}
        for name, (_, shape) in graph.inputs.items()
    }
    with torch.no_grad(), PlainAttention(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a tracer that will go, and of sizes that it takes for constants
        torch.onnx.export(
            graph.module,
            examples,
            str(path),
            dynamo=False,  # the other one wants onnxscript, and makes the same of these networks
            opset_version=QUANTIZED_OPSET if quantized else OPSET,
            input_names=list(graph.inputs),
            output_names=[VECTOR],
            dynamic_axes={**free, VECTOR: {0: "rows"}},
        )
    made = onnx.load(path)
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_value = graph.dimensions
    if quantized:
        _read_constants_directly(made.graph)
    onnx.checker.check_model(made, full_check=True)
    onnx.save(made, path)
