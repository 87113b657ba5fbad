"""Tools of a chat: their fields in a request, the grammar of a call, and parsing calls from text.

Models write calls as JSON with a name and arguments, alone (Llama), in a list (Mistral), or between
`<tool_call>` tags (Qwen, Hermes, SmolLM2); their chat templates show which.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from conch.errors import refused

from ..fields import Fields, Json, Only, Text
from .filters import partial_end

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAGGED = re.compile(f"{OPEN}(.*?)(?:{CLOSE}|$)", re.DOTALL)
PREFIXES = ("[TOOL_CALLS]", "<|python_tag|>")
MOST_TOOLS = 128  # OpenAI's limit
ARGUMENTS = ("arguments", "parameters")
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
# A forced call up to its arguments, as the grammar of `guide` has it; a list has more of them.
BEGUN = re.compile(
    rf'(?P<head>[\s\[,}}]*\{{\s*"name"\s*:\s*"(?P<name>[\w.-]+)"\s*,\s*"(?:{"|".join(ARGUMENTS)})"\s*:\s*)'
)
ID_LENGTH = 9  # of a call's id: what Mistral's templates want
Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Function(Fields):
    """What a tool does. `parameters` is a JSON schema of its arguments."""

    # Arguments follow the schema where a call is forced, whether that is asked for or not.
    HARMLESS: ClassVar = frozenset({"strict"})

    name: Name
    description: Text | None = None
    parameters: Json | None = None


class Tool(Fields):
    """A function that the model may call."""

    type: Literal["function"]
    function: Function

    def given(self) -> dict[str, Any]:
        """Return it in the form that chat templates read."""
        return self.model_dump(exclude_none=True)


class FunctionName(Fields):
    """Which function to call."""

    name: Name


class NamedTool(Fields):
    """The tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class Allowed(Fields):
    """The tools that may be called, or must with mode "required"."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, fail_fast=True)]


class AllowedTools(Fields):
    """OpenAI's restriction of a request's tools to a part of them."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


ToolChoice = (
    Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedTools, Field(discriminator="type")]
)


class CalledFunction(Fields):
    """A call in an earlier answer; `arguments` is JSON."""

    name: Text
    arguments: Text


class CalledTool(Fields):
    """See CalledFunction."""

    NEUTRAL: ClassVar = {"index": Only(tuple(range(MOST_TOOLS)), "must be a small number; omit it")}

    id: Text
    type: Literal["function"] = "function"
    function: CalledFunction

    def given(self) -> dict[str, Any]:
        """Return it in the form that chat templates read, with the arguments as an object if they are one."""
        try:
            arguments = json.loads(self.function.arguments)
        except (ValueError, RecursionError):
            arguments = self.function.arguments
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.function.name, "arguments": arguments},
        }


class JsonSchema(Fields):
    """A schema that the answer follows."""

    HARMLESS: ClassVar = frozenset({"description", "name", "strict"})

    content: Json = Field(alias="schema")


