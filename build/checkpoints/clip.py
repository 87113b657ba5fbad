"""CLIP checkpoints: config.json and the weights of transformers' CLIPModel, read by name."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import CLIPConfig

from conch.bundle import EngineFacts
from serving.architectures.clip import ACTIVATIONS, Clip, Shape

from ..pictures import Unsupported
from . import renamed, tower

# Theirs and ours; the pairs apply in turn.
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


def load(folder: Path) -> Clip:
    """Load a checkpoint's model in float32.

    Raises:
        Unsupported: another architecture, or no weights.
    """
    model = Clip(shape(folder))
    model.load_state_dict(renamed(stored(folder), NAMES))
    return model.eval()


def shape(folder: Path) -> Shape:
    """Read the shape from config.json.

    Raises:
        Unsupported: another architecture, or an activation that it does not have.
    """
    given = json.loads((folder / "config.json").read_text("utf-8"))
    if given.get("model_type") != "clip":
        raise Unsupported(
            f"{folder}/config.json: the model type is {given.get('model_type')}; it must be clip"
        )
    config = CLIPConfig.from_dict(given)
    picture, text = config.vision_config, config.text_config
    for part in (picture, text):
        if part.hidden_act not in ACTIVATIONS:
            raise Unsupported(
                f"{folder}/config.json: the activation is {part.hidden_act}; this family has "
                f"{', '.join(ACTIVATIONS)}"
            )
    return Shape(
        picture=tower(picture),
        size=picture.image_size,
        patch=picture.patch_size,
        text=tower(text),
        vocabulary=text.vocab_size,
        positions=text.max_position_embeddings,
        end_id=text.eos_token_id,
        dimensions=config.projection_dim,
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
