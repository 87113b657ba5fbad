"""The library and its worker over the databases of each way to run: SQLite with Milvus Lite, and a server
that speaks MongoDB's protocol with a Milvus server. The model is a fake that hashes words.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import cache
from itertools import count

import numpy as np
import pytest
from numpy.typing import NDArray

from conch.errors import ApiError
from conch.pictures import Picture
from conch.tasks import end
from gateway.retrieval.filters import ComparisonFilter
from retrieval import library as work
from retrieval.calibration import Scale, Scales
from retrieval.documents import Documents, DocumentsDown, Page, Record, open_documents
from retrieval.library import (
    ATTACHMENT,
    COMPLETED,
    FAILED,
    FILE,
    IN_PROGRESS,
    LIVE,
    STORE,
    Item,
    Library,
)
from retrieval.maintenance import check, reembed, sweep
from retrieval.search import Result, StoreSearch, search
from retrieval.vectors import VectorsDown
from retrieval.vectors.milvus import AT_ONCE, MilvusVectors
from retrieval.worker import Worker, WorkerLimits, settled

from .databases import MONGO_PASSWORD, MONGO_USER
from .databases import opened as opened_database

NUMBERS = count()
SHORT = 0.5  # seconds of a lease, and of grace
LIMITS = WorkerLimits(60, 1000, poll=0.05, late=4 * SHORT)  # nobody wakes the workers here
BRIEF = replace(LIMITS, lease=SHORT)
PLAIN = {"attributes": {}, "strategy": {"max_tokens": 100, "overlap": 50}}


class Words:
    """A vector of a text is its words, hashed; a token is a word."""

    positions = 32

    def __init__(self, model: str, dimensions: int = 96) -> None:
        self.model, self.dimensions, self.pictures = model, dimensions, False
        self.error: ApiError | None = None

    async def embed(
        self, items: Sequence[Item], *, cut: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        if self.error:
            raise self.error
        texts = [self.seen(item) if isinstance(item, Picture) else item for item in items]
        values = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in zip(values, texts, strict=True):
            for word in text.lower().split():
                row[zlib.crc32((self.model + word).encode()) % self.dimensions] += 1
        values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-9)
        return values, np.array([len(text.split()) for text in texts])

    @staticmethod
    def seen(_: Picture) -> str:
        raise AssertionError("it reads texts alone")


class Seen(Words):
    """A picture is a file that says in words what is to be seen on it."""

    positions = 8

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.pictures = True

    @staticmethod
    def seen(picture: Picture) -> str:
        if picture.data == b"broken":
            raise ApiError(400, "input [0] is a damaged PNG picture; send a complete file", param="input")
        return picture.data.decode()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Each is started when it is asked for, and serves all tests."""
    with ExitStack() as running:

        @cache
        def url(name: str) -> str:
            return running.enter_context(opened_database(name, tmp_path_factory.mktemp(name)))

        yield url


def new_database(url: str) -> str:
    """A document database for one test: its worker finds nobody else's records."""
    base, _, asked = url.partition("?")
    return f"{base}{next(NUMBERS)}?{asked}" if asked else f"{base}{next(NUMBERS)}"


