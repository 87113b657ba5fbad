"""CLIP checkpoints: config.json and the weights of transformers' CLIPModel, read by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from conch.bundle import EngineFacts
from serving.architectures.clip import ACTIVATIONS, Clip, Shape, Tower

from ..pictures import Unsupported

# Theirs and ours. The pairs apply in turn as they stand, and backwards the other way round.
NAMES = (
    ("vision_model.embeddings.class_embedding", "picture.summary"),
    ("vision_model.embeddings.patch_embedding", "picture.patches"),
    ("vision_model.embeddings.position_embedding", "picture.places"),
    ("vision_model.pre_layrnorm", "picture.first_norm"),
    ("vision_model.encoder.layers", "picture.layers"),
    ("vision_model.post_layernorm", "picture.last_norm"),
    ("visual_projection", "picture.project"),
    ("text_model.embeddings.token_embedding", "text.words"),
    ("text_model.embeddings.position_embedding", "text.places"),
    ("text_model.encoder.layers", "text.layers"),
    ("text_model.final_layer_norm", "text.last_norm"),
    ("text_projection", "text.project"),
    ("layer_norm1", "attention_norm"),
    ("layer_norm2", "inner_norm"),
    ("self_attn.q_proj", "query"),
    ("self_attn.k_proj", "key"),
    ("self_attn.v_proj", "value"),
    ("self_attn.out_proj", "mix"),
    ("mlp.fc1", "widen"),
    ("mlp.fc2", "narrow"),
    ("logit_scale", "scale"),
)
UNUSED = ("vision_model.embeddings.position_ids", "text_model.embeddings.position_ids")
SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
# What config.json leaves out is as in transformers' configuration_clip.py.
SHARED = {"num_hidden_layers": 12, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"}
PICTURE = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "image_size": 224}
TEXT = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "vocab_size": 49408}


def load(folder: Path) -> Clip:
    """Load a checkpoint's model in float32.

    Raises:
        Unsupported: another architecture, or no weights.
    """
    model = Clip(shape(folder))
    model.load_state_dict(ours(stored(folder)))
    return model.eval()


def shape(folder: Path) -> Shape:
    """Read the shape from config.json.

    Raises:
        Unsupported: another architecture, or an activation that it does not have.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if config.get("model_type") != "clip":
        raise Unsupported(
            f"{folder}/config.json: the model type is {config.get('model_type')}; it must be clip"
        )
    picture = {**SHARED, **PICTURE, "patch_size": 32, **config.get("vision_config", {})}
    text = {**SHARED, **TEXT, "max_position_embeddings": 77, **config.get("text_config", {})}
    return Shape(
        picture=_tower(folder, picture),
        size=picture["image_size"],
        patch=picture["patch_size"],
        text=_tower(folder, text),
        vocabulary=text["vocab_size"],
        positions=text["max_position_embeddings"],
        end_id=text.get("eos_token_id", 49407),
        dimensions=config.get("projection_dim", 512),
    )


def facts(shape: Shape, longest: int) -> EngineFacts:
    """Make engine.json's facts. `longest` limits tokens of a text; 0 means as many as the model was trained
    for.
    """
    return EngineFacts(
        family="clip",
        positions=min(longest or shape.positions, shape.positions),
        vocabulary=shape.vocabulary,
        end_id=shape.end_id,
        dimensions=shape.dimensions,
    )


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """Read the weights under their own names in float32.

    Raises:
        Unsupported: there are none.
    """
    if (folder / SAFE).exists():
        state = load_file(folder / SAFE)
    elif (folder / PICKLED).exists():
        state = torch.load(folder / PICKLED, map_location="cpu", weights_only=True)
    else:
        raise Unsupported(f"{folder} has neither {SAFE} nor {PICKLED}")
    return {name: tensor.float() for name, tensor in state.items() if name not in UNUSED}


def ours(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename weights to our names."""
    return {_renamed(name, NAMES): tensor for name, tensor in state.items()}


def theirs(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename weights to transformers' names."""
    back = tuple((own, name) for name, own in NAMES)
    return {_renamed(name, back): tensor for name, tensor in state.items()}


def _renamed(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        name = name.replace(old, new)
    return name


def _tower(folder: Path, config: Mapping[str, Any]) -> Tower:
    if config["hidden_act"] not in ACTIVATIONS:
        raise Unsupported(
            f"{folder}/config.json: the activation is {config['hidden_act']}; this family has "
            f"{', '.join(ACTIVATIONS)}"
        )
    return Tower(
        width=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        inner=config["intermediate_size"],
        epsilon=config["layer_norm_eps"],
        activation=config["hidden_act"],
    )
