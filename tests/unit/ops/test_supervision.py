"""Which processes there are, and what they are told."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from build.catalog import ROOT
from conch.deployment import Deployment, Instance, Pool
from ops import supervision
from ops.local import LocalDeployment, LocalError, access_policy, nginx_values
from ops.nginx import write_nginx

from .running_nginx import free_block

SPEECH = Pool("a", "whisper", (0,), capabilities=frozenset({"transcription"}))
EMBEDDING = Pool("b", "minilm", (0,), capabilities=frozenset({"embedding"}))


def plan(pool: Pool) -> Deployment:
    instance = Instance(0, pool.model_id, pool.family, "/b", (0,), "unix:/h", "unix:/g")
    return Deployment((instance,), (pool,), ("unix:/run/gateway-0",))


ODD = "a b;c%d\"e'f$g[h"  # what the file system allows


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalDeployment:
    for name in ("VECTORS_URL", "DOCUMENTS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(supervision, "nginx_binary", lambda: "/usr/sbin/nginx")
    monkeypatch.setattr(supervision, "VECTORS_PYTHON", Path("/bin/sh"))
    return LocalDeployment("a", "openvino", 1, 8080, 8000, 8001, tmp_path, 1, tmp_path, tmp_path)


def test_the_vector_database_runs_where_an_embedding_model_is_served(local: LocalDeployment) -> None:
    """It starts before the gateways, which are told where it is."""
    config = supervision.supervisor_config(local, plan(EMBEDDING))
    command = config["program:vectors"]["command"]
    assert f'-m ops.vectors "$CONCH_STATE/retrieval/vectors" {local.run}/vectors' in command
    assert int(config["program:vectors"]["priority"]) < int(config["program:gateway-0"]["priority"])
    told = supervision.environment(local, plan(EMBEDDING), Path("/python"))
    assert told["CONCH_VECTORS_URL"] == f"unix:{local.run}/vectors"
    assert told["CONCH_DOCUMENTS_URL"] == f"sqlite:{local.home}/retrieval/documents.sqlite"
    assert "program:vectors" not in supervision.supervisor_config(local, plan(SPEECH))


def test_other_databases_take_its_place(local: LocalDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECTORS_URL", "http://milvus:19530")
    monkeypatch.setenv("DOCUMENTS_URL", "mongodb://mongo/conch")
    assert "program:vectors" not in supervision.supervisor_config(local, plan(EMBEDDING))
    told = supervision.environment(local, plan(EMBEDDING), Path("/python"))
    assert told["CONCH_VECTORS_URL"] == "http://milvus:19530"
    assert told["CONCH_DOCUMENTS_URL"] == "mongodb://mongo/conch"


def test_without_its_environment_search_is_off(
    local: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """make serve makes that environment; who starts the stack otherwise has the rest of it."""
    monkeypatch.setattr(supervision, "VECTORS_PYTHON", Path("/nothing"))
    assert "program:vectors" not in supervision.supervisor_config(local, plan(EMBEDDING))
    assert "CONCH_VECTORS_URL" not in supervision.environment(local, plan(EMBEDDING), Path("/python"))
    assert supervision.wants_embedded_vectors(plan(EMBEDDING))


def metrics(socket: Path, seconds: float) -> str:
    """What nginx says of itself; it may be starting."""
    deadline = time.monotonic() + seconds
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://nginx") as client:
        while True:
            try:
                return client.get("/metrics").text
            except httpx.HTTPError:
                assert time.monotonic() < deadline, "nginx does not listen at its own metrics' socket"
                time.sleep(0.05)


def test_nginx_starts_after_its_master_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nginx itself and the command that supervisor is given: after SIGKILL every socket file remains,
    and the next run listens on each of them again.
    """
    monkeypatch.setattr(supervision, "VECTORS_PYTHON", Path("/nothing"))
    first = free_block()
    home = tmp_path / ODD
    home.mkdir()
    local = LocalDeployment("a", "openvino", 1, first, first + 1, first + 2, tmp_path, 1, tmp_path, home)
    (home / "run").mkdir()
    write_nginx(home / "nginx", nginx_values(local), access_policy(), plan(SPEECH))
    program = supervision.supervisor_config(local, plan(SPEECH))["program:nginx"]
    told = supervision.environment(local, plan(SPEECH), Path(sys.executable))
    for end in (signal.SIGKILL, signal.SIGQUIT):
        command = shlex.split(program["command"])
        run = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **told})
        try:
            assert "conch_nginx_connections" in metrics(local.nginx_sockets["metrics"], 10)
            os.kill(int((home / "run/nginx.pid").read_text()), end)
        finally:
            run.wait(20)
        left = [name for name, path in local.nginx_sockets.items() if path.exists()]
        assert left == (list(local.nginx_sockets) if end == signal.SIGKILL else [])