@pytest.fixture(params=["sqlite", "mongo"])
def documents_url(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> str:
    return new_database(servers(request.param))


@pytest.fixture(params=[("sqlite", "lite"), ("mongo", "milvus")], ids="-".join)
def urls(request: pytest.FixtureRequest, servers: Callable[[str], str]) -> tuple[str, str]:
    """Each database once: neither kind knows which of the other it works with."""
    documents, vectors = request.param
    return new_database(servers(documents)), servers(vectors)


@asynccontextmanager
async def opened(urls: tuple[str, str], *models: Words, run: bool = True) -> AsyncIterator[Library]:
    served = models or (Words("a"),)
    library = Library(
        open_documents(urls[0], MONGO_PASSWORD), MilvusVectors(urls[1]), {one.model: one for one in served}
    )
    plain = Scale(same=1.0, other=0.0)  # what these doubles mean by a cosine needs no measuring
    library.scales.update({one.model: Scales(plain, plain, plain) for one in served})
    task = asyncio.create_task(Worker(library, LIMITS).run()) if run else None
    try:
        yield library
    finally:
        if task:
            await end([task])
        await library.documents.close()
        await library.vectors.close()


async def new_store(library: Library, *models: str) -> Record:
    body = {"name": "", "description": None, "metadata": {}, "next": [], "active": 0}
    record = Record(
        STORE,
        work.new_id("vs_"),
        LIVE,
        time.time_ns(),
        body={**body, "spaces": library.spaces(models or ["a"])},
    )
    assert await library.documents.insert(record)
    return record


async def new_file(library: Library, text: str, name: str = "a.txt") -> Record:
    async def pieces() -> AsyncIterator[bytes]:
        yield text.encode()

    body = {
        "filename": name,
        "purpose": "assistants",
        "sha256": str(hash(text)),
        "content": work.new_id("content-"),
    }
    record = Record(FILE, work.new_id("file-"), work.PROCESSED, time.time_ns(), size=len(text), body=body)
    return await library.save_file(record, pieces())


async def put(
    library: Library, store: Record, text: str, name: str = "a.txt", **attributes: object
) -> Record:
    file = await new_file(library, text, name)
    record = await library.attach(store, file, {**PLAIN, "attributes": attributes})
    return await settled(library, record, 60)


async def texts(library: Library, store: Record, query: str, **fields: object) -> list[str]:
    request = StoreSearch([query], **{"threshold": 0.01, **fields})  # type: ignore[arg-type]
    return [one.text for one in await search(library, store, request)]


async def leftovers(library: Library, store: Record) -> set[str]:
    """Builds in the vector database that no record of the store names."""
    rows = [one async for one in library.every(Page(ATTACHMENT, {"parent": store.id}))]
    known = {build for row in rows for _, build in work.all_builds(row)}
    found = set()
    for space in library.spaces(library.embedders):
        found |= await library.vectors.builds(work.collection(store.id, space))
    return found - known


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 40) -> None:
    ends = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < ends
        await asyncio.sleep(0.1)


async def test_a_wrong_password_is_refused(servers: Callable[[str], str]) -> None:
    """A 503 that names the database; nobody without a password is let in, either."""
    url = servers("mongo")
    nobody = url.partition("?")[0].replace(f"{MONGO_USER}@", "")
    for one, given in ((url, "wrong"), (nobody, "")):
        documents = open_documents(one, given)
        with pytest.raises(DocumentsDown, match=r"document database \(MongoDB\) does not answer"):
            await documents.get(FILE, ["file-1"])
        await documents.close()


async def test_records_change_one_at_a_time(documents_url: str) -> None:
    """Insert once, change only what was read, list in both directions with bounds and statuses, sums, what
    is due.
    """
    documents: Documents = open_documents(documents_url, MONGO_PASSWORD)
    body = {"a.b": {"$c": [1, 2**80, "ü"]}}
    rows = [
        Record("k", str(n), "odd" if n % 2 else "even", 10 + n, "p", f"l{n % 3}", due=n, size=n, body=body)
        for n in range(6)
    ]
    assert all([await documents.insert(row) for row in rows])
    assert not await documents.insert(replace(rows[0], status="new"))
    assert await documents.get("k", ["0", "9"]) == {"0": rows[0]}
    racing = [documents.update(replace(rows[1], status=f"s{n}")) for n in range(8)]
    won = [one for one in await asyncio.gather(*racing) if one]
    assert len(won) == 1 and won[0].version == rows[1].version + 1
    assert await documents.update(replace(rows[1], status="late")) is None
    assert await documents.update(replace(won[0], status="odd"))

    async def ids(**fields: object) -> list[str]:
        return [row.id for row in await documents.page(Page("k", {"parent": "p"}, **fields))]  # type: ignore[arg-type]

    assert await ids(limit=2) == ["5", "4"]
    assert await ids(limit=2, after=14) == ["3", "2"]
    assert await ids(descending=False, after=12, before=15) == ["3", "4"]
    assert await ids(after=14, before=11) == ["3", "2"]
    for descending in (True, False):
        assert await ids(descending=descending, after=13, before=13) == []
    assert await ids(statuses=["odd"]) == ["5", "3", "1"]
    assert [row.id for row in await documents.page(Page("k", {"link": "l1"}))] == ["4", "1"]
    assert await documents.sums("k", {"parent": "p"}) == {"odd": (3, 9), "even": (3, 6)}
    assert [row.id for row in await documents.due(3, 2)] == ["1", "2"]
    assert not await documents.remove(rows[1])
    assert await documents.remove(rows[2])
    again = Record("k", "2", "even", 12, "p", "l2")
    assert await documents.insert(again)
    assert not await documents.update(replace(rows[2], status="late")), "it was read before"
    assert not await documents.remove(rows[2])
    assert await documents.remove(again)
    await documents.write("o", 0, [b"a", b"b" * 1_000_000])
    await documents.write("o", 1, [b"c", b"d"])
    assert [one async for one in documents.read("o")] == [b"a", b"c", b"d"]
    assert await documents.pieces([("o", 2), ("o", 3)]) == {("o", 2): b"d"}
    await documents.drop("o")
    assert [one async for one in documents.read("o")] == []
    await documents.close()


