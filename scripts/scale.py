"""`python -m scripts.scale`: how many instances and gateways so many concurrent streams need, by a simulation
of one instance, event by event, fed by measured times (docs/benchmarks/h200.md). docs/scale.md has figures.

An instance is a front that takes requests one after the other, and an engine as serving/engine/scheduler.py
runs it: whoever waits is encoded, several at once, then every row of the running batch makes a token.
"""

from __future__ import annotations

import random
import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil

from build.catalog import ROOT

Table = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Times:
    """What was measured of one instance, in seconds: encoding so many windows together, a step of so many
    rows.

    Fitted: `serial`, what each request costs the scheduler's thread beside that; `around`, what it waits
    elsewhere in the engine's client; `front`, what it costs what comes before the engine, one after the
    other; `stack`, what is added there beside.
    """

    encode: Table
    step: Table
    tokens: int = 64
    join: int = 8
    rows: int = 64
    serial: float = 0.0
    around: float = 0.0
    front: float = 0.0
    stack: float = 0.0


# docs/benchmarks/h200.md: large-v3-turbo's shape, windows of 30 s, 64 ids.
H200 = Times(
    encode=((1, 0.0052), (2, 0.0096), (4, 0.0188), (8, 0.0367)),
    step=((1, 0.00034), (4, 0.00039), (8, 0.00046), (16, 0.0006), (32, 0.00069), (48, 0.00085), (64, 0.0012)),
)
WINDOW = 30.0
ENGINE = {
    1: (827, 36),
    4: (1837, 64),
    8: (2533, 87),
    16: (3212, 137),
    32: (3446, 260),
    64: (4215, 415),
    128: (4252, 812),
}
STACK = {1: (570, 53), 64: (2747, 759), 128: (2631, 1612)}


