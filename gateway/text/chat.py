"""Chat templates, as tokenizers carry them (https://huggingface.co/docs/transformers/chat_templating)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conch.deployment import Pool
from conch.errors import refused

from .schema import Message, TextPart

CHAT_TOKENS = 256


def usual_tokens(pool: Pool) -> int:
    """Of an answer whose length nobody asked for: CHAT_TOKENS, or half of what the model has."""
    return min(CHAT_TOKENS, pool.positions // 2)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


@cache
def _template(text: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(text)


def _parts(message: Message) -> list[dict[str, str]]:
    """As templates of models with pictures read content; the template decides where a picture stands."""
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
        for part in message.parts
    ]


def rendered(pool: Pool, messages: Sequence[Message]) -> str:
    """A conversation as one text.

    Raises:
        ApiError: 400 if the model's template refuses the messages.
    """
    assert pool.chat, "the route takes models with the ability to chat"
    looks = "pictures" in pool.capabilities
    rows = [
        {
            "role": message.role,
            "content": _parts(message) if looks else message.text,
            **({"name": message.name} if message.name else {}),
        }
        for message in messages
    ]
    try:
        template = _template(pool.chat.template)
        return template.render(messages=rows, add_generation_prompt=True, **pool.chat.specials)
    except (TemplateError, TypeError, ValueError) as error:  # what templates raise, and what in them does
        raise refused("messages", f"do not match this model's chat template: {error}") from error
