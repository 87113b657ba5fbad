"""Running stacks in process mode, each on its own block of ports."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import pytest

from tests.ports import first_port

if TYPE_CHECKING:
    from openai import OpenAI

ROOT = Path(__file__).parent.parent.parent
RECORDINGS = ROOT / "miniatures" / "recordings"
PORT = first_port("stack")
TEXT_PORT = first_port("text")
RETRIEVAL_PORT = first_port("retrieval")
RETRIEVAL_MODELS = "all-minilm-l6-v2,mini-clip"
TEXT_MODELS = "mini-t5,mini-bart,mini-gpt2,mini-whisper"
PYTHON = ROOT / ".venv/serve/bin/python"
T = TypeVar("T")


def run(
    *command: object, env: Mapping[str, str] | None = None, cwd: Path = ROOT, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its output is kept."""
    argv = [str(part) for part in command]
    return subprocess.run(
        argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )


def until(
    what: str | Callable[[], object], found: Callable[[], T], seconds: float, *ignore: type[Exception]
) -> T:
    """Return the first true answer of `found()`; an error of the types `ignore` is none.

    Raises:
        AssertionError: there was none within `seconds`; the message is `what`, or what `what()` returns.
    """
    deadline = time.monotonic() + seconds
    while True:
        with suppress(*ignore):
            if answer := found():
                return answer
        assert time.monotonic() < deadline, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(0.05)


@dataclass(frozen=True)
class Stack:
    """Where the stack answers. `home`: its folder in process mode; None in containers."""

    url: str
    kserve: str
    grpc: str
    home: Path | None

    @classmethod
    def at(cls, port: int, home: Path | None = None, host: str = "127.0.0.1") -> Stack:
        """The stack whose public port is `port`."""
        return cls(f"http://{host}:{port}", f"http://{host}:{port - 80}", f"{host}:{port - 79}", home)

    def openai(self, **options: Any) -> OpenAI:
        """OpenAI's own client of it, which asks once."""
        from openai import OpenAI  # the browser's environment has none

        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, **options)

    def transcribe(
        self, sound: bytes, *, timeout: float = 120, headers: dict[str, str] | None = None, **form: Any
    ) -> httpx.Response:
        """A form with a recording, by hand. `form`: its other fields."""
        url, files = f"{self.url}/v1/audio/transcriptions", {"file": ("sound", sound)}
        return httpx.post(url, files=files, data=form, headers=headers, timeout=timeout)

    def instance(self, index: int) -> dict[str, Any]:
        """What deployment.json says of an instance; its addresses are sockets that this user may open."""
        assert self.home
        return dict(json.loads((self.home / "deployment.json").read_text("utf-8"))["instances"][index])

    def log(self, name: str) -> str:
        assert self.home
        return (self.home / "logs" / f"{name}.log").read_text("utf-8", "replace")


def portable(
    home: Path, port: int, models: str, instances: int, *, target: str = "", build: bool = False
) -> dict[str, str]:
    """The environment of a stack with engines for CPUs, or for `target` or the one that CONCH_TARGET names:
    then the bundles are built first, and with `build` in any case.
    """
    target = target or os.environ.get("CONCH_TARGET", "openvino")
    if build or target != "openvino":
        build_engines({**os.environ, "TARGET": target, "MODEL_ID": models})
    return {
        **os.environ,
        "PORT": str(port),
        "INSTANCES": str(instances),
        "MODEL_ID": models,
        "TARGET": target,
        "CONCH_HOME": str(home),
    }


def build_engines(environment: Mapping[str, str]) -> None:
    """Build the bundles of the models and the target that the environment names."""
    done = run(sys.executable, "-m", "build", "engines", env=environment, seconds=1200)
    assert done.returncode == 0, done.stderr


def serve(environment: dict[str, str]) -> tuple[subprocess.Popen[bytes], Stack]:
    """Begin what `make serve` does; the process, and the stack that it will be."""
    home = Path(environment["CONCH_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    with (home / "serve.log").open("ab") as log:
        command = [PYTHON, "-m", "ops.process_mode", "serve"]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
    return process, Stack.at(int(environment["PORT"]), home)


@contextmanager
def started(environment: dict[str, str], *, tidy: bool = True) -> Iterator[Stack]:
    """A stack in process mode on the block of ports and in the folder that the environment names. `tidy`: no
    tritonserver ever took its whole exit timeout, as one does that is killed while it works.
    """
    process, stack = serve(environment)
    try:
        wait_ready(stack, process)
        yield stack
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        home = Path(environment["CONCH_HOME"])
        if (artifacts := os.environ.get("CONCH_TEST_LOGS")) and (home / "logs").is_dir():
            shutil.copytree(home / "logs", Path(artifacts) / environment["PORT"], dirs_exist_ok=True)
    for log_file in (home / "logs").glob("triton-*.log") if tidy else ():
        assert "Exit timeout expired" not in log_file.read_text("utf-8", "replace"), (
            f"{log_file.name}: a model was never unloaded"
        )


def certificate(path: Path, key: Path) -> None:
    """A self-signed one for localhost."""
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command = [*made, "-subj", "/CN=localhost", "-addext", names, "-out", path, "-keyout", key]
    subprocess.run(command, check=True, capture_output=True)


def restarted(stack: Stack, **variables: str) -> subprocess.CompletedProcess[str]:
    """`make restart` of a stack that was started here."""
    port = stack.url.rsplit(":", 1)[1]
    environment = {**os.environ, **variables, "PORT": port, "CONCH_HOME": str(stack.home)}
    return run(PYTHON, "-m", "ops.process_mode", "restart", env=environment)


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two instances of mini-whisper; session-wide, because starting tritonservers takes seconds."""
    with started(portable(tmp_path_factory.mktemp("stack"), PORT, "mini-whisper", 2)) as found:
        yield found


@pytest.fixture(scope="module")
def client(stack: Stack) -> OpenAI:
    """OpenAI's own client of the module's stack."""
    return stack.openai()


@pytest.fixture(scope="session")
def text_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Four models, an instance each."""
    with started(portable(tmp_path_factory.mktemp("text"), TEXT_PORT, TEXT_MODELS, 4)) as found:
        yield found


@pytest.fixture(scope="session")
def retrieval_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A model for texts with real weights, one for pictures, two gateways, both databases embedded."""
    home = tmp_path_factory.mktemp("retrieval")
    with started(portable(home, RETRIEVAL_PORT, RETRIEVAL_MODELS, 2, build=True)) as found:
        yield found


def wait_ready(stack: Stack, process: subprocess.Popen[bytes]) -> None:
    """Return when all models answer; `process`: the stack's `serve`."""
    assert stack.home
    log = stack.home / "serve.log"

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        return httpx.get(f"{stack.url}/health/ready", timeout=30).status_code == 200

    until(log.read_text, ready, 240, httpx.HTTPError)


@pytest.fixture(scope="session")
def recordings() -> dict[str, dict[str, Any]]:
    """The bundled recordings by name."""
    return {row["name"]: row for row in json.loads((RECORDINGS / "recordings.json").read_text("utf-8"))}