def test_supervisor_reads_its_configuration_in_any_folder(tmp_path: Path) -> None:
    """With supervisor's own reader: blanks, quotes, semicolons, per cent signs mean something there."""
    home = tmp_path / ODD
    home.mkdir()
    local = LocalDeployment("a", "openvino", 1, 8080, 8000, 8001, tmp_path, 1, tmp_path, home)
    with (home / "supervisord.conf").open("w") as file:
        supervision.supervisor_config(local, plan(SPEECH)).write(file)
    told = supervision.environment(local, plan(SPEECH), Path("/python"))
    code = (
        "import sys; from supervisor.options import ServerOptions\n"
        "options = ServerOptions(); options.realize(['-c', sys.argv[1]])\n"
        "group = options.process_group_configs[0].process_configs[0]\n"
        "print(group.stdout_logfile); print(group.command)"
    )
    (home / "logs").mkdir()
    (home / "run").mkdir()
    command = [sys.executable, "-c", code, "supervisord.conf"]
    found = subprocess.run(
        command, cwd=home, env={**os.environ, **told}, capture_output=True, text=True, check=True
    )
    log, line = found.stdout.splitlines()
    assert log.startswith("logs/")
    assert shlex.split(line)[2].startswith('cd "$CONCH_ROOT" && exec "$CONCH_PYTHON" -m ops.child')


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MAX_UPLOAD_BYTES", "1GB", "MAX_UPLOAD_BYTES must be a valid integer"),
        ("CONCH_READY_SECONDS", "-1", "CONCH_READY_SECONDS must be greater than or equal to 0"),
    ],
)
def test_the_gateways_settings_are_checked_before_anything_starts(
    local: LocalDeployment, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(LocalError, match=said):
        supervision.check_settings(supervision.environment(local, plan(SPEECH), Path("/python")))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "abc"),
        ("PORT", "80"),
        ("PORT", "70000"),
        ("PORT", "٣"),
        ("INSTANCES", "0"),
        ("GATEWAYS", "x"),
    ],
)
def test_numbers_of_the_environment(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(LocalError, match=f"{name}='{value}' is not a number from"):
        LocalDeployment.from_environment()
    monkeypatch.setenv(name, "")
    assert LocalDeployment.from_environment().port == 8080


@pytest.mark.slow
def test_processes_stop_without_waiting_for_the_next_second(tmp_path: Path) -> None:
    """Six stop one after the other; with supervisor's own loop that takes six seconds."""
    config = ["[supervisord]", "nodaemon=true", "logfile=log", "pidfile=pid", "childlogdir=."]
    for i in range(6):
        config += [f"[program:{i}]", "command=/bin/sleep 1000", "startsecs=0", f"priority={i}"]
    (tmp_path / "supervisord.conf").write_text("\n".join(config))
    process = subprocess.Popen([sys.executable, "-m", "ops.supervisord", str(tmp_path)], cwd=ROOT)
    try:
        for _ in range(200):
            log = tmp_path / "log"
            if log.exists() and log.read_text().count("entered RUNNING") == 6:
                break
            time.sleep(0.05)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert time.monotonic() - began < 4
    finally:
        process.kill()
    assert [line.split()[4] for line in log.read_text().splitlines() if " stopped: " in line] == [*"543210"]
