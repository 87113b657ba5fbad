"""A running stack: CONCH_URL names one that is up already, otherwise process mode is started on its own block of ports."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parent.parent.parent
RECORDINGS = ROOT / "miniatures" / "recordings"
PORT = 9480
PYTHON = ROOT / ".venv/serve/bin/python"


@dataclass(frozen=True)
class Stack:
    """Where the stack answers; `home` is None when it was not started here."""

    url: str
    kserve: str
    grpc: str
    home: Path | None

    def log(self, name: str) -> str:
        assert self.home
        return (self.home / "logs" / f"{name}.log").read_text("utf-8", "replace")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Session-wide, because starting two tritonservers takes seconds."""
    if url := os.environ.get("CONCH_URL"):
        host = url.rsplit(":", 1)[0]
        yield Stack(url, os.environ.get("CONCH_KSERVE", f"{host}:8000"), os.environ.get("CONCH_GRPC", f"{host.split('//')[1]}:8001"), None)
        return
    home = tmp_path_factory.mktemp("stack")
    environment = {**os.environ, "PORT": str(PORT), "INSTANCES": "2", "MODEL_ID": "mini-whisper", "TARGET": "openvino", "CONCH_HOME": str(home)}
    with (home / "serve.log").open("wb") as log:
        process = subprocess.Popen([PYTHON, "-m", "scripts.local", "serve"], cwd=ROOT, env=environment, stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{PORT}/health/ready", process, home)
        yield Stack(f"http://127.0.0.1:{PORT}", f"http://127.0.0.1:{PORT - 80}", f"127.0.0.1:{PORT - 79}", home)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        if artifacts := os.environ.get("CONCH_TEST_LOGS"):
            shutil.copytree(home / "logs", artifacts, dirs_exist_ok=True)


def _wait(url: str, process: subprocess.Popen[bytes], home: Path) -> None:
    for _ in range(300):
        assert process.poll() is None, (home / "serve.log").read_text()
        try:
            if httpx.get(url, timeout=30).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError((home / "serve.log").read_text())


@pytest.fixture(scope="session")
def recordings() -> dict[str, dict[str, Any]]:
    """The bundled recordings by name."""
    return {row["name"]: row for row in json.loads((RECORDINGS / "recordings.json").read_text("utf-8"))}
