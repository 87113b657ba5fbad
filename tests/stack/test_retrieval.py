"""Files, vector stores and search by OpenAI's SDK, over SQLite and Milvus Lite, with real MiniLM weights."""

from __future__ import annotations

import json
import random
import subprocess
from pydoc_data.topics import topics
from typing import Any

import httpx
import pytest
from openai import BadRequestError, ConflictError, NotFoundError, OpenAI

from ..fakes.documents import pdf
from .conftest import ROOT, Stack, until

KINDS = {
    "whales.txt": "The blue whale is the largest animal and eats krill.",
    "bread.md": "# Bread\n\nFlour, water, yeast.",
}


@pytest.fixture(scope="module")
def client(retrieval_stack: Stack) -> OpenAI:
    return retrieval_stack.openai()


def found(client: OpenAI, store: str, query: Any, **fields: Any) -> list[Any]:
    return client.vector_stores.search(store, query=query, **fields).data


def test_every_kind_of_text_is_found(client: OpenAI) -> None:
    """txt, md, html and pdf through the SDK's helpers; what gives no text is `failed` with the reason."""
    store = client.vector_stores.create(name="kinds", metadata={"a": "b"})
    page = b"<head><title>Volcanoes</title><script>no()</script></head><p>Lava flows downhill.</p>"
    files = [(name, text.encode()) for name, text in KINDS.items()]
    files += [("lava.html", page), ("clock.pdf", pdf("A pendulum keeps time in a clock"))]
    batch = client.vector_stores.file_batches.upload_and_poll(store.id, files=files)
    assert batch.status == "completed"
    assert (batch.file_counts.completed, batch.file_counts.total) == (4, 4)
    for query, name in (
        ("marine mammals", "whales.txt"),
        ("baking", "bread.md"),
        ("volcano eruption", "lava.html"),
        ("measuring hours", "clock.pdf"),
    ):
        best = found(client, store.id, query)[0]
        assert best.filename == name
        assert 0 < best.score <= 1
    assert "no()" not in found(client, store.id, "volcano")[0].content[0].text
    bad = {
        "broken.pdf": (b"%PDF-1.4 nothing", "invalid_file", "cannot be read"),
        "program.exe": (b"MZ..", "unsupported_file", ".xlsx"),
        "blank.txt": (b"  \n ", "invalid_file", "no text"),
    }
    for name, (content, code, reason) in bad.items():
        file = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=(name, content))
        assert file.status == "failed"
        assert file.last_error and file.last_error.code == code and reason in file.last_error.message
    latin = ("latin.txt", "Der Dom steht in Köln.".encode("latin-1"))
    file = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=latin)
    assert (file.status, getattr(file, "guessed_encoding", "")) == ("completed", "cp1252")
    assert found(client, store.id, "Köln")[0].content[0].text == "Der Dom steht in Köln."
    counts = client.vector_stores.retrieve(store.id).file_counts
    assert (counts.completed, counts.failed, counts.total) == (5, 3, 8)
    listed = list(client.vector_stores.files.list(store.id, limit=2, filter="failed"))
    assert len({one.id for one in listed}) == 3


def test_files(client: OpenAI) -> None:
    """Upload, list by pages in both orders, read back, delete."""
    made = [client.files.create(file=(f"{n}.txt", b"x" * (n + 1)), purpose="user_data") for n in range(5)]
    big = random.Random(1).randbytes(6_000_000)
    made.append(client.files.create(file=("big.txt", big), purpose="user_data"))
    assert client.files.content(made[-1].id).read() == big
    ids = [one.id for one in made]
    assert [one.id for one in client.files.list(purpose="user_data", order="asc", limit=2)] == ids
    assert [one.id for one in client.files.list(purpose="user_data", limit=2)] == ids[::-1]
    assert client.files.retrieve(ids[0]).filename == "0.txt"
    assert client.files.wait_for_processing(ids[0]).status == "processed"
    assert client.files.delete(ids[0]).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(NotFoundError, match="there is no file"):
            call(ids[0])


def test_attributes_filter_what_is_found(client: OpenAI) -> None:
    """Every comparison, nested; changed attributes count at once."""
    store = client.vector_stores.create().id
    for n in range(6):
        client.vector_stores.files.upload_and_poll(
            vector_store_id=store,
            file=(f"{n}.txt", f"Report number {n} about rain.".encode()),
            attributes={"n": n, "odd": bool(n % 2), "name": f"r{n}"},
        )

    def names(chosen: dict[str, Any]) -> set[str]:
        return {one.filename[0] for one in found(client, store, "rain", filters=chosen)}

    assert names({"type": "eq", "key": "n", "value": 3}) == {"3"}
    assert names({"type": "ne", "key": "odd", "value": True}) == {"0", "2", "4"}
    assert names({"type": "in", "key": "name", "value": ["r1", "r5", "x"]}) == {"1", "5"}
    assert names({"type": "nin", "key": "n", "value": [0, 1, 2, 3]}) == {"4", "5"}
    low, high = {"type": "lt", "key": "n", "value": 2}, {"type": "gte", "key": "name", "value": "r4"}
    assert names({"type": "or", "filters": [low, high]}) == {"0", "1", "4", "5"}
    even = {"type": "eq", "key": "odd", "value": False}
    assert names({"type": "and", "filters": [even, {"type": "or", "filters": [low, high]}]}) == {"0", "4"}
    file = found(client, store, "rain", filters={"type": "eq", "key": "n", "value": 3})[0].file_id
    client.vector_stores.files.update(file, vector_store_id=store, attributes={"n": 33})
    assert names({"type": "gt", "key": "n", "value": 30}) == {"3"}
    assert names({"type": "eq", "key": "n", "value": 3}) == set()


