"""Convert bodies of POST /v1/responses to conversations: the subset of OpenAI's input items that chat
supports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, ValidationError
from pydantic import Tag as Of

from conch.errors import ApiError, refused

from ..explanations import explained
from ..fields import Fields, Json, Only, Text
from .schema import BILLING, ChatRequest, StreamOptions
from .tools import FunctionName, Name

# Fields that change no answer, but are in it.
ECHOED = {"metadata", "prompt_cache_key", "safety_identifier", "user"}
# What chat calls a field, and what clients of this route call it.
NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"}


class InputText(Fields):
    """A piece of an item's content."""

    HARMLESS: ClassVar = frozenset({"annotations", "logprobs", "prompt_cache_breakpoint"})

    type: Literal["input_text", "output_text"]
    text: Text


class InputImage(Fields):
    """A picture; `detail` is ignored, because the models read pictures in one size."""

    HARMLESS: ClassVar = frozenset({"detail"})
    NEUTRAL: ClassVar = {"file_id": Only((), "is not supported; send image_url")}

    type: Literal["input_image"]
    image_url: Text


Part = Annotated[InputText | InputImage, Field(discriminator="type")]


class InputMessage(Fields):
    """A message of a conversation; an earlier answer may be sent back unchanged."""

    HARMLESS: ClassVar = frozenset({"id", "phase", "status"})

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[Part], Field(fail_fast=True)]

    def message(self) -> dict[str, Any]:
        """Convert it to a chat message."""
        if isinstance(self.content, str):
            return {"role": self.role, "content": self.content}
        parts: list[dict[str, Any]] = [
            {"type": "text", "text": part.text}
            if isinstance(part, InputText)
            else {"type": "image_url", "image_url": {"url": part.image_url}}
            for part in self.content
        ]
        return {"role": self.role, "content": parts}


class FunctionCall(Fields):
    """A call of an earlier answer."""

    HARMLESS: ClassVar = frozenset({"id", "status"})

    type: Literal["function_call"]
    call_id: Text
    name: Text
    arguments: Text

    def call(self) -> dict[str, Any]:
        """Convert it to a chat call."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


class FunctionOutput(Fields):
    """A tool's result."""

    HARMLESS: ClassVar = frozenset({"id", "status"})

    type: Literal["function_call_output"]
    call_id: Text
    output: Text | Annotated[list[InputText], Field(fail_fast=True)]

    def message(self) -> dict[str, Any]:
        """Convert it to a chat message."""
        texts = [self.output] if isinstance(self.output, str) else [part.text for part in self.output]
        return {"role": "tool", "tool_call_id": self.call_id, "content": "".join(texts)}


class ReasoningText(Fields):
    """A piece of reasoning."""

    type: Literal["reasoning_text"]
    text: Text


class ReasoningItem(Fields):
    """The reasoning before an earlier answer or call."""

    HARMLESS: ClassVar = frozenset({"encrypted_content", "id", "status", "summary"})

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(fail_fast=True)] = Field(default_factory=list)

    @property
    def text(self) -> str:
        """Return it as one text."""
        return "".join(part.text for part in self.content)


