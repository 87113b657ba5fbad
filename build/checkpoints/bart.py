"""BART checkpoints (transformers' modeling_bart.py): layer norms after each part, positions with an offset of
2. Generation starts from `</s>` with `<s>` forced as the first token, so both are the decoder's first ids.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import BartForConditionalGeneration

from serving.architectures.shape import Shape

from . import encoder_decoder, renamed
from .arguments import Arguments
from .whisper import RULES

ARCHITECTURE = BartForConditionalGeneration
OFFSET = 2


def shape(model: BartForConditionalGeneration) -> Shape:
    """Read the shape from the checkpoint."""
    config = model.config
    return encoder_decoder(
        config,
        family="bart",
        sources=config.max_position_embeddings + OFFSET,
        targets=config.max_position_embeddings + OFFSET,
        offset=OFFSET,
        activation=config.activation_function,
        norm_first=False,
        embedding_norm=True,
        head_bias=True,
        embedding_scale=config.d_model**0.5 if config.scale_embedding else 1.0,
    )


def weights(model: BartForConditionalGeneration) -> dict[str, torch.Tensor]:
    """Return the weights under our names."""
    found = renamed(model.state_dict(), RULES, "model.")
    found["decoder.head.bias"] = found["decoder.head.bias"][0]
    return {name: tensor for name, tensor in found.items() if not name.startswith("shared.")}


def facts(model: Any, arguments: Arguments) -> dict[str, Any]:
    """Return what engine.json says and the shape does not."""
    config, forced = model.config, model.generation_config.forced_bos_token_id
    longest = config.max_position_embeddings
    return {
        "positions": min(arguments.max_seq_len, longest),
        "encoder_positions": min(arguments.max_input_len, longest),
        "end_id": config.eos_token_id,
        "pad_id": config.pad_token_id,
        "decoder_start": (config.decoder_start_token_id, *([forced] if forced is not None else [])),
    }
