"""The background worker of every gateway: it takes records that are due, each under a lease, and brings both
databases to the state in the record.

Any step may be interrupted at any point; the next worker repeats it when the lease has expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from conch.errors import ApiError
from conch.tasks import end

from .chunking import ChunkingStrategy
from .documents import DocumentsDown, Page, Record
from .extraction import extracted
from .formats import NoText
from .indexing import index, index_picture
from .kinds import is_picture
from .library import (
    ATTACHMENT,
    CANCELLED,
    COMPLETED,
    DELETING,
    FAILED,
    FILE,
    IN_PROGRESS,
    PICTURES,
    STORE,
    UPLOADING,
    Library,
    all_builds,
    build_name,
    caption,
    collection,
    deleting,
    model_of,
    wanted,
    with_body,
)
from .vectors import VectorsDown

log = structlog.get_logger()
AT_ONCE = 2  # files of one gateway
MOST_ATTEMPTS = 5  # at a file; those that waited for a database or a model are not counted
STORE_FOR_PICTURES = "with a model that reads them among its embedding_models, such as CLIP"
BACK_OFF = 2.0  # seconds after a database or a model did not answer


@dataclass(frozen=True)
class WorkerLimits:
    """Limits in seconds.

    Attributes:
        seconds: for reading a file's text
        lease: renewed during the work
        poll: between checks for what is due
        late: in which a write may arrive that was in progress when its store was deleted
        grace: for which a replaced build stays, for searches in progress
    """

    seconds: float
    picture_bytes: int
    lease: float = 10.0
    poll: float = 0.5
    late: float = 60.0
    grace: float = 10.0


class RecordChanged(Exception):
    """The record was changed by another process: work done for it does not count."""


class Worker:
    """Runs until it is cancelled; `wake` makes it check at once."""

    def __init__(self, library: Library, limits: WorkerLimits) -> None:
        self.library, self.limits = library, limits
        self.woken = asyncio.Event()
        self.places = asyncio.Semaphore(AT_ONCE)
        self.running: dict[str, asyncio.Task[None]] = {}

    def wake(self) -> None:
        """Wake the worker because something is due."""
        self.woken.set()

    async def run(self) -> None:
        """Process what is due."""
        try:
            while True:
                await self._look()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.limits.poll):
                        await self.woken.wait()
                self.woken.clear()
        finally:
            await end(list(self.running.values()))

    async def _look(self) -> None:
        try:
            due = await self.library.documents.due(time.time(), 4 * AT_ONCE)
        except DocumentsDown as error:
            log.warning("retrieval waits", reason=str(error))
            await asyncio.sleep(BACK_OFF)
            return
        for record in due:
            key = f"{record.kind}/{record.id}"
            if key not in self.running:
                await self.places.acquire()
                self.running[key] = task = asyncio.create_task(self._one(record))
                task.add_done_callback(lambda _, key=key: self._done(key))  # type: ignore[misc]

    def _done(self, key: str) -> None:
        del self.running[key]
        self.places.release()
        self.wake()

    async def _one(self, record: Record) -> None:
        """Process one record; what fails is retried later."""
        steps = {ATTACHMENT: self._attachment, FILE: self._file, STORE: self._store}
        lease: Lease | None = None
        try:
            taken = replace(
                with_body(record, lease=secrets.token_hex(8)), due=time.time() + self.limits.lease
            )
            if leased := await self.library.documents.update(taken):
                lease = Lease(self.library, leased, self.limits.lease)
                await steps[record.kind](lease)
        except RecordChanged:
            pass
        except ApiError as error:  # a database or a model
            log.warning("retrieval waits", kind=record.kind, id=record.id, reason=str(error))
            await self._later(lease, counted=error.status not in (503, 504))
        except Exception:
            log.exception("retrieval failed", kind=record.kind, id=record.id)
            await self._later(lease, counted=True)

    @staticmethod
    async def _later(lease: Lease | None, *, counted: bool) -> None:
        """Give the lease back; without the document database, it expires by itself. `counted`: the attempt
        counts towards MOST_ATTEMPTS.
        """

        def edit(record: Record) -> Record:
            attempts = record.body.get("attempts", 0)
            given_back = with_body(record, attempts=attempts if counted else max(0, attempts - 1))
            return replace(given_back, due=time.time() + BACK_OFF)

        with contextlib.suppress(DocumentsDown, RecordChanged):
            if lease:
                await lease.write(edit)

    async def _file(self, lease: Lease) -> None:
        record = lease.record
        if record.status == UPLOADING:
            await lease.write(deleting)
        async for one in self.library.every(Page(ATTACHMENT, {"link": record.id})):
            await self.library.change(ATTACHMENT, one.id, deleting)
        await self.library.documents.drop(record.body["content"])
        await self.library.documents.remove(lease.record)

    async def _store(self, lease: Lease) -> None:
        """Delete all files of a store, then its collections, and those once more `WorkerLimits.late` seconds
        later, since a write in progress may have created one again.
        """
        store = lease.record
        async with lease.held():
            async for one in self.library.every(Page(ATTACHMENT, {"parent": store.id})):
                if marked := await self.library.change(ATTACHMENT, one.id, deleting):
                    await self._forget(marked)
            for space in {*store.body["spaces"], *store.body["next"]}:
                await self.library.vectors.drop(collection(store.id, space))
        if store.body.get("dropped"):
            await self.library.documents.remove(lease.record)
            return
        await lease.write(
            lambda record: replace(with_body(record, dropped=True), due=time.time() + self.limits.late)
        )

    async def _attachment(self, lease: Lease) -> None:
        record = lease.record
        if record.status == DELETING:
            await self._forget(record)
            return
        async with lease.held():
            made = record.status in (IN_PROGRESS, COMPLETED) and await self._build(lease)
            if not (made and lease.record.body["waste"]):
                await self._clean(lease)
        due = time.time() + self.limits.grace if lease.record.body["waste"] else 0
        await lease.write(lambda record: replace(record, due=due))

    async def _forget(self, record: Record) -> None:
        for space, build in all_builds(record):
            await self.library.vectors.remove(collection(record.parent, space), build)
            await self.library.documents.drop(build)
        await self.library.documents.remove(record)

    async def _clean(self, lease: Lease) -> None:
        for space, build in lease.record.body["waste"]:
            await self.library.vectors.remove(collection(lease.record.parent, space), build)
            await self.library.documents.drop(build)
        await lease.edit(waste=[])

    async def _build(self, lease: Lease) -> bool:
        """Make missing builds, then name them in one change of the record. Returns whether there were any, or
        the file has failed.
        """
        store = (await self.library.documents.get(STORE, [lease.record.parent])).get(lease.record.parent)
        if store is None or store.status == DELETING:
            raise RecordChanged
        body, among = lease.record.body, [*store.body["spaces"], *store.body["next"]]
        needed = wanted(lease.record, among)
        making = {space: build_name(lease.record) for space in needed if space not in body["builds"]}
        waste = [*body["waste"], *body["making"].items()]
        await lease.edit(making=making, waste=waste, attempts=body["attempts"] + 1)
        try:
            if making and lease.record.body["attempts"] > MOST_ATTEMPTS:
                raise NoText(f"the file could not be embedded in {MOST_ATTEMPTS} attempts", "server_error")
            if is_picture(body) and not any(space.endswith(PICTURES) for space in needed):
                raise NoText(f"pictures need a store {STORE_FOR_PICTURES}", "unsupported_file")
            if making:
                counts, size, guessed = await self._make(lease.record, making)
            else:  # nothing new to read but, of a picture, a caption that went
                drawn = is_picture(body)
                counts, size = {}, len(caption(lease.record).encode()) if drawn else lease.record.size
                guessed = body.get("encoding", "")
        except NoText as error:
            await lease.write(partial(self._failed, error=error))
            return True
        await lease.write(partial(self._committed, needed=needed, counts=counts, size=size, encoding=guessed))
        return bool(making)

    async def _make(self, record: Record, making: dict[str, str]) -> tuple[dict[str, int], int, str]:
        """Return vectors by space, bytes of text, and the encoding that was guessed for it."""
        file = (await self.library.documents.get(FILE, [record.link])).get(record.link)
        if file is None or file.status == DELETING:
            raise NoText("the file was deleted")
        text, guessed = ("", "") if is_picture(record.body) else await self._text(file)
        counts, size = {}, len(caption(record).encode())
        for space, build in making.items():
            if (embedder := self.library.embedders.get(model_of(space))) is None:
                raise ApiError(503, f"model {model_of(space)!r} is not served here; start the stack with it")
            place = collection(record.parent, space)
            target = self.library, embedder, place, build
            if space.endswith(PICTURES):
                counts[space] = await index_picture(*target, await self._picture(file))
            else:
                strategy = ChunkingStrategy(**record.body["strategy"])
                counts[space], size = await index(*target, text or caption(record), strategy)
            if await self.library.vectors.count(place, build) != counts[space]:
                raise VectorsDown(f"the vector database does not have all vectors of {record.id}")
        return counts, size, guessed

    async def _text(self, file: Record) -> tuple[str, str]:
        with tempfile.TemporaryDirectory(prefix="conch-extract-") as folder:
            path = Path(folder) / "file"
            with path.open("wb") as out:
                async for piece in self.library.documents.read(file.body["content"]):
                    out.write(piece)
            declared = file.body.get("media_type", "")
            return await extracted(path, file.body["filename"], self.limits.seconds, declared)

    async def _picture(self, file: Record) -> bytes:
        if file.size > self.limits.picture_bytes:
            raise NoText(
                f"the picture has {file.size} bytes; {self.limits.picture_bytes} at most are read; make it "
                "smaller",
            )
        return b"".join([piece async for piece in self.library.documents.read(file.body["content"])])

    @staticmethod
    def _failed(record: Record, error: NoText) -> Record:
        emptied = with_body(record, builds={}, standing={}, making={}, counts={}, waste=all_builds(record))
        return replace(with_body(emptied, last_error=vars(error)), status=FAILED, size=0)

    @staticmethod
    def _committed(
        record: Record, needed: list[str], counts: dict[str, int], size: int, encoding: str
    ) -> Record:
        """Return the change that makes new builds visible and hides old ones."""
        body = record.body
        builds = {**body["builds"], **body["making"]}
        kept = {space: build for space, build in builds.items() if space in needed}
        waste = [*body["waste"], *(builds.items() - kept.items()), *body["standing"].items()]
        counts = {space: n for space, n in {**body["counts"], **counts}.items() if space in kept}
        changed = with_body(
            record,
            builds=kept,
            standing={},
            making={},
            waste=waste,
            counts=counts,
            attempts=0,
            last_error=None,
            encoding=encoding,
        )
        return replace(changed, status=COMPLETED, size=size)


class Lease:
    """A record that this process works on, for so many `seconds` after each write; every write renews it."""

    def __init__(self, library: Library, record: Record, seconds: float) -> None:
        self.library, self.record, self.seconds = library, record, seconds
        self.writing = asyncio.Lock()

    async def write(self, edit: Callable[[Record], Record]) -> Record:
        """Change the record, keeping what others change meanwhile, such as attributes.

        Raises:
            RecordChanged: it is somebody else's, or was deleted or cancelled.
        """
        async with self.writing:
            while not (written := await self.library.documents.update(edit(self.record))):
                mine = self.record
                there = (await self.library.documents.get(mine.kind, [mine.id])).get(mine.id)
                if not there or there.status != mine.status or there.body["lease"] != mine.body["lease"]:
                    raise RecordChanged
                self.record = there
            self.record = written
            return written

    async def edit(self, **changes: object) -> None:
        """Change its body."""
        await self.write(lambda record: with_body(record, **changes))

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Renew the lease until the block ends; if it is lost, the block is cancelled with RecordChanged."""
        work = asyncio.current_task()
        lost = False

        async def renew() -> None:
            nonlocal lost
            while True:
                await asyncio.sleep(self.seconds / 3)
                try:
                    await self.write(lambda record: replace(record, due=time.time() + self.seconds))
                except DocumentsDown:
                    continue
                except RecordChanged:
                    lost = True
                    assert work
                    work.cancel()
                    return

        renewing = asyncio.create_task(renew())
        try:
            yield
        except asyncio.CancelledError:
            if lost:
                raise RecordChanged from None
            raise
        finally:
            renewing.cancel()


async def settled(library: Library, record: Record, seconds: float) -> Record:
    """Return the record when the worker has finished with it, or as it is after `seconds`."""
    ends, wait = time.monotonic() + seconds, 0.02
    while record.status == IN_PROGRESS and time.monotonic() < ends:
        await asyncio.sleep(wait)
        wait = min(0.25, 1.5 * wait)
        there = await library.documents.get(ATTACHMENT, [record.id])
        record = there.get(record.id, replace(record, status=CANCELLED))
    return record
