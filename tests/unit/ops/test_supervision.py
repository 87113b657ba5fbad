"""Which processes there are, and what they are told."""

from __future__ import annotations

import os
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
from ops.local import LocalDeployment, access_policy, nginx_values
from ops.nginx import write_nginx

from .running_nginx import free_block

SPEECH = Pool("a", "whisper", (0,), capabilities=frozenset({"transcription"}))
EMBEDDING = Pool("b", "minilm", (0,), capabilities=frozenset({"embedding"}))


def plan(pool: Pool) -> Deployment:
    instance = Instance(0, pool.model_id, pool.family, "/b", (0,), "unix:/h", "unix:/g")
    return Deployment((instance,), (pool,), ("unix:/run/gateway-0",))


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalDeployment:
    for name in ("VECTORS_URL", "DOCUMENTS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(supervision, "nginx_binary", lambda: "/usr/sbin/nginx")
    monkeypatch.setattr(supervision, "VECTORS_PYTHON", Path("/bin/sh"))
    return LocalDeployment("a", "openvino", 1, 8080, 8000, 8001, tmp_path, 1, tmp_path, tmp_path)


def test_the_vector_database_runs_where_an_embedding_model_is_served(local: LocalDeployment) -> None:
    """It starts before the gateways, which are told where it is."""
    config = supervision.supervisor_config(local, plan(EMBEDDING), Path("/python"))
    assert (
        f"-m ops.vectors {local.home}/retrieval/vectors {local.run}/vectors"
        in config["program:vectors"]["command"]
    )
    assert int(config["program:vectors"]["priority"]) < int(config["program:gateway-0"]["priority"])
    told = config["program:gateway-0"]["environment"]
    assert f'CONCH_VECTORS_URL="unix:{local.run}/vectors"' in told
    assert f'CONCH_DOCUMENTS_URL="sqlite:{local.home}/retrieval/documents.sqlite"' in told
    assert "program:vectors" not in supervision.supervisor_config(local, plan(SPEECH), Path("/python"))


def test_other_databases_take_its_place(local: LocalDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VECTORS_URL", "http://milvus:19530")
    monkeypatch.setenv("DOCUMENTS_URL", "mongodb://mongo/conch")
    config = supervision.supervisor_config(local, plan(EMBEDDING), Path("/python"))
    assert "program:vectors" not in config
    told = config["program:gateway-0"]["environment"]
    assert 'CONCH_VECTORS_URL="http://milvus:19530"' in told
    assert 'CONCH_DOCUMENTS_URL="mongodb://mongo/conch"' in told


def test_without_its_environment_search_is_off(
    local: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """make serve makes that environment; who starts the stack otherwise has the rest of it."""
    monkeypatch.setattr(supervision, "VECTORS_PYTHON", Path("/nothing"))
    config = supervision.supervisor_config(local, plan(EMBEDDING), Path("/python"))
    assert "program:vectors" not in config
    assert "VECTORS_URL" not in config["program:gateway-0"]["environment"]
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
    """With nginx itself and the command that supervisor is given: SIGKILL leaves every socket behind, and the
    next run listens at each of them again.
    """
    monkeypatch.setattr(supervision, "VECTORS_PYTHON", Path("/nothing"))
    first = free_block()
    local = LocalDeployment("a", "openvino", 1, first, first + 1, first + 2, tmp_path, 1, tmp_path, tmp_path)
    (tmp_path / "run").mkdir()
    write_nginx(tmp_path / "nginx", nginx_values(local), access_policy(), plan(SPEECH))
    program = supervision.supervisor_config(local, plan(SPEECH), Path(sys.executable))["program:nginx"]
    for end in (signal.SIGKILL, signal.SIGQUIT):
        run = subprocess.Popen(program["command"].split(), cwd=ROOT)
        try:
            assert "conch_nginx_connections" in metrics(local.nginx_sockets["metrics"], 10)
            os.kill(int((tmp_path / "run/nginx.pid").read_text()), end)
        finally:
            run.wait(20)
        left = [name for name, path in local.nginx_sockets.items() if path.exists()]
        assert left == (list(local.nginx_sockets) if end == signal.SIGKILL else [])