class ResponseFormat(Fields):
    """OpenAI's response_format."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def guide(self) -> tuple[str, str] | None:
        """Return kind and text of the grammar, in TensorRT-LLM's terms.

        Raises:
            ApiError: 400 without a schema where one is announced, or with one where none is.
        """
        if (self.json_schema is not None) != (self.type == "json_schema"):
            problem = "lacks its schema; send it" if self.json_schema is None else "takes no schema; omit it"
            raise refused("response_format", f'of type "{self.type}" {problem}')
        if self.json_schema is not None:
            return "json_schema", json.dumps(self.json_schema.content)
        return ("json", "{}") if self.type == "json_object" else None


@dataclass(frozen=True)
class Calling:
    """The tools of one request and how to call them; `key` is the model's name for arguments. `several`: an
    answer may have more than one call; None for what the model writes, and one where a call is forced.
    """

    tools: tuple[Tool, ...] = ()
    choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    several: bool | None = None
    key: str = ARGUMENTS[0]

    @property
    def offered(self) -> tuple[Tool, ...]:
        """Return the tools that the model is told of."""
        return () if self.choice == "none" else self.tools

    def guide(self) -> tuple[str, str] | None:
        """Return a grammar that allows only calls, where one is required."""
        if not self.forced:
            return None
        chosen = self._chosen
        several = self.several and not isinstance(self.choice, NamedTool)
        root = "#/items" if several else "#"
        places = [root] if len(chosen) == 1 else [f"{root}/anyOf/{i}" for i in range(len(chosen))]
        calls = [self._call(function, place) for function, place in zip(chosen, places, strict=True)]
        one = calls[0] if len(calls) == 1 else {"anyOf": calls}
        schema = {"type": "array", "items": one, "minItems": 1} if several else one
        return "json_schema", json.dumps(schema)

    @property
    def forced(self) -> bool:
        """Tell whether the answer must be a call."""
        return bool(self.tools) and self.choice not in ("none", "auto")

    @property
    def _chosen(self) -> list[Function]:
        """Return the functions that may be called."""
        named = self.choice.function.name if isinstance(self.choice, NamedTool) else ""
        return [tool.function for tool in self.tools if named in ("", tool.function.name)]

    def _call(self, function: Function, place: str) -> dict[str, Any]:
        """Return the schema of a call; `place` is its path in the whole schema, where references lead."""
        given = NO_ARGUMENTS if function.parameters is None else function.parameters or {"type": "object"}
        arguments = _moved(given, f"{place}/properties/{self.key}")
        return {
            "type": "object",
            "properties": {"name": {"const": function.name}, self.key: arguments},
            "required": ["name", self.key],
            "additionalProperties": False,
        }

    def found(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        """Return the text without its calls, and the calls in OpenAI's form. What cannot be parsed stays
        text, but for the start of a forced call.
        """
        if not self.offered:
            return text, []
        if self.forced:
            return "", self._begun(text)
        tagged = TAGGED.findall(text)
        pieces = tagged or [_bare(text)]
        calls = [call for piece in pieces for call in self._calls(piece)]
        if not calls:
            return text, []
        calls = calls[:1] if self.several is False else calls
        return (TAGGED.sub("", text).strip() if tagged else ""), calls

    def _begun(self, text: str) -> list[dict[str, Any]]:
        """Return forced calls, the last as far as it goes: its arguments may be cut, as OpenAI's are."""
        calls, at, decoder = list[dict[str, Any]](), 0, json.JSONDecoder()
        while start := BEGUN.match(text, at):
            name, at = start["name"], start.end("head")
            try:
                arguments, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                return [*calls, _called(name, text[at:])]
            calls.append(_called(name, arguments))
        return calls

    def _calls(self, text: str) -> list[dict[str, Any]]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return []
        rows: Iterable[Any] = found if isinstance(found, list) else [found]
        names = {tool.function.name for tool in self.tools}
        return [
            _called(row["name"], next(row[key] for key in ARGUMENTS if key in row))
            for row in rows
            if isinstance(row, Mapping)
            and isinstance(row.get("name"), str)
            and row["name"] in names
            and any(key in row for key in ARGUMENTS)
        ]

    def may_call(self, text: str) -> bool:
        """Tell whether a text that starts like this may be a call."""
        begun = text.lstrip()
        starts = ("{", "[", OPEN, *PREFIXES)
        return bool(self.offered) and any(begun.startswith(s) or s.startswith(begun) for s in starts)


def _moved(schema: Any, place: str) -> Any:
    """Redirect a schema's references to its own root to `place`."""
    if isinstance(schema, list):
        return [_moved(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _moved(part, place) for name, part in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        found["$ref"] = place + reference[1:]
    return found


def _bare(text: str) -> str:
    for prefix in PREFIXES:
        text = text.strip().removeprefix(prefix)
    return text


def _called(name: str, arguments: Any) -> dict[str, Any]:
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {
        "id": uuid.uuid4().hex[:ID_LENGTH],
        "type": "function",
        "function": {"name": name, "arguments": written},
    }


@dataclass
class CallFilter:
    """Streams a text without what may become calls, which are parsed at its end."""

    calling: Calling
    whole: str = ""
    shown: int = field(default=0, init=False)

    def add(self, text: str, *, last: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """Return what can be sent now and, with the last text, the calls."""
        self.whole += text
        if not self.calling.offered:
            return text, []
        piece = ""
        if self.shown or not self.calling.may_call(self.whole):
            at = self.whole.find(OPEN)
            end = at if at >= 0 else len(self.whole) - partial_end(self.whole, OPEN)
            end = len(self.whole[:end].rstrip())  # the space before a call is not shown
            piece, self.shown = self.whole[self.shown : end], max(end, self.shown)
        if not last:
            return piece, []
        rest, (_, calls) = self.whole[self.shown :], self.calling.found(self.whole)
        if calls or self.calling.forced:
            rest = TAGGED.sub("", rest).rstrip() if OPEN in self.whole and not self.calling.forced else ""
        return piece + rest, calls
