"""Chat templates of tokenizers (https://huggingface.co/docs/transformers/chat_templating)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import groupby
from typing import Any, NoReturn, TypeVar

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conch.deployment import Pool
from conch.errors import refused
from conch.names import BREAK

from ..fields import Fields
from .filters import ANSWER, THINK, Phase
from .schema import ChatRequest, Message, TextPart
from .tools import ARGUMENTS, ID_LENGTH, MOST_TOOLS, OPEN, AllowedTools, Calling, NamedTool

Asked = TypeVar("Asked", bound=Fields)
NO_TOOLS = Calling()
# What templates raise, and what in them does.
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, RecursionError)
OWN = ("messages", "tools", "add_generation_prompt")  # variables of templates that requests do not set


def recommended(form: Asked, pool: Pool) -> Asked:
    """Return the request with the checkpoint's recommended sampling where it sets none."""
    sampling = pool.chat.sampling if pool.chat else {}
    own = {name: value for name, value in sampling.items() if getattr(form, name, value) is None}
    return form.model_copy(update=own | ({"top_k": int(own["top_k"])} if "top_k" in own else {}))


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _json(
    value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
) -> str:
    """Serialize JSON as transformers' filter does; Jinja's own would escape `<`."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template, and what it reveals of the model.

    Attributes:
        tools: it supports tools
        key: the model's name for a call's arguments
        developer: it supports that role
        short_ids: ids of calls have ID_LENGTH letters and digits
        reasons: answers may begin with reasoning
        known: its variables
    """

    template: Template
    tools: bool
    key: str
    developer: bool
    short_ids: bool
    reasons: bool
    known: frozenset[str]


class GenerationTag(Extension):
    """transformers' tag around an assistant's text, which only training needs."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the contents."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@cache
def _parsed(text: str) -> ChatTemplate:
    """Parse a template with what transformers' templates may use."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    environment.filters["tojson"] = _json
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.now().astimezone().strftime(form),
    }
    known = meta.find_undeclared_variables(environment.parse(text))
    parameters = OPEN not in text and '"parameters"' in text
    return ChatTemplate(
        environment.from_string(text),
        "tools" in known,
        ARGUMENTS[parameters],
        "developer" in text,
        f"length != {ID_LENGTH}" in text,
        THINK in text or ANSWER in text,
        frozenset(known),
    )


def template_of(pool: Pool) -> ChatTemplate:
    """Return the template of a model that can chat.

    Raises:
        ApiError: 400 if Jinja does not understand it.
    """
    assert pool.chat, "the route takes models with the ability to chat"
    try:
        return _parsed(pool.chat.template)
    except TemplateError as error:
        raise refused("model", f"{pool.model_id} has a chat template that is not valid: {error}") from error


def calling_of(form: ChatRequest, pool: Pool) -> Calling:
    """Return the tools of a request.

    Raises:
        ApiError: 400 with `param`.
    """
    template, choice, tools = template_of(pool), form.tool_choice, form.tools
    names = [tool.function.name for tool in tools]
    if names and not template.tools:
        raise refused("tools", f"are not supported: {pool.model_id} does not support tools; omit them")
    if len(names) > MOST_TOOLS:
        raise refused("tools", f"has {len(names)} functions; send {MOST_TOOLS} at most")
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise refused("tools", f"has two functions named {twice}; give each a name of its own")
    if choice not in (None, "none", "auto") and not names:
        raise refused("tool_choice", "needs tools; send some, or omit it")
    allowed = choice.allowed_tools.tools if isinstance(choice, AllowedTools) else []
    named = [tool.function.name for tool in ([choice] if isinstance(choice, NamedTool) else allowed)]
    if lacking := [name for name in named if name not in names]:
        reason = f"names {lacking[0]}, which is not among tools: {', '.join(names)}"
        raise refused("tool_choice", reason)
    if isinstance(choice, AllowedTools):
        choice, tools = choice.allowed_tools.mode, [tool for tool in tools if tool.function.name in named]
    return Calling(tuple(tools), choice or "auto", form.parallel_tool_calls, template.key)


def guide_of(form: ChatRequest, calling: Calling, pool: Pool) -> tuple[str, str] | None:
    """Return the grammar that the answer follows: a required call, or the response format.

    Raises:
        ApiError: 400 with `param`.
    """
    call, wanted = calling.guide(), form.response_format.guide() if form.response_format else None
    if call and wanted:
        raise refused("response_format", "cannot be combined with a required tool call; omit one")
    guide, param = (call, "tool_choice") if call else (wanted, "response_format")
    if guide and "guided_decoding" not in pool.capabilities:
        reason = f"{pool.model_id} does not support structured answers"
        raise refused(param, f"is not supported: {reason}; omit it")
    return guide


