"""The planned restart: one instance after another drains, restarts and answers again, so that no request is
lost.

On SIGHUP a guard finishes what is in flight, forwards everything else to another instance of its pool, and
starts its server again with the current bundle. The guard itself stays, so no address changes: nginx drops
requests in flight when one does. If the restart is interrupted, the instance's guard completes it.
"""

from __future__ import annotations

import re
import time
from typing import Protocol

from conch.deployment import Deployment, Instance

SECONDS = 600.0
SERVING, STARTS = "conch_triton_serving", "conch_triton_starts_total"
KEPT = "conch_triton_restarts_refused_total"


class NotBack(RuntimeError):
    """An instance does not answer after its restart."""


class Site(Protocol):
    """A running deployment, whatever supervises its processes."""

    def plan(self) -> Deployment:
        """Return what runs."""

    def restart(self, instance: Instance) -> None:
        """Ask an instance's guard to restart its server; a guard that does not run is started."""

    def metrics(self, instance: Instance) -> str:
        """Return the metrics of an instance's guard; empty while it does not answer."""


def restart_all(site: Site) -> None:
    """Restart every instance; one that is alone in its pool is away for that time.

    Raises:
        NotBack: an instance has not come back within ten minutes; the following ones are not touched.
    """
    for instance in site.plan().instances:
        started = time.monotonic()
        before, away = site.metrics(instance), False
        site.restart(instance)
        while True:
            now = site.metrics(instance)
            serving = _count(SERVING, now) == 1
            away = away or not serving
            if serving and (away or _count(STARTS, now) != _count(STARTS, before)):
                break
            if _count(KEPT, now) > _count(KEPT, before):
                raise NotBack(
                    f"{instance.name} was not restarted, since its bundle cannot be served (see its log); it "
                    "keeps running"
                )
            if time.monotonic() - started > SECONDS:
                raise NotBack(f"{instance.name} does not answer after its restart; see its log")
            time.sleep(0.1)
        print(f"conch: {instance.name} restarted in {time.monotonic() - started:.1f} s", flush=True)


def _count(name: str, metrics: str) -> float:
    found = re.search(rf"^{name}(?:\{{.*\}})? (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0
