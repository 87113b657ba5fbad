"""A machine with GPUs for the report: its properties, and how to build, start, inspect and stop a deployment
on it. Standard library only.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from conch import toolchains
from conch.driver import driver, driver_findings, toolkit
from conch.gpus import gpus
from conch.nvidia_images import TensorRtLlmImage
from ops.environment import settings

ROOT = Path(__file__).parent.parent
START = 3600.0  # seconds for engines and servers
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
    """A step failed; `skipped`: it could not be tried at all. `output` is what a person should see of it."""

    def __init__(self, message: str, *, output: str = "", skipped: bool = False) -> None:
        super().__init__(message)
        self.output, self.skipped = output[-8000:], skipped


def short(text: str, most: int = 200) -> str:
    """Shorten to one line for a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= most else line[: most - 1] + "…"


def run(
    argv: Sequence[object],
    *,
    environment: Mapping[str, str] | None = None,
    seconds: float = START,
    stdin: IO[bytes] | None = None,
) -> str:
    """Run a command and return its output.

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
    """Describe the machine, one clause each: GPUs, driver, toolkit, Docker, system, revision.

    Raises:
        Failed: no GPU.
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


@dataclass(frozen=True)
class Round:
    """Models that one deployment serves with one target, an instance each.

    Attributes:
        spare: one more instance of the first
        ranks: GPUs of an engine (tensor parallelism)
        settings: variables where the user sets none
        clients: NVIDIA's own clients are run
    """

    target: str
    models: tuple[str, ...]
    spare: bool = False
    ranks: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    clients: bool = False

    @property
    def instances(self) -> int:
        """Return the number of tritonservers."""
        return len(self.models) + self.spare

    def possible(self) -> None:
        """Check driver and GPUs against what this needs.

        Raises:
            Failed: it cannot run on this machine.
        """
        cards = gpus()
        if len(cards) < self.ranks:
            raise Failed(f"it needs {self.ranks} GPUs", skipped=True)
        needs = toolchains.find(self.target).needs(settings())
        for finding in driver_findings(driver(), [card.name for card in cards], needs) if needs else ():
            raise Failed(finding, skipped=True)

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return the deployment's environment, on the first GPUs unless TRITON_i_GPUS says otherwise."""
        cards = ",".join(map(str, range(self.ranks)))
        names = [f"TRITON_{i}_GPUS" for i in range(self.instances)]
        own = {
            "MODEL_ID": ",".join(self.models),
            "TARGET": self.target,
            "TP_SIZE": str(self.ranks),
            "INSTANCES": str(self.instances),
            "COMPOSE_PROFILES": f"instances-{self.instances}",
        }
        return {
            **self.settings,
            **{k: v for k, v in given.items() if v},
            **{name: given.get(name) or cards for name in names},
            **own,
        }


class InDocker:
    """Runs Compose as users do, with its own project name and ports. Addresses are host:port or URLs."""

    miniatures = "/miniatures"  # as NVIDIA's clients see them

    def __init__(self, served: Round, given: dict[str, str]) -> None:
        self.round, self.port = served, int(given.get("PORT") or 18080)
        self.project = "conch-gpu-report"
        ports = {
            "PORT": str(self.port),
            "KSERVE_HTTP_PORT": str(self.port + 1),
            "KSERVE_GRPC_PORT": str(self.port + 2),
        }
        self.environment = {**served.variables(given), **ports, "COMPOSE_PROJECT_NAME": self.project}

    def _compose(self, *words: str, seconds: float = START) -> str:
        return run(["docker", "compose", *words], environment=self.environment, seconds=seconds)

    def builder(self, *arguments: str) -> str:
        """Run `python -m build`, and return its output."""
        return self._compose("run", "--rm", "--build", "builder", "python3", "-m", "build", *arguments)

    def up(self) -> None:
        """Start the servers."""
        try:
            self._compose("up", "--build", "--detach", "--wait")
        except Failed as failed:
            with suppress(Failed):
                failed.output += "\n" + self._compose("logs", "--no-color", "--tail", "60")
            raise

    def down(self) -> None:
        """Stop everything; safe to repeat. Volumes go too: they hold the miniatures' engines only."""
        with suppress(Failed):
            self._compose("down", "--volumes", seconds=300)

    def urls(self) -> tuple[str, str]:
        """Return the gateway's and KServe's URL."""
        return f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port + 1}"

    def address(self, index: int) -> tuple[str, str]:
        """Return HTTP and gRPC addresses of an instance for NVIDIA's clients."""
        return f"triton-{index}:8000", f"triton-{index}:8001"

    def engine(self, index: int) -> str:
        """Return the folder with an instance's engine and tokenizer.json, as NVIDIA's clients see it."""
        return f"/engines/{self.round.models[index]}/{self.round.target}/engine"

    def client(self, script: str, arguments: Sequence[str]) -> str:
        """Run a Python script of the image, and return its output. The image lacks what NVIDIA's clients
        import: one made from it has that.
        """
        version = self.environment.get("CONCH_VERSION") or "0.2.0"
        server = f"SERVER=localhost/conch/server:{version}-{self.round.target}"
        build = ["build", "--quiet", "--file", "docker/clients.Dockerfile", "--build-arg", server, "."]
        image = run(["docker", *build]).strip()
        volumes = (f"{ROOT}/miniatures:/miniatures:ro,z", f"{self.project}_engines:/engines:ro")
        options = ["--rm", "--network", f"{self.project}_inner", *(f"--volume={one}" for one in volumes)]
        return run(["docker", "run", *options, image, script, *arguments], seconds=600)

    def kill(self, index: int) -> None:
        """Send SIGKILL to an instance's tritonserver."""
        self._compose("exec", "-T", f"triton-{index}", "python3", "-c", KILL)

    def log(self, index: int) -> str:
        """Return the end of an instance's log."""
        return self._compose("logs", "--no-color", "--tail", "60", f"triton-{index}")


