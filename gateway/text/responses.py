"""Write texts in OpenAI's response formats."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..sse import event
from .filters import Phase, ReasoningFilter
from .generator import TextDelta, Token, bytes_of
from .tools import CallFilter, Calling


@dataclass
class CompletionWriter:
    """Writes /v1/completions: OpenAI's text_completion."""

    model: str
    prompts: Sequence[str] = ()
    echo: bool = False
    log_probs: bool = False
    per_prompt: int = 1
    kind: str = "text_completion"
    prefix: str = "cmpl-"
    chunk: str = "text_completion"
    end: str = "data: [DONE]\n\n"

    def __post_init__(self) -> None:
        self.head: dict[str, Any] = {
            "id": f"{self.prefix}{uuid.uuid4().hex}",
            "object": self.kind,
            "created": int(time.time()),
            "model": self.model,
        }
        self.begun: set[int] = set()
        self.written: set[int] = set()
        self.offsets: dict[int, int] = {}

    def body(self, answers: Sequence[TextDelta], usage: Mapping[str, int]) -> dict[str, Any]:
        """Return the whole answer."""
        return {
            **self.head,
            "choices": [self._choice(i, piece) for i, piece in enumerate(answers)],
            "usage": usage,
        }

    def chunks(self, i: int, piece: TextDelta) -> list[dict[str, Any]]:
        """Return the events of a piece of text."""
        return [{**self.head, "choices": [self._choice(i, piece)]}]

    def last(self, usage: Mapping[str, int], *, asked: bool) -> list[dict[str, Any]]:
        """Return the events after the last text; `asked`: usage is requested."""
        return [{**self.head, "object": self.chunk, "choices": [], "usage": usage}] if asked else []

    def line(self, chunk: Mapping[str, Any], *, usage: bool) -> str:
        """Serialize an event; `usage`: say that there is none yet."""
        return event({"usage": None, **chunk} if usage else chunk)

    def error(self, body: Mapping[str, Any]) -> str:
        """Make the event of an error after other events."""
        return event(body)

    def _choice(self, i: int, piece: TextDelta) -> dict[str, Any]:
        echoed = self.prompts[i // self.per_prompt] if self.echo and i not in self.begun else ""
        self.begun.add(i)
        found = self._log_probs(piece.tokens, self.offsets.get(i, 0)) if self.log_probs else None
        self.offsets[i] = self.offsets.get(i, 0) + sum(map(_characters, piece.tokens))
        return {"index": i, "text": echoed + piece.text, "logprobs": found, "finish_reason": piece.finish}

    @staticmethod
    def _log_probs(tokens: Sequence[Token], offset: int) -> dict[str, Any]:
        offsets = [offset + sum(map(_characters, tokens[:n])) for n in range(len(tokens))]
        top = [_likeliest(token) for token in tokens] if any(token.top for token in tokens) else None
        return {
            "tokens": [t.text for t in tokens],
            "token_logprobs": [t.log_prob for t in tokens],
            "top_logprobs": top,
            "text_offset": offsets,
        }


@dataclass
class ChatWriter(CompletionWriter):
    """Writes /v1/chat/completions: OpenAI's chat.completion and its chunks. A text starts with its first
    letter: the space before it is the tokenizer's. `phase`: how texts begin.
    """

    kind: str = "chat.completion"
    prefix: str = "chatcmpl-"
    chunk: str = "chat.completion.chunk"
    calling: Calling = field(default_factory=Calling)
    phase: Phase = Phase.ANSWER

    def __post_init__(self) -> None:
        super().__post_init__()
        self.filters: dict[int, tuple[ReasoningFilter, CallFilter]] = {}

    def chunks(self, i: int, piece: TextDelta) -> list[dict[str, Any]]:
        """Return the events of a piece: the first has the role, the last the finish reason."""
        head: dict[str, Any] = {**self.head, "object": self.chunk}
        found: list[dict[str, Any]] = []
        if i not in self.begun:
            self.begun.add(i)
            found.append({"role": "assistant", "content": ""})
        fresh = ReasoningFilter(self.phase), CallFilter(self.calling)
        reasoning, calls = self.filters.setdefault(i, fresh)
        thought, answer = reasoning.add(piece.text, last=bool(piece.finish))
        text, called = calls.add(answer, last=bool(piece.finish))
        text = text if i in self.written else text.lstrip()
        if text:
            self.written.add(i)
        if thought:
            found.append({"reasoning_content": thought})
        if text or piece.tokens:
            found.append({"content": text})
        found += [{"tool_calls": [{"index": at, **call}]} for at, call in enumerate(called)]
        choices: list[dict[str, Any]] = [
            {"index": i, "delta": delta, "logprobs": None, "finish_reason": None} for delta in found
        ]
        for choice in choices:
            if "content" in choice["delta"] and "role" not in choice["delta"]:
                choice["logprobs"] = self._content(piece.tokens)
        if piece.finish:
            finish = _finish(piece, called)
            choices.append({"index": i, "delta": {}, "logprobs": None, "finish_reason": finish})
        return [{**head, "choices": [choice]} for choice in choices]

    def _choice(self, i: int, piece: TextDelta) -> dict[str, Any]:
        thought, answer = ReasoningFilter(self.phase).add(piece.text, last=True)
        text, calls = self.calling.found(answer.lstrip())
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        message |= {"reasoning_content": thought} if thought else {}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        return {
            "index": i,
            "message": message,
            "logprobs": self._content(piece.tokens),
            "finish_reason": _finish(piece, calls),
        }

    def _content(self, tokens: Sequence[Token]) -> dict[str, Any] | None:
        if not self.log_probs:
            return None
        rows = [
            {**_log_prob(t.text, t.log_prob), "top_logprobs": [_log_prob(*top) for top in t.top]}
            for t in tokens
        ]
        return {"content": rows, "refusal": None}


def _finish(piece: TextDelta, calls: Sequence[Any]) -> str | None:
    """Return the finish reason; calls may be cut, too."""
    return "tool_calls" if calls and piece.finish != "length" else piece.finish


def _characters(token: Token) -> int:
    """Count the characters that begin in a token."""
    return sum(byte & 0xC0 != 0x80 for byte in token.raw)  # UTF-8: others continue one


def _log_prob(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(bytes_of(text))}


def _likeliest(token: Token) -> dict[str, float]:
    """Return the likeliest tokens. As at OpenAI the chosen token is always included; of two with the same
    text (parts of a character) the likelier counts.
    """
    found: dict[str, float] = {}
    for text, value in [*token.top, (token.text, token.log_prob)]:
        found.setdefault(text, value)
    return found


def usage_of(answers: Sequence[TextDelta], per_prompt: int) -> dict[str, int]:
    """Count tokens read and generated by texts in order. Each prompt is counted once, however many texts it
    has.
    """
    read = sum(piece.read for piece in answers[::per_prompt])
    written = sum(piece.written for piece in answers)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
