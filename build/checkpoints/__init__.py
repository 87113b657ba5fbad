"""Turn checkpoints, loaded by transformers, into serving's architectures (builder only).

A family's module has `ARCHITECTURE` (transformers' class), `shape(model)`, `weights(model)` under the names
of serving/architectures, and, if it has an encoder, `facts(model, arguments)`: what engine.json says and the
shape does not. A family whose shape has `prompt_table` also has `picture_shape(model)` and
`picture_weights(model)`, and a line in `LOOKS` of build/pictures. True shapes for random weights are in
shapes.toml.
"""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from serving.architectures import pictures
from serving.architectures.clip import Tower
from serving.architectures.shape import Shape
from serving.architectures.transformer import Transformer

from ..pictures import Unsupported

SHAPES = tomllib.loads(Path(__file__).with_name("shapes.toml").read_text("utf-8"))
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
FAMILIES = ("whisper", "t5", "bart", "gpt2", "llama", "opt", "llava", "blip2")


def family(name: str) -> Any:
    """Import a family's module."""
    return import_module(f"{__name__}.{name}")


def load(name: str, weights: str, seed: int = 0) -> tuple[Any, Transformer]:
    """Load transformers' model and ours with the same weights in float32, from a folder in Hugging Face
    layout or from random:<architecture>.
    """
    its, (kind, _, random) = family(name), weights.partition("random:")
    torch.manual_seed(seed)
    theirs = random_model(name, random) if random else complete(its.ARCHITECTURE, kind)
    theirs.eval()
    ours = Transformer(its.shape(theirs))
    ours.load_state_dict(its.weights(theirs))
    return theirs, ours.eval()


def random_model(name: str, shape: str) -> Any:
    """Build transformers' model of a family with random weights in a true shape of shapes.toml, which its
    configuration has as `name_or_path`.
    """
    shared, architecture = SHAPES[name], family(name).ARCHITECTURE
    settings = {**shared, **shared["shapes"][shape]}
    del settings["shapes"]
    config = AutoConfig.for_model(**settings, name_or_path=shape)
    return getattr(architecture, "from_config", architecture)(config)  # an Auto class is no constructor


def complete(architecture: Any, folder: str) -> Any:
    """Load transformers' model from a folder and refuse missing weights, which transformers would initialise
    at random.

    Raises:
        Unsupported: some are missing.
    """
    model, found = architecture.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    if missing := sorted(found["missing_keys"]):
        raise Unsupported(
            f"{folder} lacks {len(missing)} weights, such as {missing[0]}; it is incomplete, or another model"
        )
    return model


def picture_encoder(name: str, theirs: Any) -> Any:
    """Build the module that turns pixels into rows of the prompt table, with the weights of transformers'
    model.
    """
    its = family(name)
    made, found = pictures.encoder(its.picture_shape(theirs)), its.picture_weights(theirs)
    known = made.state_dict()
    made.load_state_dict({part: found[part].reshape(known[part].shape) for part in known})
    return made.eval()


def end_ids(model: Any) -> tuple[int, ...]:
    """Return the ids that end a text, each once.

    Raises:
        Unsupported: there are none.
    """
    end = model.generation_config.eos_token_id
    end = model.config.get_text_config().eos_token_id if end is None else end
    ends = tuple(dict.fromkeys(end if isinstance(end, list) else [end]))
    if not ends or None in ends:
        raise Unsupported(f"generation_config.json: eos_token_id is {end}; name the id that ends a text")
    return ends


def encoder_decoder(config: Any, **own: Any) -> Shape:
    """Read the shape from a configuration with the names that Whisper's and BART's share."""
    return Shape(
        width=config.d_model,
        head_width=config.d_model // config.decoder_attention_heads,
        vocabulary=config.vocab_size,
        decoder_layers=config.decoder_layers,
        decoder_heads=config.decoder_attention_heads,
        decoder_inner=config.decoder_ffn_dim,
        encoder_layers=config.encoder_layers,
        encoder_heads=config.encoder_attention_heads,
        encoder_inner=config.encoder_ffn_dim,
        **own,
    )


def vision_rules(prefix: str) -> list[tuple[str, str]]:
    """Return rules that rename what CLIP's vision transformer and EVA's call alike; `prefix` is a pattern."""
    layer = prefix + r"encoder\.layers\.(\d+)\."
    return [
        (prefix + r"embeddings\.class_embedding", "seen.summary"),
        (prefix + r"embeddings\.patch_embedding", "seen.patches"),
        (prefix + r"embeddings\.position_embedding", "seen.places"),
        (layer + r"layer_norm1", r"seen.layers.\1.attention_norm"),
        (layer + r"layer_norm2", r"seen.layers.\1.inner_norm"),
        (layer + r"mlp\.fc1", r"seen.layers.\1.widen"),
        (layer + r"mlp\.fc2", r"seen.layers.\1.narrow"),
        (layer + r"self_attn\.", r"seen.layers.\1."),
    ]


def tower(config: Any) -> Tower:
    """Read the shape of a transformer that looks at pictures, or asks about them, from its configuration."""
    return Tower(
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.intermediate_size,
        config.layer_norm_eps,
        config.hidden_act,
    )


def renamed(
    state: Mapping[str, torch.Tensor], rules: Sequence[tuple[str, str]], prefix: str = ""
) -> dict[str, torch.Tensor]:
    """Rename tensors to our names: the rules (pattern, replacement) apply in turn to each name, without
    `prefix`.
    """
    found = {}
    for name, tensor in state.items():
        ours = name.removeprefix(prefix)
        for pattern, replacement in rules:
            ours = re.sub(pattern, replacement, ours)
        found[ours] = tensor
    return found


def copy_tokenizer(weights: Path, output: Path) -> None:
    """Copy a checkpoint's tokenizer files."""
    for file in TOKENIZER:
        if (weights / file).exists() and weights.resolve() != output.resolve():
            shutil.copy(weights / file, output / file)


def stored_in_half(weights: Path) -> bool:
    """Tell whether a folder's weights are float16."""
    config = json.loads((weights / "config.json").read_text("utf-8"))
    return str(config.get("dtype", config.get("torch_dtype", "float32"))) == "float16"
