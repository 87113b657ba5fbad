"""Answers of POST /v1/responses: OpenAI's response object, whole and as events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .filters import Phase, ReasoningFilter
from .generator import TextDelta
from .items import ECHOED, ResponseRequest
from .tools import CallFilter, Calling


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


@dataclass
class TextItem:
    """An item of the output that is a text: the message, or the reasoning before it.

    Attributes:
        part: OpenAI's name for its content
        fields: of the item, besides its text
        part_fields: of its content and of its events, besides the text
    """

    id: str
    part: str
    fields: Mapping[str, Any]
    part_fields: Mapping[str, Any]
    event_fields: Mapping[str, Any]
    text: str = ""
    open: bool = False

    @classmethod
    def reasoning(cls) -> TextItem:
        """Make the item of the reasoning."""
        return cls(_id("rs"), "reasoning_text", {"type": "reasoning", "summary": []}, {}, {})

    @classmethod
    def message(cls) -> TextItem:
        """Make the item of the message."""
        fields = {"type": "message", "role": "assistant"}
        part_fields: dict[str, Any] = {"annotations": [], "logprobs": []}
        return cls(_id("msg"), "output_text", fields, part_fields, {"logprobs": []})

    def content(self, text: str) -> dict[str, Any]:
        """Return the content with a text."""
        return {"type": self.part, "text": text, **self.part_fields}

    def shown(self, status: str) -> dict[str, Any]:
        """Return the item."""
        content = [] if status == "in_progress" else [self.content(self.text)]
        return {"id": self.id, **self.fields, "status": status, "content": content}


@dataclass
class ResponseWriter:
    """Writes one answer; `form` is echoed as OpenAI does. See CompletionWriter for the methods."""

    form: ResponseRequest
    calling: Calling
    phase: Phase = Phase.ANSWER
    per_prompt: int = 1
    end: str = ""
    number: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.id, self.created = _id("resp"), int(time.time())
        self.thoughts, self.message = TextItem.reasoning(), TextItem.message()
        self.reasoning, self.filter = ReasoningFilter(self.phase), CallFilter(self.calling)
        self.calls: list[dict[str, Any]] = []
        self.cut = False

    @property
    def texts(self) -> list[TextItem]:
        """Return the items that have a text, in order."""
        return [item for item in (self.thoughts, self.message) if item.text]

    def body(self, answers: Sequence[TextDelta], usage: Mapping[str, int]) -> dict[str, Any]:
        """Return the whole answer."""
        (piece,) = answers
        self.thoughts.text, answer = self.reasoning.add(piece.text, last=True)
        self.message.text, calls = self.calling.found(answer.lstrip())
        self.cut = piece.finish == "length"
        self.calls = [_call(call, self._status(call, calls)) for call in calls]
        return self._response("incomplete" if self.cut else "completed", usage)

    def _status(self, call: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> str:
        """Return the status of a call: the last of forced ones is cut with the text."""
        return "incomplete" if self.cut and self.calling.forced and call is calls[-1] else "completed"

    def chunks(self, _: int, piece: TextDelta) -> list[dict[str, Any]]:
        """Return the events of a piece of text."""
        return list(self._chunks(piece))

    def _chunks(self, piece: TextDelta) -> Iterator[dict[str, Any]]:
        if not self.number:
            for kind in ("created", "in_progress"):
                yield self._event(f"response.{kind}", response=self._response("in_progress", None))
        self.cut = piece.finish == "length"
        thought, answer = self.reasoning.add(piece.text, last=bool(piece.finish))
        text, calls = self.filter.add(answer, last=bool(piece.finish))
        text = text if self.message.text else text.lstrip()
        yield from self._grown(self.thoughts, thought)
        if piece.finish or self.reasoning.phase is Phase.ANSWER:
            yield from self._ended(self.thoughts)
        yield from self._grown(self.message, text)
        if piece.finish:
            yield from self._ended(self.message)
            yield from self._called(calls)

    def _grown(self, item: TextItem, text: str) -> Iterator[dict[str, Any]]:
        """Return the events of more text of an item."""
        if not text:
            return
        if not item.text:
            item.open, item.text = True, text
            yield self._of(item, "response.output_item.added", item=item.shown("in_progress"))
            yield self._of(item, "response.content_part.added", content_index=0, part=item.content(""))
        else:
            item.text += text
        yield self._of(item, f"response.{item.part}.delta", content_index=0, delta=text, **item.event_fields)

    def _ended(self, item: TextItem) -> Iterator[dict[str, Any]]:
        """Return the events of the end of an item's text."""
        if item.open:
            item.open = False
            whole = {"content_index": 0, "text": item.text, **item.event_fields}
            yield self._of(item, f"response.{item.part}.done", **whole)
            part = item.content(item.text)
            yield self._of(item, "response.content_part.done", content_index=0, part=part)
            yield self._of(item, "response.output_item.done", item=self._shown(item))

    def _called(self, calls: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Return the events of the calls after the text."""
        for made in calls:
            call, at = _call(made, self._status(made, calls)), len(self.calls) + len(self.texts)
            self.calls.append(call)
            empty = {**call, "arguments": "", "status": "in_progress"}
            where = {"output_index": at, "item_id": call["id"]}
            yield self._event("response.output_item.added", output_index=at, item=empty)
            yield self._event("response.function_call_arguments.delta", **where, delta=call["arguments"])
            whole = {"arguments": call["arguments"], "name": call["name"]}
            yield self._event("response.function_call_arguments.done", **where, **whole)
            yield self._event("response.output_item.done", output_index=at, item=call)

    def last(self, usage: Mapping[str, int], *, asked: bool) -> list[dict[str, Any]]:
        """Return the event after the last text, whether usage was requested or not."""
        status = "incomplete" if self.cut else "completed"
        return [self._event(f"response.{status}", response=self._response(status, usage))]

    def line(self, chunk: Mapping[str, Any], *, usage: bool) -> str:
        """Serialize an event."""
        return f"event: {chunk['type']}\ndata: {json.dumps(chunk, ensure_ascii=False)}\n\n"

    def error(self, body: Mapping[str, Any]) -> str:
        """Make the event of an error after other events."""
        found = body["error"]
        shown = {name: found.get(name) for name in ("code", "message", "param")}
        return self.line(self._event("error", **shown), usage=False)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        made = {"type": kind, "sequence_number": self.number, **fields}
        self.number += 1
        return made

    def _of(self, item: TextItem, kind: str, /, **fields: Any) -> dict[str, Any]:
        where = {} if "item" in fields else {"item_id": item.id}
        return self._event(kind, **where, output_index=self.texts.index(item), **fields)

    def _shown(self, item: TextItem) -> dict[str, Any]:
        cut = self.cut and (item is self.message or self.reasoning.phase is not Phase.ANSWER)
        return item.shown("incomplete" if cut else "completed")

    def _response(self, status: str, usage: Mapping[str, int] | None) -> dict[str, Any]:
        form = self.form
        shown = form.model_dump(
            by_alias=True, include={"tools", "tool_choice", "text", *ECHOED}, exclude_none=True
        )
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": form.instructions,
            "max_output_tokens": form.max_output_tokens,
            "metadata": {},
            "model": form.model,
            "output": [*map(self._shown, self.texts), *self.calls] if usage else [],
            "parallel_tool_calls": form.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if form.temperature is None else form.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "top_p": 1.0 if form.top_p is None else form.top_p,
            "truncation": "disabled",
            "usage": usage and _usage(usage),
            **shown,
        }


def _call(call: Mapping[str, Any], status: str) -> dict[str, Any]:
    return {
        "id": _id("fc"),
        "type": "function_call",
        "status": status,
        "call_id": call["id"],
        **call["function"],
    }


def _usage(usage: Mapping[str, int]) -> dict[str, Any]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
