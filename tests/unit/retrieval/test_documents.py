"""Documents in a MongoDB that does not answer."""

from __future__ import annotations

import asyncio
import random

import pytest

from retrieval.documents import DocumentsDown, open_documents


@pytest.mark.slow  # 4 s
async def test_cancelled_calls_leave_the_others_their_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyMongo looks for a server every half second; cancelled just then, calls held it up for good."""
    monkeypatch.setattr("retrieval.documents.mongo.SECONDS", 2)
    draw = random.Random(5)
    documents = open_documents("mongodb://127.0.0.1:1/conch")

    async def left() -> None:
        asked = asyncio.create_task(documents.get("store", ["a"]))
        await asyncio.sleep(draw.choice([0.0, 0.5, 1.0]) + draw.uniform(-0.01, 0.02))
        while not asked.done():
            asked.cancel()
            await asyncio.sleep(draw.choice([0.0, 0.0, 0.05]))

    asked = [documents.get("store", ["a"]) for _ in range(30)]
    answers = await asyncio.gather(*asked, *(left() for _ in range(30)), return_exceptions=True)
    assert all(isinstance(answer, DocumentsDown) for answer in answers[:30])
    with pytest.raises(DocumentsDown):
        await documents.get("store", ["a"])
    await documents.close()
