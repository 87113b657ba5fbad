"""kill -9 of gateways and of the vector database while files are written, deleted and searched: what was
acknowledged is there, what was deleted is not, and nothing half-written is ever found.

RETRIEVAL_WRITES and RETRIEVAL_SEARCHES say how many (2000 each in `make attack`).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from openai import APIConnectionError, APIStatusError, ConflictError, InternalServerError, OpenAI

from tests.attack.processes import gateway, gateway_socket, vectors

from .conftest import ROOT, Stack, portable, started

PORT, RESTORED_PORT = 11080, 10880
MODEL = "all-minilm-l6-v2"
WRITES = int(os.environ.get("RETRIEVAL_WRITES", "150"))
SEARCHES = int(os.environ.get("RETRIEVAL_SEARCHES", "150"))
LONGEST_PAUSE = 3.0  # seconds between the last one's return and the next kill
T = TypeVar("T")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    build = [sys.executable, "-m", "build", "engines", "--target", "openvino", "--model-id", MODEL]
    subprocess.run(build, cwd=ROOT, check=True)
    with started(portable(tmp_path_factory.mktemp("faults"), PORT, MODEL, 1), tidy=False) as found:
        yield found


def text_of(number: int) -> str:
    """A document that no other is like; two passages of it would be two halves."""
    draw = random.Random(number)
    words = "amber boat cedar delta ember frost grove harbor iron jade kelp lamp moss north".split()  # noqa: SIM905
    return f"Record {number}: " + " ".join(draw.choice(words) for _ in range(40)) + f", end of {number}."


class Client:
    """Asks until it is answered, as a careful client does; counts what went wrong on the way."""

    def __init__(self, url: str) -> None:
        self.openai = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
        self.failures: list[str] = []

    def sure(self, call: Callable[[], T]) -> T:
        until = time.monotonic() + 90
        while True:
            try:
                return call()
            except (InternalServerError, APIConnectionError, ConflictError) as error:
                if isinstance(error, APIStatusError) and error.status_code == 500:
                    raise
                self.failures.append(str(error)[:100])
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def write(self, store: str, number: int) -> str:
        """A file in a store, acknowledged as completed."""
        key = {"Idempotency-Key": f"{store}-{number}"}
        given = (f"{number}.txt", text_of(number).encode())
        file = self.sure(
            lambda: self.openai.files.create(file=given, purpose="assistants", extra_headers=key)
        ).id
        row = self.sure(
            lambda: self.openai.vector_stores.files.create(
                vector_store_id=store, file_id=file, attributes={"n": number}
            )
        )
        while row.status == "in_progress":
            time.sleep(0.2)
            row = self.sure(lambda: self.openai.vector_stores.files.retrieve(file, vector_store_id=store))
        assert row.status == "completed", row
        return file

    def search(self, store: str, number: int, *, only: bool) -> list[Any]:
        """With a filter for this one, or among all."""
        fields: dict[str, Any] = {"filters": {"type": "eq", "key": "n", "value": number}} if only else {}
        search = self.openai.vector_stores.search
        return self.sure(lambda: search(store, query=text_of(number), max_num_results=3, **fields)).data


def all_there(stack: Stack) -> bool:
    """Every process that is killed runs again and answers."""
    try:
        vectors(stack)
    except ValueError:
        return False
    for index in range(2):
        transport = httpx.HTTPTransport(uds=gateway_socket(stack, index))
        with httpx.Client(transport=transport, base_url="http://gateway", timeout=5) as http:
            try:
                http.get("/health/live")
            except httpx.HTTPError:
                return False
    return True


def kill(stack: Stack, which: int) -> None:
    pid = vectors(stack) if which == 0 else gateway(stack, which - 1)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(300 + WRITES + SEARCHES)
def test_nothing_acknowledged_is_lost(stack: Stack) -> None:
    client = Client(stack.url)
    store = client.openai.vector_stores.create().id
    files: dict[int, str] = {}
    gone: set[int] = set()
    lock, ending = threading.Lock(), threading.Event()
    kills = 0

    def killer() -> None:
        nonlocal kills
        draw = random.Random(4)
        while not ending.wait(draw.uniform(0.2, LONGEST_PAUSE)):
            try:
                kill(stack, kills % 3)
            except ValueError:  # a gateway is two processes for a moment, when it starts another
                continue
            kills += 1
            while not (all_there(stack) or ending.wait(0.2)):
                pass

    def write(number: int) -> None:
        file = client.write(store, number)
        with lock:
            files[number] = file
        if number % 5 == 4:  # every fifth is removed again, from the store or altogether
            remove = client.openai.vector_stores.files.delete if number % 2 else None
            try:
                if remove:
                    client.sure(lambda: remove(file, vector_store_id=store))
                else:
                    client.sure(lambda: client.openai.files.delete(file))
            except APIStatusError as error:
                assert error.status_code == 404  # the first try did it, and its answer was lost
            with lock:
                gone.add(number)

    def look(turn: int) -> None:
        draw = random.Random(turn)
        with lock:
            known, removed = dict(files), set(gone)
        if not known:
            time.sleep(0.2)
            return
        number = draw.choice(list(known))
        rows = client.search(store, number, only=bool(turn % 2))
        for row in rows:
            told = int(row.attributes["n"])
            assert row.content[0].text == text_of(told), "half-written"
            assert told not in removed, f"{told} was deleted"
        with lock:
            still = number not in gone
        if number % 5 != 4 and still:
            assert number in [int(row.attributes["n"]) for row in rows], f"{number} was acknowledged"

    killing = threading.Thread(target=killer)
    killing.start()
    try:
        with ThreadPoolExecutor(6) as threads:
            work = [threads.submit(write, number) for number in range(WRITES)]
            work += [threads.submit(look, turn) for turn in range(SEARCHES)]
            random.Random(3).shuffle(work)
            for one in work:
                one.result()
    finally:
        ending.set()
        killing.join()
    assert kills >= 3
    print(
        f"{WRITES} writes, {SEARCHES} searches, {kills} kills, {len(client.failures)} times told to try again"
    )
    for number in range(WRITES):
        rows = client.search(store, number, only=True)
        assert [row.content[0].text for row in rows] == ([] if number in gone else [text_of(number)])
    counts = client.openai.vector_stores.retrieve(store).file_counts
    assert (counts.completed, counts.total) == (WRITES - len(gone), WRITES - len(gone))


def test_a_database_that_is_down_is_named(stack: Stack) -> None:
    """While the vector database is stopped, searches are a 503 that names it; files go on; it comes back."""
    client = Client(stack.url)
    openai = client.openai
    store = openai.vector_stores.create().id
    client.write(store, 1)
    pid = vectors(stack)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(
            InternalServerError, match=r"vector database \(Milvus\) does not answer"
        ) as failed:
            openai.vector_stores.search(store, query="amber")
        assert failed.value.status_code == 503
        assert failed.value.response.headers["retry-after"]
        file = openai.files.create(file=("a.txt", text_of(2).encode()), purpose="assistants").id
        row = openai.vector_stores.files.create(vector_store_id=store, file_id=file, attributes={"n": 2})
        assert row.status == "in_progress"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(client.search(store, 1, only=True)) == 1
    assert openai.vector_stores.files.poll(file, vector_store_id=store).status == "completed"
    assert len(client.search(store, 2, only=True)) == 1


def command(home: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """scripts/retrieval for the deployment of the next test."""
    environment = {**os.environ, "PORT": str(RESTORED_PORT), "CONCH_HOME": str(home)}
    return subprocess.run(
        [ROOT / "scripts" / "retrieval", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_backup_is_restored(tmp_path: Path) -> None:
    """Documents are copied while the stack runs; vectors are made again: what was there then is there, and
    what came later is not.
    """
    environment = portable(tmp_path / "home", RESTORED_PORT, MODEL, 1)
    documents = tmp_path / "home" / "retrieval" / "documents.sqlite"
    with started(environment) as stack:
        client = Client(stack.url)
        store = client.openai.vector_stores.create().id
        files = [client.write(store, number) for number in range(3)]
        assert command(tmp_path / "home", "backup", tmp_path / "saved").returncode == 0
        client.write(store, 3)
        client.openai.files.delete(files[0])
        assert command(tmp_path / "home", "check").returncode == 0
    for file in documents.parent.glob("documents.sqlite*"):
        file.unlink()
    shutil.copy(tmp_path / "saved", documents)
    shutil.rmtree(documents.parent / "vectors")
    with started(environment) as stack:
        found = command(tmp_path / "home", "check")
        assert (found.returncode, found.stdout[:36]) == (1, "3 embeddings have lost vectors, 0 ar")
        assert command(tmp_path / "home", "check", "--repair").returncode == 0
        for file in files:
            assert client.openai.vector_stores.files.poll(file, vector_store_id=store).status == "completed"
        for number in range(4):
            rows = client.search(store, number, only=True)
            assert [row.content[0].text for row in rows] == ([text_of(number)] if number < 3 else [])
        assert client.openai.files.content(files[0]).read() == text_of(0).encode()
