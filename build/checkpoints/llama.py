"""LLaMA checkpoints, and decoders that differ from it in what a Shape describes (transformers' modules of the
same names): biases, norms of heads, shared key heads, scaled or partial rotary positions, windows, soft caps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, PreTrainedModel

from serving.architectures.layers import ACTIVATIONS
from serving.architectures.shape import Shape

from ..pictures import Unsupported
from . import renamed

ARCHITECTURE = AutoModelForCausalLM
# What config.json may call itself.
SUPPORTED = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "gemma", "gemma2", "gemma3_text")
GEMMAS = ("gemma", "gemma2", "gemma3_text")
RULES = [
    (r"^model\.embed_tokens", "decoder.ids"),
    (r"^model\.norm", "decoder.norm"),
    (r"^model\.layers\.(\d+)\.self_attn\.([qk])_norm\.weight", r"decoder.layers.\1.own.\2_norm"),
    (r"^model\.layers\.(\d+)\.self_attn\.([qkv]|qkv)_proj", r"decoder.layers.\1.own.\2"),
    (r"^model\.layers\.(\d+)\.self_attn\.o_proj", r"decoder.layers.\1.own.out"),
    (r"^model\.layers\.(\d+)\.input_layernorm", r"decoder.layers.\1.own_norm"),
    (r"^model\.layers\.(\d+)\.mlp\.gate_proj", r"decoder.layers.\1.feed.up"),  # ours is activated, too
    (r"^model\.layers\.(\d+)\.mlp\.up_proj", r"decoder.layers.\1.feed.gate"),
    (r"^model\.layers\.(\d+)\.mlp\.gate_up_proj", r"decoder.layers.\1.feed.both"),
    (r"^model\.layers\.(\d+)\.mlp\.down_proj", r"decoder.layers.\1.feed.down"),
    (r"^lm_head", "decoder.head"),
]
# The norm of that name is of what the feed-forward reads, and in a Gemma with four norms a layer of what
# attention adds.
PLAIN_NORMS = [(r"^model\.layers\.(\d+)\.post_attention_layernorm", r"decoder.layers.\1.feed_norm")]
FOUR_NORMS = [
    (r"^model\.layers\.(\d+)\.post_attention_layernorm", r"decoder.layers.\1.own.out.after"),
    (r"^model\.layers\.(\d+)\.pre_feedforward_layernorm", r"decoder.layers.\1.feed_norm"),
    (r"^model\.layers\.(\d+)\.post_feedforward_layernorm", r"decoder.layers.\1.feed.down.after"),
]
LONGEST = 32_768  # positions of the rotary tables at most, 16 MB each of float32 at a head width of 128


def shape(model: PreTrainedModel) -> Shape:
    """Read the shape from the checkpoint."""
    return shape_of(model.config)


def shape_of(config: Any, **own: Any) -> Shape:
    """Read the shape from a configuration.

    Raises:
        Unsupported: it needs what a Shape has not.
    """
    if wrong := next(obstacles(config), ""):
        raise Unsupported(f"config.json: {wrong}")
    heads, key_heads = config.num_attention_heads, config.num_key_value_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads
    four = config.model_type in ("gemma2", "gemma3_text")
    scalar = getattr(config, "query_pre_attn_scalar", None)
    biased = bool(getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False))
    return Shape(
        family="llama",
        width=config.hidden_size,
        head_width=head_width,
        vocabulary=config.vocab_size,
        decoder_layers=config.num_hidden_layers,
        decoder_heads=heads,
        decoder_inner=config.intermediate_size,
        targets=positions_of(config),
        activation=_activation(config),
        gated=True,
        norm="rms",
        epsilon=config.rms_norm_eps,
        embedding_scale=config.hidden_size**0.5 if config.model_type in GEMMAS else 1.0,
        bias=biased,
        qkv_bias=config.model_type == "qwen2",
        rotary=True,
        key_heads=0 if key_heads == heads else key_heads,
        scale=scalar**-0.5 if scalar else 0.0,
        head_norm=config.model_type in ("qwen3", "gemma3_text"),
        post_norms=four,
        layer_turns=_layer_turns(config),
        window=_window(config),
        windowed=_windowed(config),
        score_cap=getattr(config, "attn_logit_softcapping", None) or 0.0,
        logit_cap=getattr(config, "final_logit_softcapping", None) or 0.0,
        **own,
    )


def obstacles(config: Any) -> Iterator[str]:
    """Return what the checkpoint needs and a Shape cannot describe, one clause each."""
    if config.model_type not in SUPPORTED:
        yield f"model_type is {config.model_type}; this family supports {', '.join(SUPPORTED)}"
    if _activation(config) not in ACTIVATIONS:
        yield f"hidden_act is {config.hidden_act}; this family supports {', '.join(ACTIVATIONS)}"
    if getattr(config, "use_bidirectional_attention", False):
        yield "use_bidirectional_attention is true; this family looks back only"


def _activation(config: Any) -> str:
    name = getattr(config, "hidden_activation", None) or config.hidden_act
    return {"gelu_pytorch_tanh": "gelu_new"}.get(name, name)


def positions_of(config: Any) -> int:
    """Return how many positions have rotary angles that depend on the position alone: those of `dynamic` and
    `longrope` change with a text's length beyond the length that the model was first trained for.
    """
    kinds = {str(table.get("rope_type")) for table in _ropes(config)}
    most = int(config.max_position_embeddings)
    if "longrope" in kinds:
        (table,) = _ropes(config)
        first = table.get("original_max_position_embeddings") or config.original_max_position_embeddings
        most = min(most, int(first))
    return min(most, LONGEST)


def _ropes(config: Any) -> list[Mapping[str, Any]]:
    """Read the settings of each rotary table."""
    found = config.rope_parameters
    nested = [value for value in found.values() if isinstance(value, Mapping)]
    return nested or [found]


def _kinds(config: Any) -> Sequence[str]:
    """Tell for each layer whether it has a sliding window."""
    if kinds := getattr(config, "layer_types", None):
        return list(kinds)
    name = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    return [name] * int(config.num_hidden_layers)


def _windowed(config: Any) -> tuple[int, ...]:
    if not _window(config):
        return ()
    return tuple(i for i, kind in enumerate(_kinds(config)) if kind == "sliding_attention")


def _window(config: Any) -> int:
    """Return the sliding window in positions; 0 if no position lies beyond it."""
    window = int(getattr(config, "sliding_window", None) or 0)
    return window if window < positions_of(config) and "sliding_attention" in _kinds(config) else 0


def _layer_turns(config: Any) -> tuple[int, ...]:
    """Return each layer's rotary table as an index into `turns`; empty if there is only one."""
    if config.model_type == "smollm3":
        return tuple(int(not turned) for turned in config.no_rope_layers)
    if tables := _tables(config):
        return tuple(tables.index(kind) for kind in _kinds(config))
    return ()