class InProcesses:
    """Runs process mode inside the image, or with stand-ins of it (CONCH_IMAGE_ROOT). See `InDocker`."""

    miniatures = str(ROOT / "miniatures")

    def __init__(self, served: Round, given: dict[str, str]) -> None:
        self.round, self.port = served, int(given.get("PORT") or 18080)
        self.root = Path(given.get("CONCH_IMAGE_ROOT") or "/")
        self.engines, self.home = (
            Path(given.get(name) or ROOT / f".conch/gpu-report/{name.lower()}")
            for name in ("ENGINES_DIR", "CONCH_HOME")
        )
        self.environment = {
            **served.variables(given),
            "PORT": str(self.port),
            "ENGINES_DIR": str(self.engines),
            "CONCH_HOME": str(self.home),
        }
        self.process: subprocess.Popen[bytes] | None = None

    def builder(self, *arguments: str) -> str:
        return run([sys.executable, "-m", "build", *arguments], environment=self.environment)

    def up(self) -> None:
        python = ROOT / ".venv/serve/bin/python"
        self.process = subprocess.Popen(
            [python if python.exists() else sys.executable, "-m", "ops.process_mode", "serve"],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + START
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                logs = "\n".join(self.log(i) for i in range(self.round.instances))
                raise Failed("the servers did not become ready", output=logs)
            time.sleep(0.5)
        time.sleep(4)  # nginx leaves a server alone for 3 s that refused a connection while it started

    def _ready(self) -> bool:
        try:
            own = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with own.open(f"{self.urls()[0]}/health/ready", timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def down(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(120)

    def urls(self) -> tuple[str, str]:
        return f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port - 80}"

    def address(self, index: int) -> tuple[str, str]:
        return f"127.0.0.1:{self.port + 20 + index}", f"127.0.0.1:{self.port + 40 + index}"

    def engine(self, index: int) -> str:
        return str(self.engines / self.round.models[index] / self.round.target / "engine")

    def client(self, script: str, arguments: Sequence[str]) -> str:
        path = self.root / script.lstrip("/")
        if not path.is_file():
            raise Failed(f"{path.name} is not in this image ({script})", skipped=True)
        python = TensorRtLlmImage(self.root).python
        return run([python, path, *arguments], environment=self.environment, seconds=600)

    def kill(self, index: int) -> None:
        deployment = json.loads((self.home / "deployment.json").read_text("utf-8"))
        socket = deployment["instances"][index]["http"].removesuffix(".http")
        run([sys.executable, "-c", KILL, f"{socket}.inner.http"])

    def log(self, index: int) -> str:
        path = self.home / f"logs/triton-{index}.log"
        return path.read_text("utf-8", "replace")[-4000:] if path.is_file() else ""


RunningRound = InDocker | InProcesses


def built(deployment: RunningRound, command: str, model_id: str) -> str:
    """Build one engine (`engines`), or compare its build commands with the image (`check`), and return the
    end of the builder's output.
    """
    printed = deployment.builder(command, "--target", deployment.round.target, "--model-id", model_id)
    return short(printed.strip().rpartition("\n")[2])
