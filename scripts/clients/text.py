"""Client for text, with or without pictures, through either the gateway's OpenAI API or Triton's generate
endpoints.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import EventSource

from .speech import OnText, RequestFailed, base, complaint, connections, trouble, unreachable


@dataclass(frozen=True)
class TextOptions:
    """Options of every prompt.

    Attributes:
        temperature: 0 for greedy decoding
        stop: stop sequences
        pictures: data URLs of the pictures that the prompt is about
    """

    model: str
    max_tokens: int
    temperature: float = 0.0
    stop: tuple[str, ...] = ()
    stream: bool = False
    pictures: tuple[str, ...] = ()


# How files of pictures begin (the formats that servers of ours read).
KINDS = {b"\x89PNG": "png", b"\xff\xd8": "jpeg", b"RIFF": "webp", b"GIF8": "gif", b"BM": "bmp"}


def data_url(path: Path) -> str:
    """Encode a picture as data URL (RFC 2397).

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a picture of a known kind.
    """
    data = path.read_bytes()
    kind = next((kind for start, kind in KINDS.items() if data.startswith(start)), None)
    if kind is None:
        raise ValueError(f"{path} is not a picture; name a file in PNG, JPEG, WebP, GIF or BMP")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True)
class TextAnswer:
    """An answer; `tokens` is 0 where the server does not count."""

    text: str
    tokens: int


class OpenAi:
    """Uses /v1/completions, and with pictures /v1/chat/completions (OpenAI's API reference). An answer is one
    JSON object; a stream is several, and then `last`.
    """

    last = "[DONE]"

    def route(self, ask: TextOptions) -> str:
        """Return the path below the server's address."""
        return "/v1/chat/completions" if ask.pictures else "/v1/completions"

    def body(self, ask: TextOptions, prompt: str) -> dict[str, Any]:
        """Return a request's JSON."""
        options: dict[str, Any] = (
            {"stream": True, "stream_options": {"include_usage": True}} if ask.stream else {}
        )
        options |= {"stop": list(ask.stop)} if ask.stop else {}
        return {
            "model": ask.model,
            **({"messages": [_message(ask.pictures, prompt)]} if ask.pictures else {"prompt": prompt}),
            "max_tokens": ask.max_tokens,
            "temperature": ask.temperature,
            **options,
        }

    def read(self, data: Any) -> TextAnswer:
        """Return the new text of one object, and the tokens counted so far."""
        tokens = (data.get("usage") or {}).get("completion_tokens", 0)
        return TextAnswer("".join(map(_choice_text, data["choices"])), tokens)


def _message(pictures: Sequence[str], text: str) -> dict[str, Any]:
    seen = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    return {"role": "user", "content": [*seen, {"type": "text", "text": text}]}


def _choice_text(choice: Mapping[str, Any]) -> str:
    """Return the text of a choice: of a completion, of a message, or of a piece of one."""
    if "text" in choice:
        return str(choice["text"])
    return (choice["delta"] if "delta" in choice else choice["message"]).get("content") or ""


@dataclass(frozen=True)
class Generate:
    """Uses /v2/models/<facade>/generate and generate_stream (Triton's generate extension), with the tensors
    of TensorRT-LLM's models. A stream ends with the response.
    """

    facade: str = "ensemble"
    last: str = ""

    def route(self, ask: TextOptions) -> str:
        return f"/v2/models/{self.facade}/generate{'_stream' if ask.stream else ''}"

    def body(self, ask: TextOptions, prompt: str) -> dict[str, Any]:
        options: dict[str, Any] = (
            {"temperature": ask.temperature, "top_p": 1.0} if ask.temperature else {"top_k": 1}
        )
        options |= {"stop_words": list(ask.stop)} if ask.stop else {}
        options |= {"image_urls": list(ask.pictures)} if ask.pictures else {}
        return {"text_input": prompt, "max_tokens": ask.max_tokens, "stream": ask.stream, **options}

    def read(self, data: Any) -> TextAnswer:
        lengths = data.get("output_lengths", 0)
        return TextAnswer(
            data["text_output"],
            data.get("num_output_tokens", sum(lengths) if isinstance(lengths, list) else lengths),
        )


class Text:
    """A connection to a server through one API (`dialect`). `option` is the command line's name of `url`."""

    def __init__(self, url: str, dialect: OpenAi | Generate, key: str = "", option: str = "--url") -> None:
        self.url, self.dialect, self.option = base(url), dialect, option
        self.client = connections(key)

    async def complete(self, prompt: str, ask: TextOptions, on_text: OnText) -> TextAnswer:
        """Return the whole answer; `on_text` is called as it arrives: piece by piece if streamed, otherwise
        once.

        Raises:
            RequestFailed: there is none.
        """
        with unreachable(self.url, self.option):
            url, body = self.url + self.dialect.route(ask), self.dialect.body(ask, prompt)
            async with self.client.stream(
                "POST", url, json=body, headers={"x-model-id": ask.model}
            ) as response:
                text, tokens = "", 0
                async for data in objects(response, self.dialect.last) if ask.stream else whole(response):
                    piece = self._read(response, data)
                    text, tokens = text + piece.text, max(tokens, piece.tokens)
                    if piece.text:
                        on_text(piece.text)
        return TextAnswer(text, tokens)

    def _read(self, response: httpx.Response, data: Any) -> TextAnswer:
        if problem := trouble(data):
            raise RequestFailed(problem)
        try:
            return self.dialect.read(data)
        except (KeyError, TypeError) as error:
            raise RequestFailed(
                f"{response.url} answered something else ({error} is missing); name a server of text models "
                f"with {self.option}"
            ) from error

    async def aclose(self) -> None:
        """Close connections."""
        await self.client.aclose()


async def whole(response: httpx.Response) -> AsyncIterator[Any]:
    """Parse the one JSON object of an answer."""
    await response.aread()
    if response.status_code != 200:
        raise RequestFailed(complaint(response))
    yield response.json()


async def objects(response: httpx.Response, last: str) -> AsyncIterator[Any]:
    """Yield the JSON objects of a stream."""
    if response.status_code != 200:
        await response.aread()
        raise RequestFailed(complaint(response))
    event = None
    async for event in EventSource(response).aiter_sse():
        if event.data == last:
            return
        yield event.json()
    if last or event is None:
        raise RequestFailed("the stream ended before its last event; send it again")
