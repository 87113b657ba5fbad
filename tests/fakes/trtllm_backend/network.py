"""The arithmetic of the stand-in: OpenVINO graphs of a miniature, whose ports
build/targets/openvino/stateful.py describes. One sequence at a time.
"""

import json
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as op

MASKED = np.float32(-1e9)


def input_of(model, name, shape):
    made = op.parameter(ov.PartialShape(shape), ov.Type.f32)
    made.output(0).set_names({name})
    model.add_parameters([made])
    return made


def with_past(model):
    """A decoder alone whose attention [new, heads, width] also reads past.* [past, heads, width] and gives
    present.*, instead of pages.
    """
    mask = input_of(model, "mask", [1, -1, -1])
    attentions = [one for one in model.get_ordered_ops() if "DotProductAttention" in one.get_type_name()]
    for layer, node in enumerate(attentions):
        _, heads, _ = node.input_value(0).partial_shape
        _, kept, width = node.input_value(1).partial_shape
        sharing = np.repeat(np.arange(kept.get_length()), heads.get_length() // kept.get_length())
        parts = [node.input_value(0)]
        for i, name in enumerate((f"k{layer}", f"v{layer}")):
            past = input_of(model, f"past.{name}", [-1, kept, width])
            whole = op.concat([past, node.input_value(i + 1)], 0)
            present = op.result(whole)
            present.output(0).set_names({f"present.{name}"})
            model.add_results([present])
            parts.append(op.gather(whole, op.constant(sharing), op.constant(1)))
        swap = op.constant(np.array([1, 0, 2]))
        parts = [op.transpose(part, swap) for part in parts]
        seen = op.scaled_dot_product_attention(*parts, mask, node.input_value(4))
        node.output(0).replace(op.transpose(seen, swap).output(0))
    model.validate_nodes_and_infer_types()


class Network:
    """An encoder, if there is one, and a decoder, in float32."""

    def __init__(self, folder):
        facts = json.loads((Path(folder) / "engine.json").read_text())
        self.layers, self.heads, self.width = facts["layers"], facts["heads"], facts["head_width"]
        self.vocabulary, self.sound = facts["vocabulary"], facts["mels"] > 0
        core, settings = (
            ov.Core(),
            {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "PERFORMANCE_HINT": "LATENCY"},
        )
        decoder = core.read_model(Path(folder) / "decoder.xml")
        if not facts["encoder_positions"]:
            with_past(decoder)
        self.decoder = core.compile_model(decoder, "CPU", settings)
        self.ports = {name for port in self.decoder.inputs for name in port.get_names()}
        encoder = Path(folder) / "encoder.xml"
        self.encoder = (
            core.compile_model(str(encoder), "CPU", settings).create_infer_request()
            if encoder.exists()
            else None
        )
        relative = Path(folder) / "relative_bias.npy"
        self.relative = np.load(relative) if relative.exists() else None
        self.prompt_width, self.idle = facts.get("prompt_width", 0), []

    def encode(self, request):
        """Keys and values of each layer [1, heads, length, width]."""
        if self.encoder is None:
            return {}
        source = (
            {"features": np.ascontiguousarray(request.features.T)[None]}
            if self.sound
            else {"ids": np.array([request.encoder_tokens], np.int64)}
        )
        self.encoder.infer(source)
        names = [f"memory.{c}{i}" for i in range(self.layers) for c in "kv"]
        return {name: self.encoder.get_output_tensor(n).data.copy() for n, name in enumerate(names)}

    def session(self, memory, table=None):
        """A decoder at its beginning; `table`: rows that ids after the vocabulary stand for."""
        request = self.idle.pop() if self.idle else self.decoder.create_infer_request()
        return Session(self, request, memory, table)


class Session:
    """One sequence in the decoder."""

    def __init__(self, network, request, memory, table):
        self.network, self.request, self.memory, self.length = network, request, memory, 0
        nothing = np.zeros((1, network.prompt_width), np.float32)
        self.table = nothing if table is None else np.asarray(table, np.float32)
        self.stateful = "beam_idx" in network.ports
        empty = np.zeros((0, network.heads, network.width), np.float32)
        names = [name for name in network.ports if name.startswith("past.") and not self.stateful]
        self.past = dict.fromkeys(names, empty)
        if self.stateful:
            request.reset_state()

    def step(self, ids):
        """Logits float32 [vocabulary] after the last of ids."""
        ids = np.asarray(ids, np.int64)
        places = np.arange(self.length, self.length + len(ids))
        self.length += len(ids)
        if not self.stateful:
            return self._read(ids, places)
        inputs = {
            "ids": ids[None],
            "positions": places[None],
            "bias": np.zeros((1, 1), np.float32),
            "mask": self._mask(places),
            "beam_idx": np.zeros(1, np.int32),
        }
        inputs |= self.memory
        if self.memory:
            length = next(iter(self.memory.values())).shape[2]
            inputs["cross_mask"] = np.zeros((1, 1, 1, 1, length), np.float32)
            inputs["shares"] = np.zeros(1, np.int32)
            inputs["sharers"] = inputs["shares"][None]
        return self._infer(inputs)

    def _infer(self, inputs):
        self.request.infer({name: value for name, value in inputs.items() if name in self.network.ports})
        return self.request.get_tensor("logits").data[0].copy()

    def _read(self, ids, places):
        """Logits; keys and values are kept."""
        inputs = {
            "ids": ids,
            "table": self.table,
            "positions": places,
            "last": np.array([len(ids) - 1]),
            "bias": np.zeros((1, 1), np.float32),
            "mask": self._mask(places)[0],
        }
        logits = self._infer(inputs | self.past)
        self.past = {
            name: self.request.get_tensor(name.replace("past", "present")).data.copy() for name in self.past
        }
        return logits

    def _mask(self, places):
        back = places[:, None] - np.arange(places[-1] + 1)
        relative = self.network.relative
        if relative is not None:
            seen = np.where(back >= 0, relative[:, np.clip(back, 0, relative.shape[1] - 1)], MASKED)[None]
            return seen.astype(np.float32)
        return np.where(back >= 0, np.float32(0), MASKED)[None, None]

    def close(self):
        """Give the decoder back."""
        self.network.idle.append(self.request)