def at(table: Table, x: float) -> float:
    """Linear between the points; beyond the last one as steep as the last piece."""
    i = min(max(bisect_left(table, (x, 0.0)), 1), len(table) - 1)
    (x0, y0), (x1, y1) = table[i - 1], table[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


class Instance:
    """One instance in simulated time. `done(arrival, end)` is told of every answer."""

    def __init__(self, times: Times, done: Callable[[float, float], None]) -> None:
        self.times, self.done = times, done
        self.waiting = deque[tuple[float, float]]()  # when it is at the engine, and when it came
        self.running = deque[tuple[int, float]]()  # the number of its last step, and when it came
        self.front_free = self.now = 0.0
        self.steps = 0

    def arrive(self, now: float) -> None:
        """One request; it reaches the engine when the front is done with it."""
        self.front_free = max(self.front_free, now) + self.times.front
        self.waiting.append((self.front_free, now))

    def next(self) -> float | None:
        """When the engine could go on; None while it has nothing to do."""
        if self.running:
            return self.now
        return max(self.now, self.waiting[0][0]) if self.waiting else None

    def turn(self) -> None:
        """Admit and encode, then one step, as the scheduler's loop does."""
        times = self.times
        if not self.running:
            self.now = max(self.now, self.waiting[0][0])
        joined = 0
        while (
            self.waiting
            and self.waiting[0][0] <= self.now
            and joined < times.join
            and len(self.running) < times.rows
        ):
            self.running.append((self.steps + times.tokens, self.waiting.popleft()[1]))
            joined += 1
        if joined:
            self.now += at(times.encode, joined) + joined * times.serial
        self.now += at(times.step, len(self.running))
        self.steps += 1
        while self.running and self.running[0][0] <= self.steps:
            self.done(self.running.popleft()[1], self.now + times.around + times.stack)


@dataclass(frozen=True)
class Seen:
    """What a run gave: requests a second, and seconds until the answer."""

    rate: float
    p50: float
    p95: float


def seen(answers: Iterable[tuple[float, float]], begin: float, end: float) -> Seen:
    """Of (arrival, end) pairs, those that ended in between."""
    waits = [done - came for came, done in answers if begin <= done < end]
    if len(waits) < 2:
        return Seen(0.0, float("inf"), float("inf"))
    cuts = statistics.quantiles(waits, n=20)
    return Seen(len(waits) / (end - begin), statistics.median(waits), cuts[18])


def closed(times: Times, clients: int, seconds: float = 20.0) -> Seen:
    """Clients that ask again as soon as they are answered, as benchmarks do."""
    answers: list[tuple[float, float]] = []
    again: list[float] = [0.0] * clients

    def done(came: float, end: float) -> None:
        answers.append((came, end))
        heappush(again, end)

    instance = Instance(times, done)
    while instance.now < seconds:
        due = instance.next()
        while again and (due is None or again[0] <= due):
            instance.arrive(heappop(again))
            due = instance.next()
        instance.turn()
    return seen(answers, seconds / 5, seconds)


def open_load(
    times: Times, rate: float, seconds: float = 60.0, told: Callable[[float, float], None] | None = None
) -> Seen:
    """Requests that come at random at a rate, whoever is waiting: streams that know not of each other."""
    answers: list[tuple[float, float]] = []

    def done(came: float, end: float) -> None:
        answers.append((came, end))
        if told:
            told(came, end)

    instance, draw = Instance(times, done), random.Random(1)
    coming = draw.expovariate(rate)
    while instance.now < seconds and len(instance.waiting) < 10_000:
        due = instance.next()
        while due is None or coming <= due:
            instance.arrive(coming)
            coming += draw.expovariate(rate)
            due = instance.next()
        instance.turn()
    return seen(answers, seconds / 5, seconds)


def solve(good: Callable[[float], bool], low: float, high: float, times: int = 18) -> float:
    """The largest value that is good, between one that is and one that is not."""
    for _ in range(times):
        middle = (low + high) / 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def fitted() -> Times:
    """H200 with what each request costs beside: two numbers from the engine's table (1 and 128 in flight),
    two from the stack's (1 and 64). The other rows are left to check it with.
    """
    engine = replace(
        H200,
        serial=solve(lambda s: closed(replace(H200, serial=s), 128).rate * WINDOW > ENGINE[128][0], 0, 0.01),
    )
    engine = replace(engine, around=ENGINE[1][1] / 1000 - closed(engine, 1).p50)
    front = solve(lambda s: closed(replace(engine, front=s), 64).rate * WINDOW > STACK[64][0], 0, 0.05)
    stack = replace(engine, front=front)
    return replace(stack, stack=STACK[1][1] / 1000 - closed(stack, 1).p50)


LOOKS = 1 / 0.6  # a talking stream's requests a second: gateway/realtime/words.py, PARTIAL
LIMIT = 0.6  # seconds until 95 of 100 answers: the next look is due then
GATEWAY = 0.00614  # of a processor for a request in gateway and nginx (docs/benchmarks/whisper-base-cpu.md)
BUSY = 0.6  # of a gateway's processor
SAMPLES = 16_000 * 4  # bytes of a second of sound between gateway and instance
TURN = 5.0  # seconds; a look carries half of one on average
SESSIONS = 4096  # of one nginx: two workers of 4,096 connections, of which a session takes two
PAGE = ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- {}: python -m scripts.scale -->\n", "<!-- end of {} -->\n"


def capacity(times: Times) -> float:
    """Requests a second that one instance answers in time."""
    return solve(lambda rate: open_load(times, rate, 300.0).p95 <= LIMIT, 1.0, 400.0, 11)


def checked(times: Times) -> str:
    """The simulation beside what was measured."""
    engine = replace(times, front=0.0, stack=0.0)
    lines = [
        "| | in flight | RTFx measured | simulated | p50 measured, ms | simulated |",
        "|---|---|---|---|---|---|",
    ]
    for name, own, rows, used in (("engine", engine, ENGINE, (1, 128)), ("stack", times, STACK, (1, 64))):
        for clients, (rtfx, p50) in rows.items():
            found = closed(own, clients)
            fit = ", fitted" if clients in used else ""
            rate, wait = found.rate * WINDOW, found.p50 * 1000
            lines.append(
                f"| {name}{fit} | {clients} | {rtfx:,} | {rate:,.0f} ({rate / rtfx - 1:+.0%}) "
                f"| {p50:,} | {wait:,.0f} ({wait / p50 - 1:+.0%}) |"
            )
    return "\n".join(lines) + "\n"


def needed(times: Times) -> str:
    """What streams need, as rows; beside it, what an instance could do if its front cost nothing."""
    stack, engine = capacity(times), capacity(replace(times, front=0.0))
    lines = [
        f"One instance answers {stack:.0f} requests a second in time, {stack / LOOKS:.0f} streams; "
        f"{engine:.0f} and {engine / LOOKS:.0f} if its front cost nothing.",
        "",
        "| talking streams | requests/s | GPUs | GPUs, front free | gateways | nginx | sound, GB/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for streams in (10, 1_000, 100_000):
        rate = streams * LOOKS
        inside = rate * TURN / 2 * SAMPLES / 1e9
        lines.append(
            f"| {streams:,} | {rate:,.0f} | {ceil(rate / stack):,} | {ceil(rate / engine):,} "
            f"| {ceil(rate * GATEWAY / BUSY):,} | {ceil(streams / SESSIONS):,} | {inside:.3g} |"
        )
    return "\n".join(lines) + "\n"


def renewed(text: str) -> str:
    """The page with the tables of today."""
    times = fitted()
    for name, made in (("check", checked(times)), ("needs", needed(times))):
        head, _, rest = text.partition(BEGIN.format(name))
        tail = rest.partition(END.format(name))[2]
        text = head + BEGIN.format(name) + made + END.format(name) + tail
    return text


def main() -> None:
    """Write it."""
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
