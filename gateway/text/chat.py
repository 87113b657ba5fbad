"""Chat templates, as tokenizers carry them (https://huggingface.co/docs/transformers/chat_templating)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import ApiError
from ..triton import Pool
from .schema import Message, refused


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


@cache
def _template(folder: Path) -> tuple[Template, dict[str, Any]] | None:
    """A tokenizer's template with its special tokens; None if it has none."""
    config = (
        json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        if (folder / "tokenizer_config.json").exists()
        else {}
    )
    file = folder / "chat_template.jinja"
    text = file.read_text("utf-8") if file.exists() else config.get("chat_template")
    if not isinstance(text, str):
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    specials = {
        name: str(config[name])
        for name in ("bos_token", "eos_token", "unk_token", "pad_token")
        if isinstance(config.get(name), str)
    }
    return environment.from_string(text), specials


def rendered(pool: Pool, messages: Sequence[Message]) -> str:
    """A conversation as one text.

    Raises:
        ApiError: 400 if the model has no template, or its template refuses the messages.
    """
    found = _template(pool.bundle / "engine")
    if found is None:
        message = f"model {pool.model_id!r} has no chat template; use /v1/completions"
        raise ApiError(400, message, param="model", code="unsupported_model")
    template, specials = found
    rows = [
        {"role": message.role, "content": message.text, **({"name": message.name} if message.name else {})}
        for message in messages
    ]
    try:
        return template.render(messages=rows, add_generation_prompt=True, **specials)
    except TemplateError as error:
        raise refused("messages", f"do not fit this model's chat template: {error}") from error
