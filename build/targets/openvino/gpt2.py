"""GPT-2 to OpenVINO: `python -m build.targets.openvino.gpt2 --weights FOLDER --output FOLDER`. A decoder
alone (transformers' modeling_gpt2.py).
"""

from __future__ import annotations

from pathlib import Path

import openvino as ov
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from conch.bundle import EngineFacts

from .stateful import Shape, attended, decoder_graph, merge, scored, split
from .text import Arguments, export_text

# n_embd, n_layer, n_head: the configs of openai-community/gpt2 and gpt2-medium on the Hugging Face hub.
SHAPES = {"gpt2": (768, 12, 12), "gpt2-medium": (1024, 24, 16)}


def random_model(name: str) -> GPT2LMHeadModel:
    """A true shape with random weights."""
    width, layers, heads = SHAPES[name]
    return GPT2LMHeadModel(GPT2Config(n_embd=width, n_layer=layers, n_head=heads))


class Decoder(nn.Module):
    """One step; see stateful.py."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        super().__init__()
        self.transformer, self.head, self.heads = model.transformer, model.lm_head, model.config.n_head
        self.scales = [attention_scale(model.config, i) for i in range(model.config.n_layer)]

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, bias: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        present = []
        x = self.transformer.wte(ids) + self.transformer.wpe(positions)
        for i, layer in enumerate(self.transformer.h):
            q, k, v = (split(part, self.heads) for part in layer.attn.c_attn(layer.ln_1(x)).chunk(3, -1))
            present += [k, v]
            x = x + layer.attn.c_proj(
                merge(attended(q * self.scales[i], (past[2 * i], past[2 * i + 1]), (k, v), mask))
            )
            x = x + layer.mlp.c_proj(layer.mlp.act(layer.mlp.c_fc(layer.ln_2(x))))
        return scored(self.head(self.transformer.ln_f(x)[:, -1]) + bias, present)


def attention_scale(config: GPT2Config, layer: int) -> float:
    """What scores are multiplied with."""
    scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
    return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale


def graphs(model: GPT2LMHeadModel, _: Path, __: Arguments) -> dict[str, ov.Model]:
    """The decoder."""
    config = model.config
    return {
        "decoder": decoder_graph(
            Decoder(model), Shape(config.n_layer, config.n_head, config.n_embd // config.n_head, memory=False)
        )
    }


def facts(model: GPT2LMHeadModel, arguments: Arguments) -> EngineFacts:
    """engine.json. GPT-2 has no padding of its own; the end of text stands in."""
    config: GPT2Config = model.config
    return EngineFacts(
        family="gpt2",
        layers=config.n_layer,
        heads=config.n_head,
        head_width=config.n_embd // config.n_head,
        positions=min(arguments.max_seq_len, config.n_positions),
        vocabulary=config.vocab_size,
        end_id=config.eos_token_id,
        pad_id=config.eos_token_id,
    )


if __name__ == "__main__":
    export_text(__doc__, GPT2LMHeadModel, random_model, graphs, facts)
