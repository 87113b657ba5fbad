"""mini-llava and mini-blip2 before training: transformers' own classes, so that what is trained is what they
load.

Both begin with the eyes of mini-clip, as LLaVA and BLIP-2 began with published ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    OPTConfig,
    PreTrainedModel,
)

from ..pictures.train import normalized
from .pictures import SIZE

CLIP = Path(__file__).parents[2] / "clip" / "model.safetensors"
POSITIONS, WIDTH = 1024, 192
EYES = {"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 3, "intermediate_size": 768}
PATCH, QUERIES = 8, 32


def special(tokenizer: Tokenizer, kind: str) -> dict[str, int]:
    """Ids of the special tokens, as configurations name them."""
    begin = {"llava": "<s>", "blip2": "</s>"}[kind]
    names = {"bos_token_id": begin, "eos_token_id": "</s>", "pad_token_id": "<pad>"}
    return {name: tokenizer.token_to_id(token) for name, token in names.items()}


def new_model(kind: str, tokenizer: Tokenizer) -> PreTrainedModel:
    """With random weights after mini-clip's."""
    model = {"llava": new_llava, "blip2": new_blip2}[kind](tokenizer)
    model.generation_config.update(**special(tokenizer, kind))
    return model


def new_llava(tokenizer: Tokenizer) -> LlavaForConditionalGeneration:
    """4.7 million weights: CLIP's vision transformer, a projector, LLaMA with shared keys and values."""
    vision = CLIPVisionConfig(image_size=SIZE, patch_size=PATCH, hidden_act="quick_gelu", **EYES)
    text = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        **special(tokenizer, "llava"),
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_id=tokenizer.token_to_id("<image>"),
        image_seq_length=(SIZE // PATCH) ** 2,
        **special(tokenizer, "llava"),
    )
    model = LlavaForConditionalGeneration(config)
    state = {
        name.removeprefix("vision_model."): tensor.float()
        for name, tensor in load_file(CLIP).items()
        if name.startswith("vision_model.") and not name.endswith("position_ids")
    }
    model.model.vision_tower.load_state_dict(state)
    return model


def new_blip2(tokenizer: Tokenizer) -> Blip2ForConditionalGeneration:
    """7 million weights: EVA's vision transformer, a Q-Former of 32 queries, OPT."""
    vision = {"image_size": SIZE, "patch_size": PATCH, "hidden_act": "gelu", **EYES}
    former = {
        "hidden_size": WIDTH,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "intermediate_size": 512,
        "encoder_hidden_size": EYES["hidden_size"],
        "cross_attention_frequency": 2,
        "vocab_size": tokenizer.get_vocab_size(),
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    }
    text = OPTConfig(
        architectures=["OPTForCausalLM"],  # TensorRT-LLM's builder asks for it
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        ffn_dim=768,
        num_hidden_layers=4,
        num_attention_heads=6,
        max_position_embeddings=512,
        dropout=0.0,
        **special(tokenizer, "blip2"),
    )
    config = Blip2Config(
        vision_config=vision,
        qformer_config=former,
        text_config=text,
        num_query_tokens=QUERIES,
        image_token_index=tokenizer.token_to_id("<image>"),
    )
    model = Blip2ForConditionalGeneration(config)
    torch.nn.init.normal_(model.query_tokens, std=0.02)
    model.vision_model.load_state_dict(_eva(load_file(CLIP)))
    return model


def _eva(clip: dict[str, Tensor]) -> dict[str, Tensor]:
    """CLIP's vision transformer in EVA's form, as a start: EVA has no norm in front of its layers, so its
    linear part goes into patches and positions, with the deviation that it divides by taken as 1.
    """
    old = {name.removeprefix("vision_model."): one.float() for name, one in clip.items()}
    gain, shift = old["pre_layrnorm.weight"], old["pre_layrnorm.bias"]

    def normed(rows: Tensor) -> Tensor:
        """Rows [n, width] without their mean, by the gain."""
        return (rows - rows.mean(-1, keepdim=True)) * gain

    kernel = old["embeddings.patch_embedding.weight"]
    width = kernel.shape[0]
    places = normed(old["embeddings.position_embedding.weight"]) + shift
    new = {
        "embeddings.patch_embedding.weight": normed(kernel.flatten(1).T).T.reshape(kernel.shape),
        "embeddings.patch_embedding.bias": torch.zeros(width),
        "embeddings.class_embedding": normed(old["embeddings.class_embedding"][None])[None],
        "embeddings.position_embedding": places[None],
        "post_layernorm.weight": old["post_layernorm.weight"],
        "post_layernorm.bias": old["post_layernorm.bias"],
    }
    for name, tensor in old.items():
        if ".layers." not in name or not name.startswith("encoder."):
            continue
        if ".q_proj." in name:
            parts = [old[name.replace("q_proj", part)] for part in ("q_proj", "k_proj", "v_proj")]
            new[name.replace("q_proj", "qkv")] = torch.cat(parts)
        elif ".out_proj." in name:
            new[name.replace("out_proj", "projection")] = tensor
        elif "_proj." not in name:
            new[name] = tensor
    return new


def seen(model: Any, pixels: Tensor) -> Tensor:
    """What LLaVA's projector reads of pixels, [n, patches, width]."""
    vision = model.model.vision_tower(pixels, output_hidden_states=True)
    return vision.hidden_states[model.config.vision_feature_layer][:, 1:]


def rows_of(model: Any, pictures: Tensor) -> Tensor:
    """Rows of the prompt table [n, rows, width]: of uint8 pictures [n, size, size, 3], or of what `seen`
    gave.
    """
    if pictures.dtype != torch.uint8:
        return model.model.multi_modal_projector(pictures.float())
    found = model.get_image_features(normalized(pictures)).pooler_output
    return found if isinstance(found, Tensor) else torch.stack(list(found))


def decoder_of(model: Any) -> tuple[Any, Any]:
    """The language model without its head, and the head."""
    if isinstance(model, LlavaForConditionalGeneration):
        return model.model.language_model, model.lm_head
    return model.language_model.model, model.language_model.lm_head


def embedded(model: Any, ids: Tensor, rows: Tensor, placeholder: int) -> Tensor:
    """Embeddings [n, rows + tokens - 1, width] of ids [n, tokens], whose one placeholder each becomes the
    rows [n, rows, width].
    """
    words, at = model.get_input_embeddings()(ids), (ids == placeholder).int().argmax(1)
    places = torch.arange(ids.shape[1] + rows.shape[1] - 1, device=ids.device)[None] - at[:, None]
    own = (places >= 0) & (places < rows.shape[1])
    of_words = torch.where(places < 0, places + at[:, None], places + at[:, None] - rows.shape[1] + 1)
    width = words.shape[-1]

    def taken(source: Tensor, which: Tensor) -> Tensor:
        return source.gather(1, which[..., None].expand(-1, -1, width))

    of_rows = taken(rows.to(words.dtype), places.clamp(0, rows.shape[1] - 1))
    return torch.where(own[..., None], of_rows, taken(words, of_words.clamp(0, ids.shape[1] - 1)))
