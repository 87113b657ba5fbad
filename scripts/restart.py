"""The planned restart: one instance after the other drains, restarts and answers again, so that no request is lost.

A guard that is asked to stop finishes what is in flight and hands everything else to another instance of its pool. The next one's turn comes
when this one answers.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from build.plan import Instance, Plan


class Site(Protocol):
    """A running deployment, whatever supervises its processes."""

    def plan(self) -> Plan:
        """What runs."""

    def stop(self, instance: Instance) -> None:
        """Stop an instance; returns when it has ended."""

    def start(self, instance: Instance) -> None:
        """Start it again."""

    def wait_answers(self, instance: Instance) -> None:
        """Return when it answers a real inference again."""


def restart_all(site: Site) -> None:
    """Restart every instance; one that is alone in its pool goes down for that time. Whoever interrupts it gets the stopped one started first."""
    with interruptible():
        for instance in site.plan().instances:
            started = time.monotonic()
            try:
                site.stop(instance)
            finally:
                site.start(instance)
            site.wait_answers(instance)
            print(f"conch: {instance.name} restarted in {time.monotonic() - started:.1f} s", flush=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP (a lost terminal) become KeyboardInterrupt, so that what must be undone is undone."""

    def interrupt(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
