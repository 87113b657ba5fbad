"""Search by a picture and a question: a vision-language model of this deployment is asked, as
/v1/chat/completions does it, and its answer is the query.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from conch.deployment import Pool
from conch.errors import ApiError, invalid, refused
from conch.pictures import Picture
from retrieval.library import Item

from ..admission import Admission
from ..metrics import GatewayMetrics
from ..text.calls import questions
from ..text.chat import rendered
from ..text.generator import whole
from ..text.schema import ChatRequest, check_lengths
from ..triton import Triton, call_id
from .schema import LONGEST_QUERY, SearchRequest

ANSWER_TOKENS = 256


@dataclass(frozen=True)
class ServedAnswerer:
    """A vision-language model of this deployment."""

    triton: Triton
    pool: Pool
    admission: Admission

    async def answer(self, picture: Picture, question: str, request_id: str) -> str:
        """Return the likeliest answer to a question about a picture, of ANSWER_TOKENS at most. `request_id`
        is the search's; ids of the model's call in logs and traces start with it.

        Raises:
            ApiError: 400 that names `query` (the picture) or `question`, 503 where there is no room.
        """
        content = [
            {"type": "image_url", "image_url": {"url": data_url(picture)}},
            {"type": "text", "text": question},
        ]
        form = ChatRequest.model_validate(
            {
                "model": self.pool.model_id,
                "messages": [{"role": "user", "content": content}],
                "temperature": 0,
            }
        )
        prompt = rendered(self.pool, form.messages)
        check_lengths([prompt], self.pool, "question")
        pictures = form.messages[0].pictures
        (call,) = questions(
            form, [prompt], min(ANSWER_TOKENS, self.pool.positions // 2), None, pictures=pictures
        )
        with self.admission.place(self.pool):
            try:
                (made,) = await whole(self.triton, self.pool, call, call_id(request_id))
            except ApiError as error:
                raise named(error) from error
        return made.text


def answers(pool: Pool) -> bool:
    """Tell whether a pool answers questions about pictures."""
    return pool.chat is not None and {"completion", "pictures"} <= pool.capabilities


def data_url(picture: Picture) -> str:
    """Return a picture as data URL for a message; the model detects its format."""
    data = picture.content if isinstance(picture.content, str) else base64.b64encode(picture.content).decode()
    return f"data:application/octet-stream;base64,{data}"


def named(error: ApiError) -> ApiError:
    """Rename the model's error to the field of the search that caused it."""
    if error.status != 400:
        return error
    param = "query" if error.message.startswith("image_urls") else "question"
    return invalid(param, error.message)


async def asked(
    answerers: Mapping[str, ServedAnswerer], form: SearchRequest, metrics: GatewayMetrics, request_id: str
) -> tuple[list[Item], dict[str, str]]:
    """Return a request's queries: its own, or the answer to its question, which is counted; with it the model
    and the answer, for the response.

    Raises:
        ApiError: 400 where nobody can answer, or for a query that is not one picture.
    """
    queries = form.queries
    if form.question is None:
        return queries, {}
    if len(queries) != 1 or not isinstance(picture := queries[0], Picture):
        raise refused("question", "requires query to be exactly one picture; send only that picture as query")
    if not answerers:
        raise refused(
            "question",
            "requires a vision-language model, and this deployment serves none; add one to MODEL_ID, or "
            "omit question",
        )
    model = form.model or next(iter(answerers))
    if model not in answerers:
        able = ", ".join(answerers)
        raise refused("model", f"{model[:80]!r} does not answer questions about pictures; these do: {able}")
    with metrics.question(model):
        made = await answerers[model].answer(picture, form.question, request_id)
        if not (text := made.strip()[:LONGEST_QUERY]):
            raise refused("question", "got an empty answer from the model; rephrase it")
    return [text], {"model": model, "text": text}
