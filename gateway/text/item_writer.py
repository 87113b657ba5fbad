"""Answers of POST /v1/responses: OpenAI's response object, whole and as events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .generator import TextDelta
from .items import ResponseRequest
from .tools import CallFilter, Calling


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


@dataclass
class ResponseWriter:
    """Writes one answer; `form` is echoed as OpenAI does. See CompletionWriter for the methods."""

    form: ResponseRequest
    calling: Calling
    per_prompt: int = 1
    end: str = ""
    number: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.id, self.created, self.message = _id("resp"), int(time.time()), _id("msg")
        self.filter, self.text, self.begun = CallFilter(self.calling), "", False
        self.calls: list[dict[str, Any]] = []
        self.cut = False

    def body(self, answers: Sequence[TextDelta], usage: Mapping[str, int]) -> dict[str, Any]:
        """Return the whole answer."""
        (piece,) = answers
        self.text, calls = self.calling.found(piece.text.lstrip())
        self.calls, self.cut = [_call(call) for call in calls], piece.finish == "length"
        return self._response("incomplete" if self.cut else "completed", usage)

    def chunks(self, _: int, piece: TextDelta) -> list[dict[str, Any]]:
        """Return the events of a piece of text."""
        return list(self._chunks(piece))

    def _chunks(self, piece: TextDelta) -> Iterator[dict[str, Any]]:
        if not self.number:
            for kind in ("created", "in_progress"):
                yield self._event(f"response.{kind}", response=self._response("in_progress", None))
        text, calls = self.filter.add(piece.text), list[dict[str, Any]]()
        if piece.finish:
            rest, calls = self.filter.end()
            text, self.cut = text + rest, piece.finish == "length"
        yield from self._finished(text if self.text else text.lstrip())
        if piece.finish:
            yield from self._ended(calls)

    def _finished(self, text: str) -> Iterator[dict[str, Any]]:
        if not text:
            return
        if not self.begun:
            self.begun = True
            item = {**self._message(), "status": "in_progress", "content": []}
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._part("response.content_part.added", part=_text(""))
        self.text += text
        yield self._part("response.output_text.delta", delta=text, logprobs=[])

    def _ended(self, calls: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Return the events of the end of the text, then of the calls."""
        if self.begun:
            yield self._part("response.output_text.done", text=self.text, logprobs=[])
            yield self._part("response.content_part.done", part=_text(self.text))
            yield self._event("response.output_item.done", output_index=0, item=self._message())
        for made in calls:
            call, at = _call(made), len(self.calls) + self.begun
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

    def _part(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._event(kind, item_id=self.message, output_index=0, content_index=0, **fields)

    def _message(self) -> dict[str, Any]:
        return {
            "id": self.message,
            "type": "message",
            "role": "assistant",
            "status": "incomplete" if self.cut else "completed",
            "content": [_text(self.text)],
        }

    def _response(self, status: str, usage: Mapping[str, int] | None) -> dict[str, Any]:
        form = self.form
        shown = form.model_dump(by_alias=True, include={"tools", "tool_choice", "text"}, exclude_none=True)
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
            "output": [*([self._message()] if self.text else []), *self.calls] if usage else [],
            "parallel_tool_calls": form.parallel_tool_calls,
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


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": _id("fc"),
        "type": "function_call",
        "status": "completed",
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
