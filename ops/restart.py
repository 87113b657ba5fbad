"""The planned restart: one instance after the other drains, restarts and answers again, so that no request is
lost.

A guard that is asked to (SIGHUP) finishes what is in flight, hands everything else to another instance of its
pool, and starts its server again with the bundle as it is then. The guard itself stays, so no address
changes: nginx gives up requests in flight when one does. Whoever interrupts a restart leaves the instance to
its guard, which completes it.
"""

from __future__ import annotations

import re
import time
from typing import Protocol

from conch.deployment import Deployment, Instance

SECONDS = 600.0
STARTS = re.compile(r"^conch_triton_starts_total (\S+)$", re.MULTILINE)


class NotBack(RuntimeError):
    """An instance does not answer after its restart."""


class Site(Protocol):
    """A running deployment, whatever supervises its processes."""

    def plan(self) -> Deployment:
        """What runs."""

    def restart(self, instance: Instance) -> None:
        """Ask an instance's guard to restart its server; a guard that does not run is started."""

    def metrics(self, instance: Instance) -> str:
        """What the instance's guard says about itself; empty while it says nothing."""


def restart_all(site: Site) -> None:
    """Restart every instance; one that is alone in its pool is away for that time.

    Raises:
        NotBack: an instance has not come back within ten minutes; those behind it are not touched.
    """
    for instance in site.plan().instances:
        started = time.monotonic()
        before = _starts(site.metrics(instance))
        site.restart(instance)
        while not _is_back(site.metrics(instance), before):
            if time.monotonic() - started > SECONDS:
                raise NotBack(f"{instance.name} does not answer after its restart; see its log")
            time.sleep(0.1)
        print(f"conch: {instance.name} restarted in {time.monotonic() - started:.1f} s", flush=True)


def _starts(metrics: str) -> float:
    found = STARTS.search(metrics)
    return float(found[1]) if found else 0.0


def _is_back(metrics: str, before: float) -> bool:
    """Whether a server answers that is not the one of before. A guard that was started anew counts from 1."""
    return "conch_triton_serving 1.0" in metrics and _starts(metrics) != before
