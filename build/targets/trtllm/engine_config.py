"""Fill the engine model's config.pbtxt from the template in NVIDIA's image; placeholders.toml covers
every placeholder.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from conch.names import ENGINE

from ...recipes import Recipe
from .. import TemplateError

PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
TABLES = tomllib.loads(Path(__file__).with_name("placeholders.toml").read_text("utf-8"))
FILLED, FILLED_WITH_ENCODER, LEFT = TABLES["filled"], TABLES["filled_with_encoder"], TABLES["left"]
FILLED_IF_GIVEN, APPENDED_IF_GIVEN = TABLES["filled_if_given"], TABLES["appended_if_given"]
EMPTY, REQUIRED = TABLES["empty"], TABLES["required"]


def unknown_placeholders(template: str) -> list[str]:
    """Return placeholders that no table here covers."""
    known = {*FILLED, *FILLED_WITH_ENCODER, *FILLED_IF_GIVEN, *EMPTY, *LEFT}
    return sorted(set(PLACEHOLDER.findall(template)) - known)


def missing_placeholders(template: str) -> list[str]:
    """Return required placeholders that the template lacks."""
    return sorted({*REQUIRED, *EMPTY} - set(PLACEHOLDER.findall(template)))


def fill(template: str, recipe: Recipe, engine: Path) -> model_config_pb2.ModelConfig:
    """Return the configuration of `tensorrt_llm_stream` for engines that will lie in `engine`.

    Raises:
        TemplateError: a placeholder is unknown or missing, or the result is not a configuration.
    """
    unknown, missing = unknown_placeholders(template), missing_placeholders(template)
    if unknown or missing:
        names = ", ".join(
            [*(f"unknown {name}" for name in unknown), *(f"missing {name}" for name in missing)]
        )
        raise TemplateError(
            f"the image's template of tensorrt_llm is of another release ({names}); use the pinned image of "
            "docker/server.Dockerfile"
        )
    values = _values(recipe, engine)
    try:
        config = text_format.Parse(
            PLACEHOLDER.sub(lambda match: values.get(match[1], ""), template), model_config_pb2.ModelConfig()
        )
    except text_format.ParseError as error:
        raise TemplateError(
            f"the filled template of tensorrt_llm is not a valid configuration ({error}); use the pinned "
            "image of docker/server.Dockerfile"
        ) from error
    config.name = ENGINE
    for key in {
        key for key, name in _parameter_placeholders(template) if name not in values and name not in EMPTY
    }:
        del config.parameters[key]
    for name in APPENDED_IF_GIVEN:
        if value := recipe.parameters.get(name):
            config.parameters[name].string_value = str(value)
    return config


def _values(recipe: Recipe, engine: Path) -> dict[str, str]:
    encoder = recipe.kind == "encoder-decoder"
    # Reuse needs prompts that say everything: an encoder's memory is not among the ids, and a picture only by
    # prompt_table_extra_ids, without which the engine then refuses requests (llmRequest.cpp, `validate`).
    reuse = recipe.kind == "decoder" or bool(recipe.parameters.get("kv_cache_reuse", False))
    names = {
        "engine": str(engine),
        **{k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in recipe.parameters.items()},
        "kv_cache_reuse": str(reuse).lower(),
    }
    # An encoder-decoder's answer never holds its input; a decoder alone does as the family says.
    names["excludes"] = str(encoder or bool(recipe.parameters.get("exclude_input_in_output", True))).lower()
    given = {name: f"{{{name}}}" for name in FILLED_IF_GIVEN if recipe.parameters.get(name)}
    return {
        name: value.format(**names)
        for name, value in {**FILLED, **(FILLED_WITH_ENCODER if encoder else {}), **given}.items()
    }


def _parameter_placeholders(template: str) -> list[tuple[str, str]]:
    """Return (key, placeholder) of the parameters that the template leaves open."""
    return re.findall(r'key:\s*"(\w+)"\s*value:?\s*\{\s*string_value:\s*"\$\{(\w+)\}"', template)
