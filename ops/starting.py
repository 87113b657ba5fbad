"""Watch a stack of process mode start: what serves already, and what keeps failing."""

from __future__ import annotations

import json
import subprocess
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any
from xmlrpc.client import Error

import httpx

from conch.deployment import Deployment, Instance

from .guard.supervise.failures import TELLING, cause
from .local import LocalDeployment, LocalError, url
from .supervision import asked, control

LOOK = 0.2  # seconds between two looks
QUIET = 30.0  # seconds without news, after which what is waited for is printed


class Starting:
    """One start. `process` is supervisord; None where another process has started it."""

    def __init__(
        self, local: LocalDeployment, plan: Deployment, process: subprocess.Popen[bytes] | None
    ) -> None:
        self.local, self.plan, self.process = local, plan, process
        self.pids: dict[str, set[int]] = defaultdict(set)
        self.serving: dict[int, bool] = {}
        self.began = self.printed = time.monotonic()

    def wait(self, seconds: float) -> None:
        """Return when /health/ready answers 200.

        Raises:
            LocalError: it did not within `seconds`, supervisord ended, or a process ended again and again:
                with what that wrote last.
        """
        while time.monotonic() - self.began < seconds:
            if self.process and self.process.poll() is not None:
                error = (self.local.home / "logs" / "supervisord.err").read_text("utf-8", "replace").strip()
                raise LocalError(
                    f"stopped while starting; {error.splitlines()[0]}" if error else "stopped while starting"
                )
            self._look()
            if len(self.serving) == len(self.plan.instances) and self._ready():
                return
            time.sleep(LOOK)
        waiting = ", ".join(f"{one.name} ({one.model_id})" for one in self._waiting()) or "the gateway"
        raise LocalError(
            f"{waiting} did not start within {seconds:g} s; the logs are in {self.local.home}/logs"
        )

    def _waiting(self) -> list[Instance]:
        return [one for one in self.plan.instances if one.index not in self.serving]

    def _ready(self) -> bool:
        with suppress(httpx.HTTPError):
            address = f"{url(self.local)}/health/ready"
            answer = httpx.get(address, timeout=60, trust_env=False, verify=False)  # noqa: S501  # this machine
            return answer.status_code == 200
        return False

    def _look(self) -> None:
        for instance in self._waiting():
            status = self._status(instance)
            if status.get("state") == "serving":
                self.serving[instance.index] = True
                self._say(
                    f"{instance.name} serves {instance.model_id} ({len(self.serving)} of "
                    f"{len(self.plan.instances)})"
                )
            elif failure := status.get("failure"):
                self._fail(instance.name, str(failure))
        with suppress(LocalError, Error, OSError):
            rows: Any = control(self.local).supervisor.getAllProcessInfo()
            for row in rows:
                self._count(row)
        if time.monotonic() - self.printed > QUIET and (left := self._waiting()):
            self._say(f"waiting for {', '.join(f'{one.name} ({one.model_id})' for one in left)}")

    def _status(self, instance: Instance) -> dict[str, Any]:
        with suppress(ValueError):
            return dict(json.loads(asked(self.local, f"/instances/{instance.index}/guard/status") or "{}"))
        return {}

    def _count(self, row: Any) -> None:
        """Fail when a process keeps ending. A guard that ends has counted its server's failures itself."""
        name, pid = str(row["name"]), int(row["pid"])
        if pid:
            self.pids[name].add(pid)
        if len(self.pids[name]) > TELLING or (row["statename"] == "FATAL"):
            log = self.local.home / "logs" / f"{name}.log"
            lines = log.read_text("utf-8", "replace").splitlines()[-400:] if log.exists() else []
            last = next((line for line in reversed(lines) if line.strip()), "it wrote nothing")
            self._fail(name, f"it ends again and again: {cause(lines) or last[:400]}")

    def _fail(self, name: str, reason: str) -> None:
        raise LocalError(f"{name}: {reason}; its log is {self.local.home}/logs/{name}.log")

    def _say(self, what: str) -> None:
        self.printed = time.monotonic()
        print(f"conch: {what}, {self.printed - self.began:.0f} s", flush=True)