@cache
def _control(tokens: tuple[str, ...]) -> re.Pattern[str]:
    """Compile the pattern of special tokens, longest first."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")


def _plain(text: str, tokens: tuple[str, ...]) -> str:
    """Mark what reads like a special token, so that it is tokenized as text: a message must not end its own
    turn and begin another.
    """
    return _control(tokens).sub(lambda found: found[0][:1] + BREAK + found[0][1:], text)


def _parts(message: Message) -> list[dict[str, str]]:
    """Return content in parts, as templates of models with pictures read it; they place the picture."""
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
        for part in message.parts
    ]


def _row(
    message: Message, template: ChatTemplate, control: tuple[str, ...], *, looks: bool
) -> dict[str, Any]:
    role = "system" if message.role == "developer" and not template.developer else message.role
    more = {
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": _plain(message.reasoning_content or message.reasoning or "", control),
    }
    calls = [call.given() for call in message.tool_calls]
    if template.short_ids:
        more["tool_call_id"] = message.tool_call_id and _short(message.tool_call_id)
        calls = [{**call, "id": _short(call["id"])} for call in calls]
    return {
        "role": role,
        "content": _parts(message) if looks else _plain(message.text, control),
        **{name: value for name, value in more.items() if value},
        **({"tool_calls": calls} if calls else {}),
    }


def _answered(messages: Sequence[Message]) -> list[Message]:
    """Return messages with the results of calls in the order of the calls, since templates write results
    without ids.

    Raises:
        ApiError: 400 for the result of a call that no message has.
    """
    found, known, order = list[Message](), set[str](), dict[str, int]()
    for results, group in groupby(messages, lambda message: message.role == "tool"):
        several = list(group)
        if results:
            if stray := next((one.tool_call_id for one in several if one.tool_call_id not in known), None):
                reason = f"have a result of the call {stray!r:.80}, which no message before it has"
                raise refused("messages", f"{reason}; send the id of a call")
            several.sort(key=lambda one: order.get(one.tool_call_id or "", len(order)))
        found += several
        order = {call.id: n for n, call in enumerate(several[-1].tool_calls)}
        known |= {call.id for one in several for call in one.tool_calls}
    return found


def _short(name: str) -> str:
    """Map an id of another server to ID_LENGTH letters and digits, always the same."""
    plain = len(name) == ID_LENGTH and name.isascii() and name.isalnum()
    return name if plain else hashlib.sha256(name.encode()).hexdigest()[:ID_LENGTH]


def settings_of(form: ChatRequest, pool: Pool, guide: tuple[str, str] | None) -> dict[str, Any]:
    """Return further variables of the template: the request's own, and `reasoning_effort` as the template
    reads it. "none" turns off what `enable_thinking` turns on, and so does a grammar.
    """
    known, effort = template_of(pool).known, form.reasoning_effort
    own: dict[str, Any] = {"reasoning_effort": effort} if effort else {}
    if effort or guide:
        own["enable_thinking"] = effort != "none" and not guide
    return {name: own[name] for name in own if name in known} | (form.chat_template_kwargs or {})


def first_phase(pool: Pool, prompt: str, guide: tuple[str, str] | None) -> Phase:
    """Return how the answer to a prompt begins; one that follows a grammar has no reasoning."""
    if guide or not template_of(pool).reasons:
        return Phase.ANSWER
    return Phase.REASONING if prompt.rstrip().endswith(THINK) else Phase.START


def rendered(
    pool: Pool,
    messages: Sequence[Message],
    calling: Calling = NO_TOOLS,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Render a conversation as one text. `settings` are further variables of the template.

    Raises:
        ApiError: 400 if the model's template refuses the messages.
    """
    template, looks = template_of(pool), "pictures" in pool.capabilities
    control = pool.chat.control if pool.chat else ()
    rows = [_row(message, template, control, looks=looks) for message in _answered(messages)]
    if own := [name for name in settings or {} if name in OWN]:
        raise refused("chat_template_kwargs", f"must not have {own[0]}, which the request itself says")
    variables = {**(pool.chat.specials if pool.chat else {}), **(settings or {})}
    tools = [tool.given() for tool in calling.offered] or None
    try:
        return template.template.render(**variables, messages=rows, tools=tools, add_generation_prompt=True)
    except TEMPLATE_ERRORS as error:
        raise refused("messages", f"do not match this model's chat template: {error}") from error
