"""The planned restart: one instance after the other leaves its upstream, drains, restarts and comes back, so that no request is lost."""

from __future__ import annotations

import time
from typing import Protocol

from build.plan import Instance, Plan

from .render import pools

DRAIN_SECONDS = 1.0


class Site(Protocol):
    """A running deployment, whatever supervises its processes."""

    def plan(self) -> Plan:
        """What runs."""

    def route(self, pools_conf: str) -> None:
        """Replace nginx's pools.conf and reload it."""

    def wait_idle(self, instance: Instance) -> None:
        """Return when nothing is in flight."""

    def restart(self, instance: Instance) -> None:
        """Stop and start an instance."""

    def wait_answers(self, instance: Instance) -> None:
        """Return when it answers a real inference again."""


def restart_all(site: Site) -> None:
    """Restart every instance; one that is alone in its pool goes down for that time."""
    plan = site.plan()
    for instance in plan.instances:
        started = time.monotonic()
        site.route(pools(plan, down={instance.index} if len(plan.pools[instance.model_id]) > 1 else ()))
        try:
            time.sleep(DRAIN_SECONDS)
            site.wait_idle(instance)
            site.restart(instance)
            site.wait_answers(instance)
        finally:  # whatever happened, nginx's own checks decide from here on
            site.route(pools(plan))
        print(f"conch: {instance.name} restarted in {time.monotonic() - started:.1f} s", flush=True)
