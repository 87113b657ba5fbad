"""Pictures in vector stores by OpenAI's SDK: mini-clip for what is to be seen, real MiniLM weights for what
is said of it, SQLite and Milvus Lite.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from PIL import Image, ImageDraw

from miniatures.training.pictures.museum import Exhibit, museum

from ..fakes.pictures import part, saved
from .conftest import Stack
from .test_retrieval import found

EXHIBITS = 40
RIGHT = 36  # of them at least; docs/benchmarks/retrieval.md has more


@pytest.fixture(scope="module")
def client(retrieval_stack: Stack) -> OpenAI:
    return retrieval_stack.openai()


@pytest.fixture(scope="module")
def exhibits() -> list[Exhibit]:
    return museum(EXHIBITS)


@pytest.fixture(scope="module")
def pictures(client: OpenAI, exhibits: list[Exhibit]) -> str:
    """A store of pictures without captions."""
    files = [(f"{n}.png", saved(one.picture, "PNG")) for n, one in enumerate(exhibits)]
    return filled(client, files)


def filled(client: OpenAI, files: list[tuple[str, bytes]]) -> str:
    store = client.vector_stores.create().id
    batch = client.vector_stores.file_batches.upload_and_poll(store, files=files)
    assert (batch.file_counts.completed, batch.file_counts.total) == (len(files), len(files))
    return store


def picture(exhibit: Exhibit) -> list[Any]:
    return [part(saved(exhibit.picture, "PNG"))]


def test_pictures_are_found_by_texts_and_by_pictures(
    client: OpenAI, exhibits: list[Exhibit], pictures: str
) -> None:
    """Of 40, by their captions and by themselves; a picture without a caption has no text."""
    extra = client.vector_stores.retrieve(pictures).model_extra
    assert extra and extra["embedding_models"] == ["all-minilm-l6-v2", "mini-clip"]
    by_text = [found(client, pictures, one.caption, max_num_results=1)[0] for one in exhibits]
    assert sum(best.filename == f"{n}.png" for n, best in enumerate(by_text)) >= RIGHT
    assert all(best.content == [] for best in by_text)
    by_picture = [found(client, pictures, picture(one), max_num_results=1)[0] for one in exhibits[:10]]
    assert [best.filename for best in by_picture] == [f"{n}.png" for n in range(10)]
    assert min(best.score for best in by_picture) > 0.99
    data = client.files.content(by_picture[0].file_id).read()
    assert data == saved(exhibits[0].picture, "PNG")


def test_texts_are_found_by_pictures(client: OpenAI, exhibits: list[Exhibit]) -> None:
    store = filled(client, [(f"{n}.txt", one.caption.encode()) for n, one in enumerate(exhibits)])
    best = [found(client, store, picture(one), max_num_results=1)[0] for one in exhibits]
    assert sum(one.filename == f"{n}.txt" for n, one in enumerate(best)) >= RIGHT


def test_a_poor_best_match_is_not_a_good_score(client: OpenAI) -> None:
    """Texts and pictures, some with captions: what is asked for is first, whichever list it is in, and a
    threshold cuts what only has the best rank.
    """
    store = client.vector_stores.create().id
    drawn = {"red-circle": "a red circle", "blue-square": "", "green-triangle": "a green triangle"}
    for name, caption in drawn.items():
        colour, shape = name.split("-")
        client.vector_stores.files.upload_and_poll(
            vector_store_id=store,
            file=(f"{name}.png", figure(shape, colour)),
            attributes={"caption": caption} if caption else None,
        )
    client.vector_stores.files.upload_and_poll(
        vector_store_id=store, file=("note.txt", b"The shop opens at nine.")
    )
    for query, name in {
        "a blue square": "blue-square.png",
        "a red circle": "red-circle.png",
        "when does the shop open?": "note.txt",
    }.items():
        best, *rest = found(client, store, query)
        assert best.filename == name
        assert best.score > 0.8 > max(one.score for one in rest)
        cut = found(client, store, query, ranking_options={"score_threshold": 0.8})
        assert [one.filename for one in cut] == [name]


def figure(shape: str, colour: str) -> bytes:
    image = Image.new("RGB", (96, 96), "white")
    draw = ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse((20, 20, 76, 76), fill=colour)
    elif shape == "square":
        draw.rectangle((22, 22, 74, 74), fill=colour)
    else:
        draw.polygon([(48, 16), (16, 80), (80, 80)], fill=colour)
    return saved(image, "PNG")


def test_refusals(client: OpenAI, retrieval_stack: Stack, pictures: str) -> None:
    """A file that is no picture (all kinds: tests/unit/serving/test_clip.py), and queries."""
    given = ("a.png", b"no picture")
    file = client.vector_stores.files.upload_and_poll(vector_store_id=pictures, file=given)
    assert file.status == "failed"
    assert file.last_error and file.last_error.code == "invalid_file"
    assert "not a picture that can be read" in file.last_error.message
    with pytest.raises(BadRequestError, match="not a picture that can be read") as failed:
        found(client, pictures, [part(b"no picture")])
    assert failed.value.body["param"] == "query"  # type: ignore[index]
    address = f"{retrieval_stack.url}/v1/vector_stores/{pictures}/search"
    answer = httpx.post(address, json={"query": [part(bytes(14_000_000))]}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "query")
