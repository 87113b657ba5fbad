"""BLIP-2 checkpoints with OPT (transformers' modeling_blip_2.py): EVA's vision transformer, a Q-Former whose
queries attend to it, a projection, and an OPT that reads the result as prompt embeddings.
"""

from __future__ import annotations

import torch
from transformers import Blip2ForConditionalGeneration

from serving.architectures import pictures as architecture
from serving.architectures.clip import ACTIVATIONS
from serving.architectures.shape import Shape

from ..pictures import Unsupported
from . import opt, renamed, tower, vision_rules

ARCHITECTURE = Blip2ForConditionalGeneration
VISION, ASKING = r"^vision_model\.", r"^qformer\.encoder\.layer\.(\d+)\."
RULES = [
    *vision_rules(VISION),
    (r"^seen\.places", "seen.places.weight"),
    (VISION + r"post_layernorm", "seen.last_norm"),
    (r"^(seen\.layers\.\d+)\.projection", r"\1.mix"),
    (r"^query_tokens", "queries"),
    (r"^qformer\.layernorm", "norm"),
    (ASKING + r"attention\.attention", r"layers.\1.own"),
    (ASKING + r"attention\.output\.dense", r"layers.\1.own.mix"),
    (ASKING + r"attention\.output\.LayerNorm", r"layers.\1.own.norm"),
    (ASKING + r"crossattention\.attention", r"layers.\1.cross"),
    (ASKING + r"crossattention\.output\.dense", r"layers.\1.cross.mix"),
    (ASKING + r"crossattention\.output\.LayerNorm", r"layers.\1.cross.norm"),
    (ASKING + r"intermediate_query\.dense", r"layers.\1.widen"),
    (ASKING + r"output_query\.dense", r"layers.\1.narrow"),
    (ASKING + r"output_query\.LayerNorm", r"layers.\1.norm"),
    (r"^language_projection", "project"),
]


def shape(model: Blip2ForConditionalGeneration) -> Shape:
    """Read the language model's shape.

    Raises:
        Unsupported: it is not OPT.
    """
    config = model.config.text_config
    if config.model_type != "opt":
        raise Unsupported(f"config.json: the language model is {config.model_type}; this family supports opt")
    return opt.shape_of(config, prompt_table=True)


def weights(model: Blip2ForConditionalGeneration) -> dict[str, torch.Tensor]:
    """Return the language model's weights under our names."""
    return opt.weights(model.language_model)


def picture_shape(model: Blip2ForConditionalGeneration) -> architecture.Shape:
    """Read the shape of the vision encoder, Q-Former and projection.

    Raises:
        Unsupported: activations that this family does not have.
    """
    config, vision, former = model.config, model.config.vision_config, model.config.qformer_config
    if vision.hidden_act not in ACTIVATIONS or former.hidden_act != "gelu":
        raise Unsupported(
            f"config.json: the activations must be {', '.join(ACTIVATIONS)}, the Q-Former's gelu"
        )
    queries = architecture.Former(tower(former), former.cross_attention_frequency, config.num_query_tokens)
    width = config.text_config.hidden_size
    return architecture.Shape(tower(vision), vision.image_size, vision.patch_size, width, former=queries)


def picture_weights(model: Blip2ForConditionalGeneration) -> dict[str, torch.Tensor]:
    """Return vision weights under our names; names of the Q-Former's text part and of the language model stay
    among them.
    """
    return _apart(renamed(model.state_dict(), RULES))


def _apart(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Split joint weights of queries, keys and values; absent biases become zeros."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        if ".qkv." not in name:
            found[name] = tensor
            continue
        for part, third in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
            found[name.replace("qkv", part)] = third
            found.setdefault(name.replace("qkv.weight", f"{part}.bias"), torch.zeros(len(third)))
    return found
