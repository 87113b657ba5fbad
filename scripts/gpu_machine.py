"""A machine with GPUs as the report sees it: what it is, and how a deployment on it is built, started, looked
into and stopped. Python's library alone.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from conch.driver import driver, driver_findings, toolkit
from conch.gpus import gpus

ROOT = Path(__file__).parent.parent
START = 3600.0  # seconds for engines and servers
INSTANCES = 4
# Ends the tritonserver that it finds: in a container the only one, else that of the given listener.
KILL = (
    "import os, pathlib, signal, sys\n"
    "for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):\n"
    "    words = path.read_bytes().split(b'\\0') if os.access(path, os.R_OK) else [b'']\n"
    "    if words[0].endswith(b'/tritonserver') and (len(sys.argv) < 2 or "
    "f'--http-address={sys.argv[1]}'.encode() in words):\n"
    "        os.kill(int(path.parent.name), signal.SIGKILL)\n"
)


class Failed(Exception):
    """A step did not do what it should; `skipped`: it could not be tried at all. `output`: what a person
    needs to see of it.
    """

    def __init__(self, message: str, *, output: str = "", skipped: bool = False) -> None:
        super().__init__(message)
        self.output, self.skipped = output[-8000:], skipped


def short(text: str, most: int = 200) -> str:
    """One line for a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= most else line[: most - 1] + "…"


def run(
    argv: Sequence[object],
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float = START,
    stdin: IO[bytes] | None = None,
) -> str:
    """What a command prints.

    Raises:
        Failed: it is not there, took too long or ended with another status than 0.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=dict(environment or os.environ),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            stdin=stdin,
        )
    except FileNotFoundError as error:
        raise Failed(f"{words[0]} is not installed", skipped=True) from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{words[0]} took longer than {seconds:.0f} s") from error
    if done.returncode:
        last = short((done.stderr or done.stdout).strip().rpartition("\n")[2])
        raise Failed(
            f"{short(' '.join(words), 80)} ended with {done.returncode}: {last}",
            output=done.stdout[-4000:] + done.stderr[-4000:],
        )
    return done.stdout


def machine() -> Iterator[str]:
    """One clause each: GPUs, driver, toolkit, Docker, system, revision.

    Raises:
        Failed: no GPU, or a driver that the image cannot run on.
    """
    yield f"{platform.system()} {platform.release()}, {os.cpu_count()} CPUs"
    with suppress(Failed):
        yield f"revision {run(['git', 'rev-parse', '--short', 'HEAD']).strip()}"
    with suppress(Failed):
        yield run(["docker", "version", "--format", "Docker {{.Server.Version}}"]).strip()
    yield f"container toolkit {toolkit() or 'not found'}"
    cards = gpus()
    if not cards:
        raise Failed("nvidia-smi shows no GPU; run this on a machine with one")
    yield f"driver {driver()}"
    yield "; ".join(f"{card.name}, {card.compute_capability}, {card.memory}" for card in cards)
    if found := driver_findings(driver(), [card.name for card in cards]):
        raise Failed(found[0])


class Deployment(Protocol):
    """One way to run Conch; addresses are host:port or URLs."""

    def check(self, model_id: str) -> str:
        """Compare a model's steps with the image; what the builder says."""

    def up(self) -> str:
        """Build the engines and start; what was built."""

    def down(self) -> None:
        """Stop everything; a second time nothing happens."""

    def doors(self) -> tuple[str, str]:
        """The gateway's and KServe's URL."""

    def inside(self, index: int) -> tuple[str, str]:
        """HTTP and gRPC addresses of an instance, as seen from inside it."""

    def inside_run(self, index: int, command: Sequence[str]) -> str:
        """Run a Python script of the image where an instance runs; what it prints."""

    def kill(self, index: int) -> None:
        """SIGKILL to an instance's tritonserver."""

    def log(self, index: int) -> str:
        """The end of an instance's log."""

    def tokenizer(self, index: int) -> str:
        """The folder with tokenizer.json, as seen from inside an instance."""

    def file(self, index: int, path: Path) -> str:
        """A file of this repository, as seen from inside an instance."""