def test_long_texts_are_read_to_the_end(client: OpenAI) -> None:
    """A sentence in the middle of a long chunk, which is far beyond what the encoder reads at once, is found;
    chunks have the text between them, and overlap.
    """
    plain = " ".join(topics[name] for name in sorted(topics))[:30_000]
    place = plain.index(". ", 20_000) + 2
    text = f"{plain[:place]}The lighthouse keeper feeds seven orange cats at midnight. {plain[place:]}"
    store = client.vector_stores.create().id
    file = client.vector_stores.files.upload_and_poll(
        vector_store_id=store, file=("manual.txt", text.encode())
    )
    assert file.status == "completed"
    best = found(client, store, "who feeds the cats in the lighthouse?", max_num_results=1)
    assert "seven orange cats" in best[0].content[0].text
    chunks = [one.text or "" for one in client.vector_stores.files.content(file.id, vector_store_id=store)]
    assert best[0].content[0].text in chunks
    joined, shared = chunks[0], 0
    for chunk in chunks[1:]:
        overlap = next(n for n in range(len(chunk), -1, -1) if joined.endswith(chunk[:n]))
        shared += overlap
        joined += chunk[overlap:]
    assert joined == text
    assert 0.7 < shared / len(text) <= 1  # 400 of 800 tokens
    again = client.vector_stores.files.create_and_poll(
        file.id,
        vector_store_id=store,
        chunking_strategy={
            "type": "static",
            "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0},
        },
    )
    assert again.status == "completed"
    small = [one.text or "" for one in client.vector_stores.files.content(file.id, vector_store_id=store)]
    assert "".join(small) == text
    assert len(small) > 4 * len(chunks)
    assert len(found(client, store, "cats in the lighthouse", max_num_results=50)) == 50


def test_deleting_is_seen_at_once(client: OpenAI) -> None:
    """A file that is detached or deleted is not found by the next search; so is a store."""
    store = client.vector_stores.create().id
    files = [
        client.vector_stores.files.upload_and_poll(vector_store_id=store, file=(f"{n}.txt", b"a green boat"))
        for n in range(3)
    ]
    assert len(found(client, store, "boat")) == 3
    assert client.vector_stores.files.delete(files[0].id, vector_store_id=store).deleted
    assert {one.file_id for one in found(client, store, "boat")} == {files[1].id, files[2].id}
    client.files.retrieve(files[0].id)
    client.files.delete(files[1].id)
    assert [one.file_id for one in found(client, store, "boat")] == [files[2].id]
    assert client.vector_stores.delete(store).deleted
    with pytest.raises(NotFoundError):
        found(client, store, "boat")
    client.files.retrieve(files[2].id)


def test_stores(client: OpenAI) -> None:
    """Create with files, list by pages, modify; several queries at once; a threshold."""
    files = [client.files.create(file=(n, t.encode()), purpose="assistants").id for n, t in KINDS.items()]
    made = [client.vector_stores.create(name=f"s{n}", file_ids=files if n == 0 else []) for n in range(3)]
    assert [one.id for one in client.vector_stores.list(limit=2)][:3] == [one.id for one in reversed(made)]
    changed = client.vector_stores.update(made[0].id, name="new", metadata={"k": "v"})
    assert (changed.name, changed.metadata) == ("new", {"k": "v"})
    until("it is indexed", lambda: client.vector_stores.retrieve(made[0].id).status == "completed", 30)
    both = found(client, made[0].id, ["largest animal", "yeast and flour"])
    assert {one.filename for one in both} == set(KINDS)
    assert min(one.score for one in both) > 0.3
    sure = found(client, made[0].id, "largest animal", ranking_options={"score_threshold": 0.3})
    assert [one.filename for one in sure] == ["whales.txt"]


