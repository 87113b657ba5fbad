"""Ask a model of this deployment about a picture, as /v1/chat/completions does."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass

from conch.deployment import Pool
from conch.errors import ApiError, invalid
from conch.pictures import Picture

from ..admission import Admission
from ..text.calls import questions
from ..text.chat import rendered
from ..text.generator import whole
from ..text.schema import ChatRequest, check_lengths
from ..triton import Triton

ANSWER_TOKENS = 256


@dataclass(frozen=True)
class ServedAnswerer:
    """A vision-language model of this deployment. See library.Answerer."""

    triton: Triton
    pool: Pool
    admission: Admission

    async def answer(self, picture: Picture, question: str, request_id: str) -> str:
        """See library.Answerer: the likeliest text, of ANSWER_TOKENS at most.

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
                (made,) = await whole(self.triton, self.pool, call, f"{request_id}.{uuid.uuid4().hex[:8]}")
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
