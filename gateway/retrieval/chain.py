"""Search by a picture and a question: a vision-language model answers, and its answer is the query."""

from __future__ import annotations

from conch.errors import refused
from conch.pictures import Picture
from retrieval.library import Item, Library

from ..metrics import GatewayMetrics
from .schema import LONGEST_QUERY, SearchRequest


async def asked(
    library: Library, form: SearchRequest, metrics: GatewayMetrics, request_id: str
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
    if not library.answerers:
        raise refused(
            "question",
            "requires a vision-language model, and this deployment serves none; add one to MODEL_ID, or "
            "omit question",
        )
    model = form.model or next(iter(library.answerers))
    if model not in library.answerers:
        able = ", ".join(library.answerers)
        raise refused("model", f"{model[:80]!r} does not answer questions about pictures; these do: {able}")
    with metrics.question(model):
        made = await library.answerers[model].answer(picture, form.question, request_id)
        if not (text := made.strip()[:LONGEST_QUERY]):
            raise refused("question", "got an empty answer from the model; rephrase it")
    return [text], {"model": model, "text": text}