def test_the_same_write_again_changes_nothing(client: OpenAI) -> None:
    """An Idempotency-Key names a file or a store; a file is attached once."""
    key = {"Idempotency-Key": "upload-1"}
    files = [
        client.files.create(file=("a.txt", b"a"), purpose="assistants", extra_headers=key) for _ in range(2)
    ]
    assert files[0] == files[1]
    with pytest.raises(ConflictError, match="used for another file"):
        client.files.create(file=("a.txt", b"b"), purpose="assistants", extra_headers=key)
    stores = [client.vector_stores.create(extra_headers=key).id for _ in range(2)]
    assert stores[0] == stores[1]
    for _ in range(3):
        client.vector_stores.files.create_and_poll(files[0].id, vector_store_id=stores[0])
    assert client.vector_stores.retrieve(stores[0]).file_counts.total == 1
    assert len(found(client, stores[0], "a")) == 1


def test_refusals(client: OpenAI) -> None:
    """A query that the model does not read, and a file that is not there."""
    store = client.vector_stores.create().id
    with pytest.raises(BadRequestError, match="tokens"):
        found(client, store, "word " * 800)
    with pytest.raises(NotFoundError, match="there is no file 'file-1'"):
        client.vector_stores.files.create(vector_store_id=store, file_id="file-1")


BAD_VALUES = (
    None,
    True,
    0,
    -1,
    51,
    1e308,
    "",
    "a",
    "\ud800",
    "x" * 5000,
    [],
    [[]],
    {},
    {"type": "eq"},
    [None],
    ["a"] * 40,
    [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
    [{"type": "image_url", "image_url": {"url": "data:image/png;base64,@"}}, "a"],
    [{"type": "text", "text": "a"}, {"type": "image_url"}],
)


def broken(draw: random.Random, store: str, file: str) -> dict[str, Any]:
    """One request with something wrong, most of the time."""
    bodies: dict[str, dict[str, Any]] = {
        f"/vector_stores/{store}/search": {
            "query": "a",
            "filters": {"type": "eq", "key": "a", "value": 1},
            "max_num_results": 3,
            "ranking_options": {},
            "question": "what is it?",
            "model": "mini-clip",
        },
        "/vector_stores": {
            "name": "a",
            "file_ids": [file],
            "metadata": {},
            "chunking_strategy": {"type": "auto"},
        },
        f"/vector_stores/{store}": {"name": "a", "metadata": {}},
        f"/vector_stores/{store}/files": {
            "file_id": file,
            "attributes": {},
            "chunking_strategy": {"type": "auto"},
        },
        f"/vector_stores/{store}/files/{file}": {"attributes": {"a": 1}},
        f"/vector_stores/{store}/file_batches": {"file_ids": [file], "attributes": {}},
    }
    path = draw.choice(list(bodies))
    body = dict(bodies[path])
    field = draw.choice([*body, "unknown"])
    body[field] = draw.choice(BAD_VALUES)
    if draw.random() < 0.2:
        path = path.replace(draw.choice([store, file]), draw.choice(["x", "%00", "vs_", "..%2f", "'\"", "ü"]))
    if draw.random() < 0.2:
        cursor = draw.choice(
            ["after=x", "limit=0", "limit=x", "order=up", "filter=no", "before=%ff", "limit=1e9"]
        )
        place = draw.choice(["/files", "/vector_stores", f"/vector_stores/{store}/files"])
        return {"method": "GET", "url": f"{place}?{cursor}"}
    text = json.dumps(body)
    if draw.random() < 0.1:
        text = text[: draw.randrange(len(text))]
    return {
        "method": "POST",
        "url": path,
        "content": text.encode(),
        "headers": {"content-type": "application/json"},
    }


def test_hundreds_of_bad_requests_have_no_5xx(client: OpenAI, retrieval_stack: Stack) -> None:
    draw = random.Random(20)
    store = client.vector_stores.create().id
    file = client.files.create(file=("a.txt", b"a"), purpose="assistants").id
    statuses: dict[int, int] = {}
    with httpx.Client(base_url=f"{retrieval_stack.url}/v1", timeout=60) as http:
        for _ in range(300):
            request = broken(draw, store, file)
            answer = http.request(**request)
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (request, answer.text)
            if answer.status_code >= 400 and "json" in answer.headers["content-type"]:
                assert answer.json()["error"]["message"]
        for form in (
            b"",
            b"--b\r\n\r\n--b--",
            b"--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\nx\r\n--b--\r\n",
        ):
            kind = {"content-type": "multipart/form-data; boundary=b"}
            assert http.post("/files", content=form, headers=kind).status_code == 400
    assert sum(n for status, n in statuses.items() if status >= 400) >= 200, statuses


def test_without_databases_their_libraries_are_not_imported() -> None:
    """The routes of a gateway without retrieval, which imports none of its libraries."""
    code = (
        "import sys, gateway.__main__;"
        "print([name for name in ('pymilvus', 'pymongo', 'pypdfium2', 'lxml', 'mammoth', "
        "'charset_normalizer', 'pandas') if name in sys.modules])"
    )
    command = [ROOT / ".venv/serve/bin/python", "-c", code]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "[]\n"
