"""The parent of a tritonserver: starts it, probes it with a tiny real inference, and ends the whole group when it is ill.

Triton never notices a dead Python stub (ready stays 200), so readiness alone is worth nothing. A failing probe ends the server; whoever
supervises the guard starts it again. `python -m scripts.guard --deployment deployment.json --instance 0`.
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from build.plan import Instance, Plan
from build.toolchain import ToolchainError, differences, identity

from .idle import COUNTERS
from .ranks import ENGINE_MODEL, MPI_ENVIRONMENT, launch, leader, parts, session

POLL = 0.5
IDLE_PROBE = 5.0
PROBE_TIMEOUT = 30.0
START_TIMEOUT = 600.0
DRAIN = 30.0
NVIDIA = Path("/opt/tritonserver/bin/tritonserver")  # in NVIDIA's images


class Refused(Exception):
    """The bundle must not be served; the message says why and how to rebuild it."""


class Ill(Exception):
    """The server has to be restarted."""


def check_bundle(bundle: Path, model_id: str, gpus: str = "") -> dict[str, Any]:
    """The manifest of a bundle that fits this machine. `gpus`: those it will run on, as CUDA_VISIBLE_DEVICES says it; empty: not known yet.

    Raises:
        Refused: no finished bundle, one made by another toolchain or for another GPU, or one that wants more GPUs than it gets.
    """
    path = bundle / "manifest.json"
    rebuild = f"rebuild it with: {_remedy(model_id, bundle.name)}"
    if not path.exists():
        raise Refused(f"{bundle} holds no finished bundle; {rebuild}")
    manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if "toolchain" not in manifest["engine"]:
        raise Refused(f"the bundle of {model_id} was made by an earlier Conch; {rebuild}")
    try:
        wrong = differences(manifest["engine"], identity(bundle.name, gpus))
    except ToolchainError as error:
        raise Refused(f"the bundle of {model_id} cannot be served here: {error}") from error
    if wrong:
        raise Refused(f"the bundle of {model_id} cannot be served here: {'; '.join(wrong)}; {rebuild}")
    ranks = manifest.get("serving", {}).get("world_size", 1)
    if gpus and ranks > len(gpus.split(",")):
        raise Refused(f"the bundle of {model_id} spans {ranks} GPUs, this instance has {gpus}; give it more with TRITON_i_GPUS, or set TP_SIZE=1 and {rebuild}")
    return manifest


def _remedy(model_id: str, target: str) -> str:
    """What makes a bundle anew. Engines for GPUs come from Compose's builder, whose image holds the tools."""
    if target == "trtllm":
        return "docker compose up -d (its builder remakes what does not fit)"
    return f"make engines MODEL_ID={model_id} TARGET={target} (in Docker: docker compose up -d)"


def find_tritonserver(home: Path) -> tuple[list[str], dict[str, str]]:
    """Command and environment of NVIDIA's tritonserver, or of the one in nvidia-pytriton's wheel with a backend folder of real files under `home`."""
    if NVIDIA.exists():
        # The Python backend takes the first python3 on PATH: the image's own, which has the libraries that models import.
        path = [part for part in os.environ.get("PATH", "").split(":") if part != str(Path(sys.executable).parent)]
        return [str(NVIDIA)], {**os.environ, "PATH": ":".join(path)}
    package = Path(sysconfig.get_paths()["purelib"])
    triton, backend = package / "pytriton" / "tritonserver", home / "backends" / "python"
    backend.mkdir(parents=True, exist_ok=True)
    stub = triton / "python_backend_stubs" / f"3.{sys.version_info.minor}" / "triton_python_backend_stub"
    for file in (triton / "backends/python/libtriton_python.so", triton / "backends/python/triton_python_backend_utils.py", stub):
        if not (backend / file.name).exists():
            partial = backend / f"{file.name}.{os.getpid()}"
            shutil.copy2(file, partial)
            partial.replace(backend / file.name)
    libraries = f"{package / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}"
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"}
    command = [str(triton / "bin" / "tritonserver"), f"--backend-directory={backend.parent}", f"--cache-directory={triton / 'caches'}"]
    return command, environment