async def test_what_is_put_in_is_found(urls: tuple[str, str]) -> None:
    async with opened(urls) as library:
        store = await new_store(library)
        assert await texts(library, store, "anything") == []
        made = [await put(library, store, f"word{n} common", n=n) for n in range(5)]
        assert {one.status for one in made} == {COMPLETED}
        assert (await texts(library, store, "word3"))[0] == "word3 common"
        assert len(await texts(library, store, "common")) == 5
        some = ComparisonFilter(type="gte", key="n", value=3)
        assert set(await texts(library, store, "common", chosen=some)) == {"word3 common", "word4 common"}
        other = await new_store(library)
        assert await texts(library, other, "common") == []
        await library.detach(store.id, made[0].link)
        await library.delete_file(made[1].link)
        assert len(await texts(library, store, "common")) == 3

        async def removed() -> bool:
            rows = await library.documents.page(Page(ATTACHMENT, {"parent": store.id}))
            return len(rows) == 3 and not await leftovers(library, store)

        await until(removed)
        await library.change(STORE, store.id, work.deleting)
        await until(lambda: _gone(library, store))
        assert work.collection(store.id, "a") not in await library.vectors.collections()


async def _gone(library: Library, store: Record) -> bool:
    return not await library.documents.get(STORE, [store.id])


async def test_a_new_chunking_replaces_the_old_one_at_once(urls: tuple[str, str]) -> None:
    """Searches find the old chunks until the new ones are complete, and never both."""
    async with opened(urls) as library:
        store = await new_store(library)
        text = " ".join(f"w{n}" for n in range(400))
        file = await new_file(library, text)
        record = await settled(library, await library.attach(store, file, PLAIN), 60)
        before = await texts(library, store, "w5", limit=50)
        other = {"attributes": {}, "strategy": {"max_tokens": 200, "overlap": 0}}
        record = await library.attach(store, file, other)
        seen = [before]
        while record.status == IN_PROGRESS:
            record = (await library.documents.get(ATTACHMENT, [record.id]))[record.id]
            seen.append(await texts(library, store, "w5", limit=50))
        after = await texts(library, store, "w5", limit=50)
        assert before != after and len(after) == 1
        assert all(one in (before, after) for one in seen)


