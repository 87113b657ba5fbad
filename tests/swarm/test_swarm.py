"""deploy/swarm on three hosts: started, one host cut off and one service updated under load, a bundle of the
wrong toolchain, removed.

`make test-swarm`; the tests follow each other on one swarm.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.attack.faults import Fault, serving, suffered
from tests.stack.conftest import Stack, until

from .conftest import STACK, VARIABLES, Swarm, node

REQUESTS = int(os.environ.get("SWARM_REQUESTS", "2000"))
TRITONS = (0, 1, 2)
SERVICES = {"triton-0": 1, "triton-1": 1, "triton-2": 1, "gateway": 2, "nginx": 2}
pytestmark = pytest.mark.timeout(1500)


def running(swarm: Swarm, service: str) -> int:
    """Tasks of a service that run and should."""
    return sum(state == "Running" for _, state in swarm.tasks(service))


@pytest.fixture(scope="module")
def deployed(swarm: Swarm) -> Iterator[Stack]:
    """The stack, when everything of it answers; at the end `docker stack rm` leaves nothing."""
    print(swarm.deploy())
    stack = swarm.stack()
    until("all tasks run", lambda: all(running(swarm, name) == n for name, n in SERVICES.items()), 300)
    until("every instance answers", lambda: serving(stack, *TRITONS), 120)
    yield stack
    swarm.manager.docker("stack", "rm", STACK)
    until("no container is left", lambda: not any(one.lines("ps", "-aq") for one in swarm.hosts), 120)
    for kind in ("service", "config", "secret", "stack"):
        assert swarm.manager.lines(kind, "ls", "-q" if kind != "stack" else "--format={{.Name}}") == []
    for one in swarm.hosts:
        assert one.lines("volume", "ls", "-q") == []
        until("no network is left", lambda one=one: own_networks(one.lines) == [], 60)  # type: ignore[misc]


def own_networks(lines: Callable[..., list[str]]) -> list[str]:
    """Networks that no engine has by itself."""
    return sorted(
        set(lines("network", "ls", "--format", "{{.Name}}"))
        - {"bridge", "host", "none", "ingress", "docker_gwbridge"}
    )


def test_every_entry_serves_every_model(swarm: Swarm, deployed: Stack) -> None:
    """Each host that has the label, in front of instances on three hosts; nobody waits for another."""
    for entry in (0, 1):
        stack = swarm.stack(entry)
        assert httpx.get(f"{stack.url}/health/ready", timeout=60).status_code == 200
        assert serving(stack, *TRITONS)
    places = {host for i in TRITONS for host, _ in swarm.tasks(f"triton-{i}")}
    assert places
    ran = [one.lines("ps", "-q", "--filter", f"name={STACK}_triton") for one in swarm.hosts]
    assert [len(containers) for containers in ran] == [1, 1, 1]


def test_a_host_is_cut_off_while_a_service_is_updated(swarm: Swarm, deployed: Stack) -> None:
    """What is not a stream is answered; the instance of the lost host runs on another that may have it."""
    second, third = swarm.hosts[1:]
    swarm.manager.docker("node", "update", "--label-add", "conch.triton-2=true", node(swarm.manager, second))

    def act(stack: Stack) -> Callable[[], bool]:
        third.cut_off()
        swarm.manager.docker(
            "service", "update", "--detach", "--force", "--env-add", "UPDATED=1", f"{STACK}_triton-0"
        )

        def back() -> bool:
            shown = ("service", "inspect", "--format", "{{.UpdateStatus.State}}", f"{STACK}_triton-0")
            updated = swarm.manager.docker(*shown).strip() == "completed"
            moved = len(second.lines("ps", "-q", "--filter", f"name={STACK}_triton")) == 2
            return updated and moved and serving(stack, *TRITONS)

        return back

    try:
        suffered(deployed, "a host cut off, a tritonserver updated", Fault(act), REQUESTS)
    finally:
        third.reconnect()
    until("the host is back", lambda: ready_hosts(swarm) == 3, 120)
    until("nothing runs twice", lambda: not third.lines("ps", "-q", "--filter", f"name={STACK}_tri"), 120)


def ready_hosts(swarm: Swarm) -> int:
    return swarm.manager.lines("node", "ls", "--format", "{{.Status}}").count("Ready")


def test_a_bundle_of_another_toolchain_is_refused(swarm: Swarm, deployed: Stack) -> None:
    """By the instance that would load it, which says why; the others serve on with what they have, and it
    comes back by itself with the right one.
    """
    path = Path(VARIABLES["ENGINES_FOLDER"]) / "mini-whisper" / "openvino" / "manifest.json"
    right = path.read_text("utf-8")
    wrong = json.loads(right)
    wrong["engine"]["versions"]["openvino"] = "2001.1"
    path.write_text(json.dumps(wrong), "utf-8")
    try:
        force = ("service", "update", "--detach", "--force", f"{STACK}_triton-1")
        swarm.manager.docker(*force)
        until("it is refused", lambda: "cannot be served here" in swarm.log("triton-1"), 120)
        assert "2001.1" in swarm.log("triton-1")
        assert running(swarm, "triton-1") == 0 or not serving(deployed, 1)
        for _ in range(20):
            assert httpx.get(f"{deployed.url}/health/ready", timeout=60).status_code == 200
    finally:
        path.write_text(right, "utf-8")
    until("it serves again", lambda: serving(deployed, *TRITONS), 180)