def _kind(item: Any) -> str:
    """Return an item's type, which messages may leave out."""
    return str(item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", ""))


Item = Annotated[
    Annotated[InputMessage, Of("message")]
    | Annotated[FunctionCall, Of("function_call")]
    | Annotated[FunctionOutput, Of("function_call_output")]
    | Annotated[ReasoningItem, Of("reasoning")],
    Discriminator(_kind),
]


class FunctionTool(Fields):
    """A tool: its type and the fields of its function."""

    HARMLESS: ClassVar = frozenset({"strict"})

    type: Literal["function"]
    name: Name
    description: Text | None = None
    parameters: Json | None = None

    def tool(self) -> dict[str, Any]:
        """Convert it to a chat tool."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


class ChosenTool(FunctionName):
    """The tool that must be called."""

    type: Literal["function"]

    def named(self) -> dict[str, Any]:
        """Convert it to chat's form."""
        return {"type": "function", "function": {"name": self.name}}


class AllowedFunctions(Fields):
    """The tools that may be called, or must with mode "required"."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], Field(min_length=1, fail_fast=True)]


class Format(Fields):
    """The response format."""

    HARMLESS: ClassVar = frozenset({"description", "strict"})

    type: Literal["text", "json_object", "json_schema"]
    name: Text | None = None
    content: Json | None = Field(None, alias="schema")

    def given(self) -> dict[str, Any]:
        """Convert it to chat's response format."""
        schema = {} if self.content is None else {"json_schema": {"name": "answer", "schema": self.content}}
        return {"type": self.type, **schema}


class TextOptions(Fields):
    """OpenAI's `text`."""

    HARMLESS: ClassVar = frozenset({"verbosity"})

    format: Format | None = None


class Reasoning(Fields):
    """OpenAI's `reasoning`."""

    HARMLESS: ClassVar = frozenset({"context", "generate_summary", "mode", "summary"})

    effort: Text | None = None


class ResponseRequest(Fields):
    """Body of /v1/responses."""

    HARMLESS: ClassVar = (BILLING - ECHOED) | {"max_tool_calls"}
    NEUTRAL: ClassVar = {
        "background": Only((False,), "is not supported; omit it, or use stream"),
        "context_management": Only(([],), "is not supported; send what the model is to read"),
        "include": Only(
            ([], ["reasoning.encrypted_content"]), "is not supported: there is nothing more; omit it"
        ),
        "conversation": Only((), "is not supported: nothing is kept; send the whole conversation as input"),
        "moderation": Only((), "is not supported: this server does not moderate; omit it"),
        "previous_response_id": Only(
            (), "is not supported: nothing is kept; send the whole conversation as input"
        ),
        "prompt": Only((), "is not supported: no prompts are stored; send instructions and input"),
        "truncation": Only(("disabled",), "must be disabled: send what the model is to read"),
    }

    model: str
    input: Text | Annotated[list[Item], Field(min_length=1, fail_fast=True)]
    instructions: Text | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    metadata: Json | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: Text | None = None
    reasoning: Reasoning | None = None
    safety_identifier: Text | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    text: TextOptions | None = None
    tool_choice: (
        Literal["none", "auto", "required"]
        | Annotated[ChosenTool | AllowedFunctions, Field(discriminator="type")]
        | None
    ) = None
    tools: Annotated[list[FunctionTool], Field(fail_fast=True)] = Field(default_factory=list)
    top_logprobs: Literal[0] | None = None
    top_p: float | None = Field(None, ge=0.0, le=1.0)
    user: Text | None = None

    def chat(self) -> ChatRequest:
        """Convert it to a chat request."""
        choice: Any = self.tool_choice
        if isinstance(choice, ChosenTool):
            choice = choice.named()
        elif isinstance(choice, AllowedFunctions):
            allowed = {"mode": choice.mode, "tools": [tool.named() for tool in choice.tools]}
            choice = {"type": choice.type, "allowed_tools": allowed}
        fields = {
            "model": self.model,
            "messages": list(self._messages()),
            "max_completion_tokens": self.max_output_tokens,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning and self.reasoning.effort,
            "response_format": self.text.format.given() if self.text and self.text.format else None,
            "stream": self.stream,
            "temperature": self.temperature,
            "tool_choice": choice,
            "tools": [tool.tool() for tool in self.tools],
            "top_p": self.top_p,
        }
        try:
            return ChatRequest.model_validate(fields)
        except ValidationError as error:
            told = explained(error.errors()[:1]).strip(": ")
            raise refused("input", f"is not a conversation: {told}") from error

    def _items(self) -> Sequence[Item]:
        """Return the items without reasoning of which only a summary or encrypted content was sent back."""
        if isinstance(self.input, str):
            return [InputMessage(role="user", content=self.input)]
        return [item for item in self.input if not isinstance(item, ReasoningItem) or item.text]

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Convert the items; successive calls become one message. Reasoning is the assistant's: in the
        message after it, or in one of its own.
        """
        if self.instructions:
            yield {"role": "system", "content": self.instructions}
        calls, thoughts = list[dict[str, Any]](), list[str]()
        for item in self._items():
            if isinstance(item, FunctionCall):
                calls.append(item.call())
                continue
            if calls:
                yield {"role": "assistant", "content": "", "tool_calls": calls, **_reasoning(thoughts)}
                calls, thoughts = [], []
            if isinstance(item, ReasoningItem):
                thoughts.append(item.text)
                continue
            message = item.message()
            if message["role"] == "assistant":
                message |= _reasoning(thoughts)
            elif thoughts:
                yield {"role": "assistant", "content": "", **_reasoning(thoughts)}
            thoughts = []
            yield message
        if calls:
            raise refused("input", "ends with a function_call; send its function_call_output, too")
        if thoughts:
            raise refused("input", "ends with reasoning; send what follows it, or omit it")


def _reasoning(thoughts: Sequence[str]) -> dict[str, str]:
    return {"reasoning_content": "\n".join(thoughts)} if thoughts else {}


def renamed(error: ApiError) -> ApiError:
    """Rename chat's field in an error to this route's."""
    if error.param not in NAMES:
        return error
    name = NAMES[error.param]
    return ApiError(error.status, error.message.replace(error.param, name, 1), param=name, code=error.code)