@pytest.mark.parametrize("place", ["vectors.put", "vectors.count", "documents.write", "documents.update"])
async def test_a_gateway_that_dies_at_any_step_leaves_nothing_half(
    urls: tuple[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut off before and after each kind of write: nothing is found, and another gateway does it again."""
    async with opened(urls, run=False) as library:
        store = await new_store(library)
        text = " ".join(f"w{n}" for n in range(300))
        record = await library.attach(store, await new_file(library, text), PLAIN)
        part, name = place.split(".")
        target = getattr(library, part)
        real, calls, died = getattr(target, name), 0, asyncio.Event()

        async def dies(*args: object) -> object:
            nonlocal calls
            calls += 1
            if calls % 2:
                await real(*args)
            died.set()
            await asyncio.sleep(60)
            return None

        worker = Worker(library, BRIEF)
        with monkeypatch.context() as patch:
            for _ in range(2):
                patch.setattr(target, name, dies)
                worker_task = asyncio.create_task(worker.run())
                await died.wait()
                await end([worker_task])
                died.clear()
                worker.running.clear()
                patch.setattr(target, name, real)
                assert await texts(library, store, "w5") == []
                await asyncio.sleep(1.2 * SHORT)
        task = asyncio.create_task(Worker(library, replace(LIMITS, grace=SHORT)).run())
        record = await settled(library, record, 60)
        assert record.status == COMPLETED
        assert await texts(library, store, "w5")
        await until(lambda: _clean(library, store, record))
        await end([task])


async def test_a_write_that_comes_late_is_removed(
    urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway is stopped in the middle of a write and goes on when another has made the file, or deleted
    its store: nothing of the write is found, and nothing stays.
    """
    async with opened(urls, run=False) as library:
        store = await new_store(library)
        place, put_really = work.collection(store.id, "a"), library.vectors.put
        record = await library.attach(store, await new_file(library, "late words"), PLAIN)
        late: list[tuple[object, ...]] = []
        begun = asyncio.Event()

        async def stopped_there(*args: object) -> None:
            late.append(args)
            begun.set()
            await asyncio.sleep(60)

        with monkeypatch.context() as patch:
            patch.setattr(library.vectors, "put", stopped_there)
            first = asyncio.create_task(Worker(library, BRIEF).run())
            await begun.wait()
            await end([first])
        patient = replace(LIMITS, grace=SHORT, late=20 * SHORT)
        second = asyncio.create_task(Worker(library, patient).run())
        record = await settled(library, record, 60)
        assert record.status == COMPLETED
        await until(lambda: _clean(library, store, record))
        await put_really(*late[0])  # type: ignore[arg-type]
        build = late[0][1]
        assert await library.vectors.count(place, str(build)) == 1
        assert await leftovers(library, store) == {build}
        assert await texts(library, store, "late") == ["late words"]
        assert await sweep(library) == 1
        assert not await leftovers(library, store)
        # Of a large file any message may be the late one.
        await put_really(place, str(build), [0], late[0][3], AT_ONCE)  # type: ignore[arg-type]
        assert await leftovers(library, store) == {build}
        assert await sweep(library) == 1
        assert not await leftovers(library, store)
        assert await texts(library, store, "late") == ["late words"]
        await library.change(STORE, store.id, work.deleting)
        await until(lambda: _dropped(library, place))
        await until(lambda: _made_again(library, place))
        await put_really(*late[0])  # type: ignore[arg-type]
        assert not await _gone(library, store)
        await until(lambda: _gone(library, store))
        assert await _dropped(library, place)
        await end([second])


async def _made_again(library: Library, place: str) -> bool:
    """Milvus may say for a moment that what was just dropped is not found."""
    try:
        await library.vectors.create(place, 96)
    except VectorsDown:
        return False
    return True


async def _dropped(library: Library, place: str) -> bool:
    return place not in await library.vectors.collections()


async def _clean(library: Library, store: Record, record: Record) -> bool:
    there = (await library.documents.get(ATTACHMENT, [record.id]))[record.id]
    return not there.body["waste"] and not await leftovers(library, store)


async def test_check_repairs_what_one_database_has_lost(urls: tuple[str, str]) -> None:
    """As after a restore of one of them: vectors that are missing are made again, strangers are removed."""
    async with opened(urls) as library:
        store = await new_store(library)
        record = await put(library, store, "lost words")
        place = work.collection(store.id, "a")
        await library.vectors.remove(place, record.body["builds"]["a"])
        value = np.eye(1, 96, dtype=np.float32)
        await library.vectors.put(place, "file-x:stranger", [0], value)
        assert await library.vectors.count(place, "file-x:stranger") == 1
        assert await texts(library, store, "lost") == []
        assert await check(library, repair=False) == (1, 1)
        assert await check(library, repair=True) == (1, 1)
        await until(lambda: _found(library, store, "lost"))
        assert await check(library, repair=False) == (0, 0)


async def _found(library: Library, store: Record, query: str) -> bool:
    return bool(await texts(library, store, query))


async def test_a_store_is_embedded_anew_while_it_is_searched(urls: tuple[str, str]) -> None:
    """By another model, interrupted in the middle: searches find everything before, between and after."""
    async with opened(urls, Words("a"), Words("b", 64)) as library:
        store = await new_store(library, "a")
        for n in range(4):
            await put(library, store, f"word{n} common")
        task = asyncio.create_task(reembed(library, store.id, ["b"]))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        store = await library.store_of(store.id)
        assert len(await texts(library, store, "common")) == 4
        await reembed(library, store.id, ["b"])
        store = await library.store_of(store.id)
        assert store.body["spaces"] == ["b"] and not store.body["next"]
        assert (await texts(library, store, "word2"))[0] == "word2 common"
        assert len(await texts(library, store, "common")) == 4
        assert (await put(library, store, "word9")).status == COMPLETED


async def test_two_spaces_are_merged(urls: tuple[str, str]) -> None:
    """A store of two models: the mean of their calibrated scores."""
    async with opened(urls, Words("a"), Words("b", 64)) as library:
        store = await new_store(library, "a", "b")
        for n in range(3):
            await put(library, store, f"word{n} common")
        (best, *rest) = await search(library, store, StoreSearch(["word1"]))
        assert best.text == "word1 common"
        assert best.score > 0.6
        assert all(one.score < 0.6 for one in rest)


def names(found: Sequence[Result]) -> list[str]:
    return [one.attachment.body["filename"] for one in found]


async def test_pictures_and_texts_are_found_by_both(urls: tuple[str, str]) -> None:
    """One list of texts, pictures, and pictures with captions; a caption that changes; what cannot be
    read.
    """
    async with opened(urls, Words("a"), Seen("b")) as library:
        store = await new_store(library, "a", "b")
        await put(library, store, "a red boat on the sea", "text.txt")
        await put(library, store, "red boat sea", "bare.png")
        titled = await put(library, store, "green hill", "titled.jpg", caption="the painter at home")
        await put(library, store, "a house on a hill", "house.txt")

        async def found(query: Item, **fields: object) -> list[Result]:
            return await search(library, store, StoreSearch([query], **fields))  # type: ignore[arg-type]

        both = await found("red boat")
        assert set(names(both)[:2]) == {"text.txt", "bare.png"}
        assert min(one.score for one in both[:2]) > 0.5
        assert both[2].score < 0.5
        texts = {name: one.text for name, one in zip(names(both), both, strict=True)}
        assert (texts["text.txt"], texts["bare.png"]) == ("a red boat on the sea", "")
        (best, *_) = await found("the painter at home")
        assert (names([best]), best.text) == (["titled.jpg"], "the painter at home")
        assert best.cosines["a"] == pytest.approx(1)
        hill = await found(Picture(b"a house on a hill"))
        assert names(hill)[0] == "house.txt"
        assert "titled.jpg" in names(hill)
        assert names(await found(Picture(b"green hill")))[0] == "titled.jpg"
        only = ComparisonFilter(type="eq", key="caption", value="the painter at home")
        assert names(await found("boat", chosen=only)) == ["titled.jpg"]

        def renamed(there: Record) -> Record:
            return work.with_attributes(there, {"caption": "nocturne"})

        before = titled.body["builds"]
        changed = await library.change(ATTACHMENT, titled.id, renamed)
        assert changed and changed.status == IN_PROGRESS
        assert "titled.jpg" in names(await found("painter"))
        titled = await settled(library, changed, 60)
        assert titled.body["builds"]["b#pictures"] == before["b#pictures"]
        assert not set(titled.body["builds"].values()) & {before["a"], before["b"]}
        (best, *_) = await found("nocturne")
        assert (best.text, best.cosines["a"]) == ("nocturne", pytest.approx(1))
        changed = await library.change(ATTACHMENT, titled.id, without_attributes)
        assert changed
        assert set((await settled(library, changed, 60)).body["builds"]) == {"b#pictures"}
        for content, said in (
            ("broken", "the file is a damaged PNG picture"),
            ("x" * 1001, "1001 bytes"),
        ):
            failed = await put(library, store, content, "bad.png")
            assert failed.status == FAILED and said in failed.body["last_error"]["message"]


def without_attributes(there: Record) -> Record:
    return work.with_attributes(there, {})


async def test_a_store_for_texts_refuses_pictures(urls: tuple[str, str]) -> None:
    """As a file and as a query."""
    async with opened(urls, Words("a"), Seen("b")) as library:
        store = await new_store(library, "a")
        failed = await put(library, store, "boat", "boat.png", caption="a boat")
        assert failed.body["last_error"]["code"] == "unsupported_file"
        with pytest.raises(ApiError, match="no model of this vector store reads pictures"):
            await search(library, store, StoreSearch([Picture(b"boat")]))