def planned(plan: Plan, index: int) -> Instance:
    """An instance of the plan.

    Raises:
        Refused: the plan has fewer.
    """
    if index >= len(plan.instances):
        raise Refused(f"triton-{index} is not planned: INSTANCES={len(plan.instances)}; raise it, or use COMPOSE_PROFILES=instances-{len(plan.instances)}")
    return plan.instances[index]


def probe_body(probe: dict[str, Any]) -> dict[str, Any]:
    """A KServe JSON request out of a family's probe table."""
    rows = [{"name": name, "datatype": t["datatype"], "shape": t["shape"], "data": [t["fill"]] * _size(t["shape"])} for name, t in probe["inputs"].items()]
    return {"inputs": rows}


def _size(shape: list[int]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def budgeted(repository: Path, view: Path, share: float) -> Path:
    """A view of a repository in which the engine model takes `share` of its cache's budget; everything else is the bundle's own."""
    from google.protobuf import text_format  # only where GPUs are shared: the CPU's image has no protobuf

    from build.engine_config import with_share
    from build.tensors import parse_config

    shutil.rmtree(view, ignore_errors=True)
    (view / ENGINE_MODEL).mkdir(parents=True)
    for model in repository.iterdir():
        if model.name != ENGINE_MODEL:
            (view / model.name).symlink_to(model)
    (view / ENGINE_MODEL / "1").symlink_to(repository / ENGINE_MODEL / "1")
    config = with_share(parse_config(repository / ENGINE_MODEL / "config.pbtxt"), share)
    (view / ENGINE_MODEL / "config.pbtxt").write_text(text_format.MessageToString(config), "utf-8")
    return view


def _die_with_parent() -> None:
    """If the guard itself is killed, its server gets SIGTERM (prctl PR_SET_PDEATHSIG), so that no orphan keeps the ports."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@dataclass
class Guard:
    """One server and its health."""

    instance: Instance
    home: Path
    listen: str
    sign: Path | None
    prefix: str = field(init=False)
    process: subprocess.Popen[bytes] | None = None
    stopping: bool = False
    seen: dict[str, int] = field(default_factory=lambda: {"success": 0, "failure": 0})
    last_good: float = 0.0
    stubs: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.prefix = f"conch_{os.getpid()}_{self.instance.index}"
        # No connection is kept: an idle one holds up tritonserver's drain for the whole exit timeout.
        self.near = "127.0.0.1" if self.listen == "0.0.0.0" else self.listen
        self.client = httpx.Client(base_url=f"http://{self.near}:{self.instance.http}", limits=httpx.Limits(max_keepalive_connections=0))

    def command(self, serving: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        """Argv and environment of tritonserver, or of the mpirun that starts one for each rank."""
        instance = self.instance
        binary, environment = find_tritonserver(self.home)
        doors = [f"--{door}-address={self.listen}" for door in ("http", "grpc", "metrics")]
        doors += [f"--http-port={instance.http}", f"--grpc-port={instance.grpc}", f"--metrics-port={instance.metrics}"]
        server = [*binary, f"--model-repository={self._repository()}", f"--exit-timeout-secs={int(DRAIN)}", "--disable-auto-complete-config"]
        argv = launch(server, doors, self.prefix, serving.get("world_size", 1), serving.get("cuda_pool_bytes", 0))
        return argv, {**(MPI_ENVIRONMENT if serving else {}), **environment}

    def _repository(self) -> Path:
        """The bundle's repository; where GPUs are shared, a view of it in which the engine takes this instance's part of the cache's budget."""
        repository = Path(self.instance.bundle) / "repository"
        return (
            repository
            if self.instance.kv_share == 1
            else budgeted(repository, Path(tempfile.gettempdir()) / f"repository-{self.instance.index}", self.instance.kv_share)
        )

    def run(self) -> int:
        """Serve until told to stop (0) or until the server is ill (1)."""
        manifest = check_bundle(Path(self.instance.bundle), self.instance.model_id, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        os.sched_setaffinity(0, self.instance.cpus)
        command, environment = self.command(manifest.get("serving", {}))
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=_die_with_parent)  # noqa: PLW1509
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, self._stop)
        try:
            self._watch(manifest["probe"])
        except Ill as error:
            print(f"guard: {self.instance.name}: {error}; ending it", file=sys.stderr, flush=True)
        finally:
            self._end()
        return 0 if self.stopping else 1

    def _stop(self, *_: object) -> None:
        """Rank 0 drains; mpirun would give it a second before it kills."""
        self.stopping = True
        if self.process and self.process.poll() is None:
            try:
                os.kill(leader(self.process.pid), signal.SIGTERM)
            except ProcessLookupError:
                pass

    def _watch(self, probe: dict[str, Any]) -> None:
        assert self.process is not None
        started, healthy = time.monotonic(), False
        while self.process.poll() is None and not self.stopping:
            time.sleep(POLL)
            if self.stopping:
                break
            if not healthy:
                healthy = self._answers(probe, 5.0) is None
                if healthy and self.sign:
                    self.sign.touch()
                if not healthy and time.monotonic() - started > START_TIMEOUT:
                    raise Ill(f"not ready within {START_TIMEOUT:.0f} s")
                self.last_good = time.monotonic()
            else:
                self._check(probe)
        if not self.stopping:
            raise Ill(f"tritonserver ended by itself with status {self.process.returncode}")

    def _check(self, probe: dict[str, Any]) -> None:
        """Probe when something failed, or when nothing has succeeded for a while. While real requests succeed, a slow probe is just load, and
        so is a full queue.
        """
        self._check_stubs()
        before = dict(self.seen)
        self._count()
        now = time.monotonic()
        if self.seen["failure"] == before["failure"]:
            if self.seen["success"] > before["success"]:
                self.last_good = now
            if now - self.last_good < IDLE_PROBE:
                return
        trouble = self._answers(probe, PROBE_TIMEOUT)
        self._count()
        if trouble is None or trouble.startswith("503") or (trouble == "timeout" and self.seen["success"] > before["success"]):
            self.last_good = time.monotonic()
        elif not self.stopping:
            raise Ill(f"the probe failed: {trouble}")

    def _check_stubs(self) -> None:
        """Every Python stub that was there once is still there: not each model is behind the probe."""
        assert self.process is not None
        alive = parts(self.process.pid)
        if self.stubs - alive:
            raise Ill(f"a Python stub or a rank has died (process {min(self.stubs - alive)})")
        self.stubs |= alive

    def _count(self) -> None:
        try:
            text = httpx.get(f"http://{self.near}:{self.instance.metrics}/metrics", timeout=5).text
        except httpx.HTTPError:
            return
        totals = {"success": 0, "failure": 0}
        for match in COUNTERS.finditer(text):
            totals[match[1]] += int(match["count"])
        self.seen = totals

    def _answers(self, probe: dict[str, Any], seconds: float) -> str | None:
        """None if a real inference succeeds, else what happened."""
        try:
            answer = self.client.post(f"/v2/models/{probe['model']}/infer", json=probe_body(probe), timeout=seconds)
        except httpx.TimeoutException:
            return "timeout"
        except httpx.HTTPError as error:
            return repr(error)
        return None if answer.status_code == 200 else f"{answer.status_code} {answer.text[:200]}"

    def _end(self) -> None:
        """End the session, which holds the ranks and Python stubs, and remove the shared memory that this server made."""
        assert self.process is not None
        if self.stopping:
            try:
                self.process.wait(DRAIN + 5)
            except subprocess.TimeoutExpired:
                print(f"guard: {self.instance.name} did not drain in {DRAIN:.0f} s", file=sys.stderr, flush=True)
        for pid in session(self.process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        for region in glob.glob(f"/dev/shm/{self.prefix}*"):
            Path(region).unlink(missing_ok=True)


def main() -> int:
    """Exit status 0 after a stop, 1 after an illness, 2 for a bundle that must not be served."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployment", type=Path, required=True)
    parser.add_argument("--instance", type=int, default=int(os.environ.get("CONCH_INSTANCE", "0")))
    parser.add_argument("--home", type=Path, required=True, help="folder for the backend's files")
    parser.add_argument("--listen", help="address to listen on, if it is not the instance's host")
    parser.add_argument("--sign", type=Path, help="file to make when the first real inference has succeeded")
    arguments = parser.parse_args()
    try:
        instance = planned(Plan.load(arguments.deployment), arguments.instance)
        return Guard(instance, arguments.home, arguments.listen or instance.host, arguments.sign).run()
    except Refused as error:
        print(f"guard: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
