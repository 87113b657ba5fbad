"""Faults in containers under the loads of tests/attack, with exact counts of what was lost.

`make attack-stack` sends as much as docs/reliability.md says; without ATTACK_PER_FAULT it is a little.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import httpx
import pytest

from tests.attack.faults import Fault, replaced, serving, starts, suffered
from tests.stack.conftest import Stack

from .conftest import Engine, conch

PER_FAULT = int(os.environ.get("ATTACK_PER_FAULT", "40"))
INSTANCES = (0, 1)
TRITON = "triton-1"
pytestmark = pytest.mark.timeout(1800)
Back = Callable[[], bool]

# To the oldest of those found: a process that has just forked and not yet executed another program has a
# child with its own command line, which dies with it.
SIGNAL = """
import os, pathlib
found = []
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        argv = (entry / "cmdline").read_text().split("\\0")
    except OSError:
        continue
    if {which}:
        found.append(int(entry.name))
os.kill(min(found), {number})
print("done")
"""
SERVER = "argv[0].endswith('/tritonserver')"
STUB = "argv[0].endswith('python_backend_stub') and '/tensorrt_llm_stream/' in argv[1]"
# The image of nginx has no Python.
WORKERS = 'for p in /proc/[0-9]*; do grep -q "^nginx: worker" $p/cmdline && echo ${p#/proc/}; done'


def signalled(engine: Engine, which: str, number: int) -> Callable[[Stack], Back]:
    """A process in a container of a tritonserver, which its guard replaces."""

    def act(stack: Stack) -> Back:
        before = starts(stack, INSTANCES)
        code = SIGNAL.format(which=which, number=number)
        assert engine.container(TRITON).exec_run(["python3", "-c", code]).output == b"done\n"
        return lambda: replaced(stack, before, 1)

    return act


def killed(engine: Engine, service: str) -> Callable[[Stack], Back]:
    """`docker kill`, after which Docker starts nothing again by itself, since it was asked for."""

    def act(stack: Stack) -> Back:
        container = engine.container(service)
        container.kill()
        container.start()

        def back() -> bool:
            container.reload()
            healthy = container.attrs["State"]["Health"]["Status"] == "healthy"
            return healthy and serving(stack, *INSTANCES)

        return back

    return act


def kill_nginx_worker(engine: Engine) -> Callable[[Stack], Back]:
    """One of two; its master starts another."""

    def workers() -> list[str]:
        found: str = engine.container("nginx").exec_run(["sh", "-c", WORKERS]).output.decode()
        return found.split()

    def act(_stack: Stack) -> Back:
        old = workers()
        assert engine.container("nginx").exec_run(["sh", "-c", f"kill -9 {old[0]}"]).exit_code == 0

        def back() -> bool:
            now = workers()
            return len(now) == len(old) and old[0] not in now

        return back

    return act


def restart(engine: Engine) -> Callable[[Stack], Back]:
    """The script that process mode uses, too: new tritonservers in the same containers."""

    def containers() -> list[str]:
        return [engine.container(f"triton-{i}").attrs["State"]["StartedAt"] for i in INSTANCES]

    def act(stack: Stack) -> Back:
        before, same = starts(stack, INSTANCES), containers()
        print(conch("compose", "restart"))
        assert containers() == same
        assert starts(stack, INSTANCES) == {i: n + 1 for i, n in before.items()}
        return lambda: replaced(stack, before, *INSTANCES)

    return act


FAULTS: dict[str, tuple[Callable[[Engine], Callable[[Stack], Back]], frozenset[str]]] = {
    "kill a tritonserver": (lambda engine: signalled(engine, SERVER, 9), frozenset()),
    "kill the engine's stub": (lambda engine: signalled(engine, STUB, 9), frozenset()),
    "end a tritonserver": (lambda engine: signalled(engine, SERVER, 15), frozenset()),
    "kill a guard's container": (lambda engine: killed(engine, "triton-0"), frozenset()),
    "kill a gateway's container": (lambda engine: killed(engine, "gateway"), frozenset()),
    "kill an nginx worker": (kill_nginx_worker, frozenset({"gateway", "HTTP", "gRPC"})),
    "planned restart": (restart, frozenset()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(stack: Stack, engine: Engine, fault: str) -> None:
    """What is not a stream is answered, whatever dies; what was hit comes back."""
    act, may_lose = FAULTS[fault]
    suffered(stack, fault, Fault(act(engine), may_lose), PER_FAULT)
    assert httpx.get(f"{stack.url}/health/ready", timeout=30).status_code == 200
