"""Files written, deleted and searched while processes are killed: what was acknowledged is there, what was
deleted is not, and nothing half-written is ever found.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import httpx
from openai import APIConnectionError, APIStatusError, ConflictError, InternalServerError, OpenAI

from tests.stack.conftest import Stack
from tests.stack.processes import gateway, gateway_answers, tritonserver, vectors

T = TypeVar("T")
LONGEST_PAUSE = 3.0  # seconds between the last one's return and the next kill
PATIENCE = 120.0  # seconds that a client asks again and again


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
        until = time.monotonic() + PATIENCE
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

    def remove(self, store: str, file: str, *, altogether: bool) -> None:
        """From the store, or as a file."""
        try:
            if altogether:
                self.sure(lambda: self.openai.files.delete(file))
            else:
                self.sure(lambda: self.openai.vector_stores.files.delete(file, vector_store_id=store))
        except APIStatusError as error:
            assert error.status_code == 404  # the first try did it, and its answer was lost

    def search(self, store: str, number: int, *, only: bool) -> list[Any]:
        """With a filter for this one, or among all."""
        fields: dict[str, Any] = {"filters": {"type": "eq", "key": "n", "value": number}} if only else {}
        search = self.openai.vector_stores.search
        return self.sure(lambda: search(store, query=text_of(number), max_num_results=3, **fields)).data


@dataclass(frozen=True)
class Victim:
    """A process that is killed, and whether it is back."""

    name: str
    kill: Callable[[], None]
    back: Callable[[], bool]


def gateways(stack: Stack) -> list[Victim]:
    return [
        Victim(
            "gateway",
            lambda index=index: os.kill(gateway(stack, index), signal.SIGKILL),  # type: ignore[misc]
            lambda index=index: gateway_answers(stack, index),  # type: ignore[misc]
        )
        for index in range(2)
    ]


def _runs(find: Callable[[Stack], int], stack: Stack) -> bool:
    try:
        find(stack)
    except ValueError:
        return False
    return True


def embedded_vectors(stack: Stack) -> Victim:
    """Milvus Lite."""
    return Victim(
        "Milvus Lite", lambda: os.kill(vectors(stack), signal.SIGKILL), lambda: _runs(vectors, stack)
    )


def encoder(stack: Stack, index: int) -> Victim:
    """The tritonserver of an instance, which its guard starts again."""

    def back() -> bool:
        ready = httpx.get(f"{stack.url}/health/ready", timeout=60).status_code == 200
        return ready and _runs(lambda found: tritonserver(found, index), stack)

    return Victim("encoder", lambda: os.kill(tritonserver(stack, index), signal.SIGKILL), back)


class Killer(threading.Thread):
    """Kills one victim after the other, each when the last one is back."""

    def __init__(self, victims: Sequence[Victim]) -> None:
        super().__init__()
        self.victims, self.kills, self.ending = victims, Counter[str](), threading.Event()

    def run(self) -> None:
        draw, turn = random.Random(4), 0
        while not self.ending.wait(draw.uniform(0.2, LONGEST_PAUSE)):
            victim = self.victims[turn % len(self.victims)]
            turn += 1
            try:
                victim.kill()
            except ValueError:  # a gateway is two processes for a moment, when it starts another
                continue
            self.kills[victim.name] += 1
            while not (victim.back() or self.ending.wait(0.2)):
                pass


class Work:
    """Writes, deletions of every fifth, and searches, which know what was acknowledged before they began."""

    def __init__(self, client: Client) -> None:
        self.client, self.store = client, client.openai.vector_stores.create().id
        self.files: dict[int, str] = {}
        self.gone: set[int] = set()
        self.lock = threading.Lock()

    def write(self, number: int) -> None:
        file = self.client.write(self.store, number)
        with self.lock:
            self.files[number] = file
        if number % 5 == 4:
            self.client.remove(self.store, file, altogether=number % 2 == 0)
            with self.lock:
                self.gone.add(number)

    def look(self, turn: int) -> None:
        draw = random.Random(turn)
        with self.lock:
            known, removed = dict(self.files), set(self.gone)
        if not known:
            time.sleep(0.2)
            return
        number = draw.choice(list(known))
        rows = self.client.search(self.store, number, only=bool(turn % 2))
        for row in rows:
            told = int(row.attributes["n"])
            assert row.content[0].text == text_of(told), "half-written"
            assert told not in removed, f"{told} was deleted"
        with self.lock:
            still = number not in self.gone
        if number % 5 != 4 and still:
            assert number in [int(row.attributes["n"]) for row in rows], f"{number} was acknowledged"

    def check(self, writes: int) -> None:
        """Everything that was acknowledged is there, and what was deleted is not."""
        for number in range(writes):
            rows = self.client.search(self.store, number, only=True)
            expected = [] if number in self.gone else [text_of(number)]
            assert [row.content[0].text for row in rows] == expected, number
        counts = self.client.openai.vector_stores.retrieve(self.store).file_counts
        assert (counts.completed, counts.total) == (writes - len(self.gone),) * 2


def under_kills(
    stack: Stack, victims: Sequence[Victim], writes: int, searches: int, least: int = 0
) -> Counter[str]:
    """Six clients write and search, and again as much until there are `least` kills; how often who was
    killed.
    """
    client = Client(stack.url)
    work, killer, written = Work(client), Killer(victims), 0
    started = time.monotonic()
    killer.start()
    try:
        while not written or killer.kills.total() < least:
            assert killer.is_alive(), f"nobody kills any more after {dict(killer.kills)}"
            _together(work, range(written, written + writes), searches)
            written += writes
    finally:
        killer.ending.set()
        killer.join()
    seconds = time.monotonic() - started
    print(
        f"{written} writes, {written // writes * searches} searches in {seconds:.0f} s, "
        f"killed: {dict(killer.kills)}, {len(client.failures)} times told to try again"
    )
    work.check(written)
    return killer.kills


def _together(work: Work, numbers: range, searches: int) -> None:
    tasks = [partial(work.write, number) for number in numbers]
    tasks += [partial(work.look, turn) for turn in range(searches)]
    random.Random(3).shuffle(tasks)
    with ThreadPoolExecutor(6) as threads:
        for done in [threads.submit(task) for task in tasks]:
            done.result()
