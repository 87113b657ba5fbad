"""LLaVA 1.5 checkpoints (transformers' modeling_llava.py): CLIP's vision transformer up to one of its layers,
a projector, and a LLaMA that reads the result as prompt embeddings.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import LlavaForConditionalGeneration

from serving.architectures import pictures as architecture
from serving.architectures.clip import ACTIVATIONS
from serving.architectures.shape import Shape

from ..pictures import Unsupported
from . import llama, renamed, tower, vision_rules

ARCHITECTURE = LlavaForConditionalGeneration
VISION = r"^model\.vision_tower\.(?:vision_model\.)?"
RULES = [
    *vision_rules(VISION),
    (VISION + r"pre_layrnorm", "seen.first_norm"),
    (r"^(seen\.layers\.\d+)\.q_proj", r"\1.query"),
    (r"^(seen\.layers\.\d+)\.k_proj", r"\1.key"),
    (r"^(seen\.layers\.\d+)\.v_proj", r"\1.value"),
    (r"^(seen\.layers\.\d+)\.out_proj", r"\1.mix"),
    (r"^model\.multi_modal_projector\.linear_1", "first"),
    (r"^model\.multi_modal_projector\.linear_2", "second"),
]


def shape(model: LlavaForConditionalGeneration) -> Shape:
    """Read the language model's shape.

    Raises:
        Unsupported: it is not LLaMA.
    """
    config = model.config.text_config
    if config.model_type != "llama":  # nobody compared others with transformers
        raise Unsupported(
            f"config.json: the language model is {config.model_type}; this family supports llama"
        )
    return llama.shape_of(config, prompt_table=True)


def weights(model: LlavaForConditionalGeneration) -> dict[str, torch.Tensor]:
    """Return the language model's weights under our names."""
    own = {
        name.replace("model.language_model.", "model."): tensor
        for name, tensor in model.state_dict().items()
        if name.startswith(("model.language_model.", "lm_head."))
    }
    return llama.weights_of(own, model.model.language_model.rotary_emb, model.config.text_config)


def picture_shape(model: LlavaForConditionalGeneration) -> architecture.Shape:
    """Read the shape of the vision transformer and projector.

    Raises:
        Unsupported: another vision transformer, or several layers of it.
    """
    config, vision = model.config, model.config.vision_config
    layer = config.vision_feature_layer
    if vision.model_type != "clip_vision_model" or not isinstance(layer, int):
        raise Unsupported(
            "config.json: this family supports one feature layer of CLIP's vision transformer only"
        )
    if vision.hidden_act not in ACTIVATIONS or config.projector_hidden_act != "gelu":
        raise Unsupported(
            f"config.json: the activations must be {', '.join(ACTIVATIONS)}, the projector's gelu"
        )
    layers = layer if layer >= 0 else vision.num_hidden_layers + 1 + layer
    return architecture.Shape(
        replace(tower(vision), layers=layers),
        vision.image_size,
        vision.patch_size,
        config.text_config.hidden_size,
        summarized=config.vision_feature_select_strategy == "full",
        bias=config.multimodal_projector_bias,
    )


def picture_weights(model: LlavaForConditionalGeneration) -> dict[str, torch.Tensor]:
    """Return vision weights under our names; names of layers after the one that is used, and of the language
    model, stay among them.
    """
    return renamed(model.state_dict(), RULES)
