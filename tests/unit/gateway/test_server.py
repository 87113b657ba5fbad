"""`python -m gateway` as a process: it sleeps while nobody asks, and ends when it is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from conch.deployment import Deployment, Instance, Pool


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """One that has no Triton, and a client of it."""
    pool = Pool("mini", "gpt2", (0,), capabilities=frozenset({"completion"}), target="torch")
    Deployment((Instance(0, "mini", "gpt2", "x", (0,), "a:1", "a:2"),), (pool,)).save(tmp_path / "plan.json")
    path = str(tmp_path / "socket")
    environment = {**os.environ, "CONCH_DEPLOYMENT": str(tmp_path / "plan.json")}
    process = subprocess.Popen([sys.executable, "-m", "gateway", path], env=environment)
    client = httpx.Client(transport=httpx.HTTPTransport(uds=path, retries=10), base_url="http://gateway")
    try:
        for _ in range(300):
            if Path(path).exists():
                break
            time.sleep(0.1)
        yield process, client
    finally:
        process.kill()
        process.wait()


def switches(pid: int) -> int:
    """How often the threads of a process have gone to sleep."""
    lines = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for text in lines)


@pytest.mark.slow  # 4 s
def test_an_idle_gateway_sleeps(gateway: tuple[subprocess.Popen[bytes], httpx.Client]) -> None:
    """uvicorn's own loop would wake up ten times a second."""
    process, client = gateway
    assert client.get("/health/live").status_code == 200
    client.close()
    time.sleep(1)
    before = switches(process.pid)
    time.sleep(3)
    assert switches(process.pid) - before <= 6


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_gateway_ends_when_it_is_told(
    gateway: tuple[subprocess.Popen[bytes], httpx.Client], number: signal.Signals
) -> None:
    """At once, although a client keeps its connection; before, a request is answered."""
    process, client = gateway
    assert client.get("/health/live").json() == {"status": "live"}
    process.send_signal(number)
    assert process.wait(10) == (-signal.SIGTERM if number == signal.SIGTERM else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "variable", "value", "says"),
    [
        ("gateway", "CONCH_GATEWAY_PORT", "80a", 'CONCH_GATEWAY_PORT must be a valid integer, not "80a"'),
        ("gateway", "CONCH_GATEWAY_PORT", "70000", "CONCH_GATEWAY_PORT must be less than 65536, not"),
        ("gateway", "CONCH_KSERVE_URL", "https://a", "CONCH_KSERVE_URL"),
        ("gateway.retrieval check", "CONCH_DOCUMENTS_URL", "", "CONCH_DEPLOYMENT is not set"),
        (
            "gateway.retrieval check",
            "CONCH_DECODE_SECONDS",
            "0",
            "CONCH_DECODE_SECONDS must be greater than 0",
        ),
    ],
)
def test_a_setting_that_is_not_valid_is_named(program: str, variable: str, value: str, says: str) -> None:
    """In one sentence, without a traceback."""
    plan = {} if "is not set" in says else {"CONCH_DEPLOYMENT": "plan.json"}
    environment = {**os.environ, **plan, variable: value}
    done = subprocess.run(
        [sys.executable, "-m", *program.split()], env=environment, capture_output=True, text=True, check=False
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and says in line and line.endswith(("; change it, or unset it", "; set it"))