def _tables(config: Any) -> list[str]:
    """Return the kinds of layers that have their own rotary tables; empty if all share one."""
    return sorted({*_kinds(config)}) if config.model_type == "gemma3_text" else []


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the weights under our names."""
    return weights_of(model.state_dict(), model.model.rotary_emb, model.config)


def weights_of(
    state: Mapping[str, torch.Tensor], rotary: torch.nn.Module, config: Any
) -> dict[str, torch.Tensor]:
    """Return the weights under our names, with the tables of cosines and sines that transformers' module
    computes.
    """
    shape = shape_of(config)
    norms = FOUR_NORMS if shape.post_norms else PLAIN_NORMS
    found = dict(_apart(renamed(state, [*norms, *RULES]), shape))
    if config.model_type in GEMMAS:  # its norms multiply by 1 + weight
        found |= {name: tensor + 1 for name, tensor in found.items() if "norm" in name or ".after." in name}
    if shape.bias:
        found |= _zero_biases(found, shape)
    found["decoder.turns.weight"], turned = turns(rotary, config, shape)
    order = _order(turned, shape.head_width)
    return {name: _reordered(name, tensor, order) for name, tensor in found.items()} if order else found


def _apart(found: Mapping[str, torch.Tensor], shape: Shape) -> Iterator[tuple[str, torch.Tensor]]:
    """Split weights that are stored as one (Phi-3)."""
    kept = shape.cached_heads * shape.head_width
    for name, tensor in found.items():
        if ".own.qkv." in name:
            parts = tensor.split([shape.decoder_heads * shape.head_width, kept, kept])
            yield from ((name.replace("qkv", part), own) for part, own in zip("qkv", parts, strict=True))
        elif ".feed.both." in name:
            up, gate = tensor.chunk(2)
            yield from ((name.replace("both", part), own) for part, own in (("up", up), ("gate", gate)))
        else:
            yield name, tensor


def _zero_biases(found: Mapping[str, torch.Tensor], shape: Shape) -> dict[str, torch.Tensor]:
    """Add zero biases where only some products have one: attention_bias without mlp_bias, or the reverse."""
    made = {}
    for layer in range(shape.decoder_layers):
        for part in ("own.q", "own.k", "own.v", "own.out", "feed.up", "feed.gate", "feed.down"):
            name = f"decoder.layers.{layer}.{part}"
            if f"{name}.bias" not in found:
                made[f"{name}.bias"] = torch.zeros(found[f"{name}.weight"].shape[0])
    return made


def turns(rotary: Any, config: Any, shape: Shape) -> tuple[torch.Tensor, int]:
    """Compute tables [positions, tables * head width] of cosines, then sines, for half a head, and how many
    elements of a head are rotated; the others are rotated by an angle of 0.
    """
    places, half = torch.arange(shape.targets)[None], shape.head_width // 2
    kinds: list[tuple[str, ...]] = [(name,) for name in _tables(config)]
    made = [rotary(torch.zeros(1), places, *kind) for kind in kinds or [()]]
    width = made[0][0].shape[-1]
    parts = []
    for cosines, sines in made:  # both halves of each are the same
        still = (0, half - width // 2)
        parts += [pad(cosines[0, :, : width // 2], still, value=1.0), pad(sines[0, :, : width // 2], still)]
    if config.model_type == "smollm3" and any(shape.layer_turns):
        parts += [torch.ones(shape.targets, half), torch.zeros(shape.targets, half)]
    return torch.cat(parts, -1), width


def _order(turned: int, width: int) -> list[int]:
    """Return the order of a head's elements that puts both halves of the rotated part at the starts of the
    head's halves; empty if the whole head is rotated. Queries and keys share the order, so their products do
    not change.
    """
    half, still = turned // 2, width - turned
    if not still:
        return []
    first, second = range(half), range(half, turned)
    rest = list(range(turned, width))
    return [*first, *rest[: still // 2], *second, *rest[still // 2 :]]


def _reordered(name: str, tensor: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Reorder the rows of query and key weights, and their norms."""
    if not re.search(r"\.own\.[qk](\.weight|\.bias|_norm)$", name):
        return tensor
    heads = tensor.unflatten(0, (-1, len(order)))
    return heads[:, list(order)].flatten(0, 1).contiguous()
