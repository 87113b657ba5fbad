"""Faults in process mode, with exact counts of what was lost."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from tests.stack import processes
from tests.stack.clients import Load
from tests.stack.conftest import Stack, restarted

from .faults import LOADS, Fault, replaced, serving, starts, suffered, until_each

PER_FAULT = int(os.environ.get("ATTACK_PER_FAULT", "250"))
SPEECH = (0, 2)  # instances of the model that the loads use
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
Back = Callable[[], bool]


def another(find: Callable[[], int], old: int) -> bool:
    """Whether there is another process where this one was."""
    with contextlib.suppress(ValueError, OSError):
        return find() != old
    return False


def killed(find: Callable[[Stack], int], number: int = signal.SIGKILL) -> Callable[[Stack], Back]:
    """A process of an instance."""

    def act(stack: Stack) -> Back:
        old = find(stack)
        os.kill(old, number)
        return lambda: another(lambda: find(stack), old) and serving(stack, *SPEECH)

    return act


def paused(find: Callable[[Stack], int], seconds: float) -> Callable[[Stack], Back]:
    """The same, stopped for a while."""

    def act(stack: Stack) -> Back:
        back = killed(find, signal.SIGSTOP)(stack)
        threading.Timer(seconds, go_on, [find(stack)]).start()
        return back

    def go_on(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    return act


def kill_gateway(stack: Stack) -> Back:
    """One of two; the other has all the work until it answers again."""
    old = processes.gateway(stack, 0)
    os.kill(old, signal.SIGKILL)
    return lambda: processes.gateway_answers(stack, 0) and another(lambda: processes.gateway(stack, 0), old)


def kill_nginx_worker(stack: Stack) -> Back:
    """One of two."""
    _, old = processes.nginx(stack)
    os.kill(old[0], signal.SIGKILL)

    def back() -> bool:
        _, now = processes.nginx(stack)
        return len(now) == len(old) and old[0] not in now

    return back


def kill_nginx(stack: Stack) -> Back:
    """The master; its supervisor ends its workers, which nobody could reconfigure, and starts it again."""
    master, old = processes.nginx(stack)
    os.kill(master, signal.SIGKILL)

    def back() -> bool:
        with contextlib.suppress(ValueError):
            other, now = processes.nginx(stack)
            return other != master and len(now) == len(old) and not {*now} & {*old}
        return False

    return back


def restart(stack: Stack) -> Back:
    """The planned one, of every instance."""
    before = starts(stack, SPEECH)
    started = time.monotonic()
    done = restarted(stack)
    assert done.returncode == 0, done.stderr
    print(f"\n{done.stdout.strip()}; all in {time.monotonic() - started:.1f} s")
    return lambda: replaced(stack, before, *SPEECH)


FAULTS = {
    "kill a tritonserver": Fault(killed(lambda s: processes.tritonserver(s, 0))),
    "kill the engine's stub": Fault(killed(lambda s: processes.stub(s, 0, "tensorrt_llm_stream"))),
    "kill a facade's stub": Fault(killed(lambda s: processes.stub(s, 0, "whisper_bls"))),
    "kill a guard": Fault(killed(lambda s: processes.guard(s, 0))),
    "kill a gateway": Fault(kill_gateway),
    "kill an nginx worker": Fault(kill_nginx_worker, frozenset({"gateway", "HTTP", "gRPC"})),
    "kill nginx's master": Fault(kill_nginx, frozenset({"gateway", "SDK", "HTTP", "gRPC"}), shuts=True),
    "stop a tritonserver": Fault(paused(lambda s: processes.tritonserver(s, 0), 15)),
    "stop a stub": Fault(paused(lambda s: processes.stub(s, 0, "whisper_bls"), 15)),
    "end a guard": Fault(killed(lambda s: processes.guard(s, 0), signal.SIGTERM)),
    "end a tritonserver": Fault(killed(lambda s: processes.tritonserver(s, 0), signal.SIGTERM)),
    "planned restart": Fault(restart),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(target: Stack, fault: str) -> None:
    """What is not a stream is answered, whatever dies; what was hit is back by itself."""
    suffered(target, fault, FAULTS[fault], PER_FAULT)


def test_clients_of_killed_nginx_workers(target: Stack) -> None:
    """OpenAI's SDK asks again and loses nothing; a plain client loses what its own connection had in
    flight: at most one request for each client and kill.
    """
    clients, kills = 3, 8
    with contextlib.ExitStack() as running:
        loads = {
            kind: running.enter_context(Load(lambda call=LOADS[kind][0]: call(target), clients))
            for kind in ("SDK", "gateway")
        }  # type: ignore[misc]
        for kill in range(kills):
            until_each(loads, PER_FAULT * kill // kills, 60 + PER_FAULT)
            back = kill_nginx_worker(target)
            while not back():
                time.sleep(0.02)
        until_each(loads, PER_FAULT, 60 + PER_FAULT)
    counts = {kind: (load.done + len(load.failed), len(load.failed)) for kind, load in loads.items()}
    print(f"\n{kills} nginx workers killed; (sent, lost): {counts}")
    assert loads["SDK"].failed == []
    assert len(loads["gateway"].failed) <= kills * clients, loads["gateway"].failed[:3]
