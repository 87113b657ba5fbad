"""BERT checkpoints with pooling in sentence-transformers' layout: config.json and weights of transformers'
BertModel, 1_Pooling/config.json, modules.json, sentence_bert_config.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import BertModel

from conch.bundle import EngineFacts
from serving.architectures.bert import Shape, TextEmbedder

from ..pictures import Unsupported
from . import renamed

RULES = [
    (r"^embeddings\.word_embeddings", "words"),
    (r"^embeddings\.position_embeddings", "places"),
    (r"^embeddings\.LayerNorm", "first_norm"),
    (r"^encoder\.layer\.", "layers."),
    (r"attention\.self\.", "own."),
    (r"attention\.output\.dense", "own.mix"),
    (r"attention\.output\.LayerNorm", "own.norm"),
    (r"intermediate\.dense", "widen"),
    (r"output\.dense", "narrow"),
    (r"output\.LayerNorm", "norm"),
]
TYPES = "embeddings.token_type_embeddings.weight"
UNUSED = ("pooler.", "embeddings.position_ids")
FIRST_TOKEN, MEAN = "pooling_mode_cls_token", "pooling_mode_mean_tokens"


def load(folder: Path) -> tuple[Any, TextEmbedder]:
    """Load transformers' model and ours with the same weights in float32.

    Raises:
        Unsupported: another architecture, or another way of pooling.
    """
    theirs = BertModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False).eval()
    ours = TextEmbedder(shape(theirs.config, folder))
    ours.load_state_dict(weights(theirs))
    return theirs, ours.eval()


def shape(config: Any, folder: Path) -> Shape:
    """Read the shape from the checkpoint.

    Raises:
        Unsupported: see `load`.
    """
    kinds = (config.model_type, config.hidden_act, getattr(config, "position_embedding_type", "absolute"))
    if kinds != ("bert", "gelu", "absolute"):
        raise Unsupported(
            f"{folder}/config.json: model type, activation and positions are {', '.join(map(str, kinds))}; "
            "this family has bert, gelu, absolute"
        )
    pooling = _read(folder / "1_Pooling" / "config.json")
    modes = [name for name, used in pooling.items() if name.startswith("pooling_mode_") and used is True]
    if modes not in ([FIRST_TOKEN], [MEAN]):
        raise Unsupported(
            f"{folder}/1_Pooling/config.json asks for {', '.join(modes) or 'nothing'}; this family has "
            f"{FIRST_TOKEN} or {MEAN}"
        )
    steps = [str(row["type"]).rsplit(".", 1)[-1] for row in _read(folder / "modules.json")]
    if steps not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise Unsupported(
            f"{folder}/modules.json has the modules {', '.join(steps)}; this family has Transformer, Pooling "
            "and, perhaps, Normalize"
        )
    return Shape(
        vocabulary=config.vocab_size,
        width=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        positions=config.max_position_embeddings,
        epsilon=config.layer_norm_eps,
        first_token=modes == [FIRST_TOKEN],
    )


def weights(model: BertModel) -> dict[str, torch.Tensor]:
    """Return the weights under our names; the vector of the first token type is added to every position's."""
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(UNUSED)}
    types = state.pop(TYPES)
    found = renamed(state, RULES)
    found["places.weight"] = found["places.weight"] + types[0]
    return found


def facts(model: BertModel, folder: Path, longest: int) -> EngineFacts:
    """Make engine.json's facts. `longest` limits tokens of a text; 0 means as many as the model was trained
    for, from sentence_bert_config.json.
    """
    config = model.config
    trained = _read(folder / "sentence_bert_config.json").get("max_seq_length")
    return EngineFacts(
        family="minilm",
        positions=min(longest or trained or config.max_position_embeddings, config.max_position_embeddings),
        vocabulary=config.vocab_size,
        end_id=0,
        pad_id=config.pad_token_id,
        dimensions=config.hidden_size,
    )


def _read(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))