def variables(models: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a deployment: small models, four instances on the first GPU unless TRITON_i_GPUS
    says otherwise.
    """
    gpus = {f"TRITON_{i}_GPUS": given.get(f"TRITON_{i}_GPUS", "0") for i in range(INSTANCES)}
    own = {
        "MODEL_ID": ",".join(models),
        "TARGET": "trtllm",
        "INSTANCES": str(INSTANCES),
        "COMPOSE_PROFILES": f"instances-{INSTANCES}",
    }
    return {**given, **gpus, **own, "KV_CACHE_FRACTION": given.get("KV_CACHE_FRACTION") or "0.2"}


class InDocker:
    """Compose, as users run it, under a project name and ports of its own."""

    def __init__(self, models: Sequence[str], given: dict[str, str]) -> None:
        self.models, self.port = models, int(given.get("PORT") or 18080)
        ports = {
            "PORT": str(self.port),
            "KSERVE_HTTP_PORT": str(self.port + 1),
            "KSERVE_GRPC_PORT": str(self.port + 2),
        }
        self.environment = {**variables(models, given), **ports, "COMPOSE_PROJECT_NAME": "conch-gpu-report"}

    def _compose(self, *words: str, seconds: float = START) -> str:
        return run(["docker", "compose", *words], environment=self.environment, seconds=seconds)

    def check(self, model_id: str) -> str:
        """See `Deployment`."""
        command = ("python3", "-m", "build", "check", "--target", "trtllm", "--model-id", model_id)
        return short(self._compose("run", "--rm", "--build", "builder", *command).strip().rpartition("\n")[2])

    def up(self) -> str:
        """See `Deployment`."""
        try:
            self._compose("up", "--build", "--detach", "--wait")
        except Failed as failed:
            with suppress(Failed):
                failed.output += "\n" + self._compose("logs", "--no-color", "--tail", "60")
            raise
        return short(self._compose("logs", "--no-color", "--no-log-prefix", "builder").strip()[-500:])

    def down(self) -> None:
        """See `Deployment`. Volumes go too: they hold the miniatures' engines only."""
        with suppress(Failed):
            self._compose("down", "--volumes", seconds=300)

    def doors(self) -> tuple[str, str]:
        """See `Deployment`."""
        return f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port + 1}"

    def inside(self, index: int) -> tuple[str, str]:
        """See `Deployment`. Every container has the same ports."""
        return "localhost:8000", "localhost:8001"

    def inside_run(self, index: int, command: Sequence[str]) -> str:
        """See `Deployment`."""
        return self._compose("exec", "-T", f"triton-{index}", "/usr/bin/python3", *command, seconds=600)

    def kill(self, index: int) -> None:
        """See `Deployment`."""
        self._compose("exec", "-T", f"triton-{index}", "/usr/bin/python3", "-c", KILL)

    def log(self, index: int) -> str:
        """See `Deployment`."""
        return self._compose("logs", "--no-color", "--tail", "60", f"triton-{index}")

    def tokenizer(self, index: int) -> str:
        """See `Deployment`."""
        return f"/engines/{self.models[index % len(self.models)]}/trtllm/engine"

    def file(self, index: int, path: Path) -> str:
        """See `Deployment`. Containers are read-only but for /tmp, and their images hold no recordings."""
        inside = f"/tmp/{path.name}"  # noqa: S108  # of the container
        with path.open("rb") as file:
            run(
                ["docker", "compose", "exec", "-T", f"triton-{index}", "sh", "-c", f"cat > {inside}"],
                environment=self.environment,
                stdin=file,
                seconds=60,
            )
        return inside


class InProcesses:
    """Process mode inside the image, or with stand-ins of it (CONCH_IMAGE_ROOT)."""

    def __init__(self, models: Sequence[str], given: dict[str, str]) -> None:
        self.models, self.port = models, int(given.get("PORT") or 18080)
        self.root = Path(given.get("CONCH_IMAGE_ROOT") or "/")
        self.engines, self.home = (
            Path(given.get(name) or ROOT / f".conch/gpu-report/{name.lower()}")
            for name in ("ENGINES_DIR", "CONCH_HOME")
        )
        self.environment = {
            **variables(models, given),
            "PORT": str(self.port),
            "ENGINES_DIR": str(self.engines),
            "CONCH_HOME": str(self.home),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def check(self, model_id: str) -> str:
        """See `Deployment`."""
        return short(
            run(
                [sys.executable, "-m", "build", "check", "--target", "trtllm", "--model-id", model_id],
                environment=self.environment,
            )
        )

    def up(self) -> str:
        """See `Deployment`."""
        built = run(
            [sys.executable, "-m", "build", "engines", "--target", "trtllm"], environment=self.environment
        )
        python = next(
            (path for path in (ROOT / ".venv/serve/bin/python",) if path.exists()), Path(sys.executable)
        )
        self.process = subprocess.Popen(
            [str(python), "-m", "ops.process_mode", "serve"],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failed(
                    "the servers did not become ready",
                    output="\n".join(self.log(i) for i in range(INSTANCES)),
                )
            time.sleep(0.5)
        time.sleep(4)  # nginx leaves a server alone for 3 s that refused a connection while it started
        return short(built)

    def _ready(self) -> bool:
        try:
            own = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with own.open(f"{self.doors()[0]}/health/ready", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def down(self) -> None:
        """See `Deployment`."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(120)

    def doors(self) -> tuple[str, str]:
        """See `Deployment`."""
        return f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port - 80}"

    def inside(self, index: int) -> tuple[str, str]:
        """See `Deployment`. The ports of ops/local.py."""
        return f"127.0.0.1:{self.port + 20 + index}", f"127.0.0.1:{self.port + 40 + index}"

    def inside_run(self, index: int, command: Sequence[str]) -> str:
        """See `Deployment`."""
        script = self.root / command[0].lstrip("/")
        if not script.is_file():
            raise Failed(f"{script.name} is not in this image ({command[0]})", skipped=True)
        return run(
            [self.root / "usr/bin/python3", script, *command[1:]], environment=self.environment, seconds=600
        )

    def kill(self, index: int) -> None:
        """See `Deployment`."""
        deployment = json.loads((self.home / "deployment.json").read_text("utf-8"))
        door = deployment["instances"][index]["http"].removesuffix(".http")
        run([sys.executable, "-c", KILL, f"{door}.inner.http"])

    def log(self, index: int) -> str:
        """See `Deployment`."""
        path = self.home / f"logs/triton-{index}.log"
        return path.read_text("utf-8", "replace")[-4000:] if path.is_file() else ""

    def tokenizer(self, index: int) -> str:
        """See `Deployment`."""
        return str(self.engines / self.models[index % len(self.models)] / "trtllm/engine")

    def file(self, index: int, path: Path) -> str:
        """See `Deployment`."""
        return str(path)
