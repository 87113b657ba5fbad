"""Generate text with the façade `tensorrt_llm_bls`, whole or streamed, ended before a stop sequence."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from conch.deployment import Pool
from conch.names import BYTES, TEXT

from ..triton import Arrays, Triton
from .calls import Call, arrays
from .filters import StopSequenceFilter


@dataclass(frozen=True)
class Token:
    """A token's text, its log probability, and the likeliest alternatives."""

    text: str
    log_prob: float
    top: tuple[tuple[str, float], ...] = ()

    @property
    def raw(self) -> bytes:
        """Return its bytes."""
        return bytes_of(self.text)


def bytes_of(text: str) -> bytes:
    """Return the bytes of a token, which may be part of a character (serving/text/tokens.py)."""
    hexadecimal = text.removeprefix(BYTES).replace("\\x", "")
    return bytes.fromhex(hexadecimal) if text.startswith(f"{BYTES}\\x") else text.encode()


@dataclass(frozen=True)
class TextDelta:
    """Some text of a choice and its tokens (if log probabilities were requested); `finish` is OpenAI's finish
    reason at the end.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    finish: str | None = None
    read: int = 0
    written: int = 0


async def whole(triton: Triton, pool: Pool, question: Call, request_id: str) -> list[TextDelta]:
    """Return the answer to a question, one piece for each text, best first.

    Raises:
        ApiError: see Triton.infer.
    """
    about = _about_tokens(question)
    outputs = ["text_output", "num_input_tokens", "num_output_tokens", *about]
    outputs += ["output_lengths"] if about else []
    result = await triton.infer(pool, TEXT, arrays(question), outputs, request_id)
    texts = result["text_output"].reshape(-1)
    return [
        _piece(pool, question, result, i, text.decode("utf-8", "replace")) for i, text in enumerate(texts)
    ]


def _piece(pool: Pool, question: Call, result: Arrays, i: int, text: str) -> TextDelta:
    lengths = result["output_lengths" if "output_lengths" in result else "num_output_tokens"].reshape(-1)
    count = int(lengths[i])
    rows = (result[name].reshape(len(lengths), -1)[i] for name in _about_tokens(question))
    tokens = _tokens(count, *rows)
    ending = StopSequenceFilter(question.get("stop_words", ()))
    shown = ending.add(text, last=True)
    read = int(result["num_input_tokens"].item())
    cut = count >= _room(pool, question, read) and not ending.stopped
    return TextDelta(
        shown,
        _within(tokens, len(shown.encode())) if ending.stopped else tokens,
        "length" if cut else "stop",
        read,
        count,
    )


def _room(pool: Pool, question: Call, read: int) -> int:
    """Return the most tokens that an answer may have: a decoder-only model holds the prompt as well."""
    most: int = question["max_tokens"]
    return most if pool.encoder_positions else min(most, pool.positions - read)


def _within(tokens: Sequence[Token], length: int) -> tuple[Token, ...]:
    """Return the tokens that start in the first `length` bytes of their text."""
    begins = accumulate((len(token.raw) for token in tokens), initial=0)
    return tuple(token for token, begin in zip(tokens, begins, strict=False) if begin < length)


def _about_tokens(question: Call) -> list[str]:
    """Return the outputs about tokens that a call asks for, as `_tokens` takes them."""
    tops = ["top_tokens", "top_token_log_probs"] if question.get("top_log_probs") else []
    return ["output_tokens", "output_log_probs", *tops] if "top_log_probs" in question else []


def _tokens(
    count: int, texts: Any = (), probs: Any = (), top_texts: Any = (), top_probs: Any = ()
) -> tuple[Token, ...]:
    """Make the first `count` tokens of flat lists; each has as many alternatives."""
    tops, each = _pairs(top_texts, top_probs), len(top_texts) // max(1, len(texts))
    return tuple(
        Token(*token, tuple(tops[n * each : (n + 1) * each]))
        for n, token in enumerate(_pairs(texts[:count], probs[:count]))
    )


def _pairs(texts: Any, probs: Any) -> list[tuple[str, float]]:
    return [
        (text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text), float(prob))
        for text, prob in zip(texts, probs, strict=True)
    ]


async def stream(
    triton: Triton, pool: Pool, question: Call, request_id: str
) -> AsyncGenerator[TextDelta, None]:
    """Yield the answer to a question as it is generated; the last piece has the finish reason.

    Raises:
        ApiError: see Triton.stream.
    """
    fields = {**question, "stream": True}
    ending, read, written = StopSequenceFilter(question.get("stop_words", ())), 0, 0
    held = list[Token]()  # tokens whose text is held back
    ahead = 0  # bytes of text that were shown beyond the tokens'
    async with aclosing(triton.stream(pool, f"{TEXT}_stream", fields, request_id)) as events:
        async for event in events:
            read = int(event.get("num_input_tokens", read))
            written = int(event.get("num_output_tokens", written))
            text = ending.add(str(event["text_output"]))
            rows = (_list(event, name) for name in _about_tokens(question))
            held += _tokens(int(event.get("output_lengths", 0)), *rows)
            size = len(text.encode())
            tokens = _within(held, ahead + size) if ending.stops else tuple(held)
            ahead += size - sum(len(token.raw) for token in tokens)
            held = held[len(tokens) :]
            if text or tokens:
                yield TextDelta(text, tokens)
            if ending.stopped:
                break
    rest = ending.add("", last=True) if not ending.stopped else ""
    cut = written >= _room(pool, question, read) and not ending.stopped
    finish = "length" if cut else "stop"
    yield TextDelta(rest, () if ending.stopped else tuple(held), finish, read, written)


def _list(event: Mapping[str, Any], name: str) -> list[Any]:
    """Return an output of Triton's JSON, which has a scalar for a single value, and no second dimension."""
    value = event.get(name, [])
    return value if isinstance(value, list) else [value]
