"""The stack of compose.yaml on a real Docker engine, CPU set, two instances, under a project name and ports
of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import httpx
import pytest
from docker.models.containers import Container

from build.catalog import ROOT
from tests.ports import first_port
from tests.stack.conftest import Stack, client, recordings, run, until

__all__ = ["client", "recordings"]  # fixtures of the stack tests

HERE = Path(__file__).parent
PROJECT = "conch-test"
PORT = first_port("compose")
FILES = [ROOT / "compose.yaml", HERE / "bare.yaml"]
WHEELS = ROOT / ".conch" / "wheels"


def ports_from(first: int) -> dict[str, str]:
    """The published ports of a stack."""
    return {
        "PORT": str(first),
        "KSERVE_HTTP_PORT": str(first - 80),
        "KSERVE_GRPC_PORT": str(first - 79),
    }


MINUTES = 25  # a test that is the first to need an image has it built


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of containers time to build images."""
    for item in items:
        if item.path.is_relative_to(HERE) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(60 * MINUTES))


VARIABLES = {
    "COMPOSE_PROJECT_NAME": PROJECT,
    "COMPOSE_FILE": os.pathsep.join(map(str, FILES)),
    "COMPOSE_PROFILES": "instances-2",
    "COMPOSE_DISABLE_ENV_FILE": "1",
    "INSTANCES": "2",
    "MODEL_ID": "mini-whisper",
    "TARGET": "openvino",
    "CONCH_VERSION": "test",
    "TEST_WHEELS": str(WHEELS),
    "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    **ports_from(PORT),
    "TRITON_MEMORY": "4g",
    "BUILDER_MEMORY": "8g",
}


def checked(
    *command: str, seconds: float = 300, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command, which must succeed unless `check` is False."""
    done = run(*command, env={**os.environ, **variables}, seconds=seconds)
    assert done.returncode == 0 or not check, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done


def compose(
    *arguments: str, seconds: float = 600, check: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Plain `docker compose`, as a user types it."""
    return checked("docker", "compose", *arguments, seconds=seconds, check=check, **variables)


def conch(module: str, *arguments: str, seconds: float = 600, **variables: str) -> str:
    """`python -m ops.compose …` or `ops.airgap …`, what the Makefile runs."""
    return checked(sys.executable, "-m", f"ops.{module}", *arguments, seconds=seconds, **variables).stdout


def build_base(tag: str, dockerfile: str, *arguments: str) -> str:
    """A stand-in of one of NVIDIA's images, made with what Conch's CPU image carries."""
    command = ["docker", "build", "-q", "-t", tag, "-f", str(HERE / dockerfile)]
    for image in ("server", "builder"):
        made = f"localhost/conch/{image}:{VARIABLES['CONCH_VERSION']}-openvino"
        command.append(f"--build-arg={image.upper()}={made}")
    subprocess.run([*command, *arguments, str(HERE)], check=True, env={**os.environ, "DOCKER_BUILDKIT": "1"})
    return tag


def project(name: str, *files: Path, **more: str) -> dict[str, str]:
    """What sets up a stack under a name and ports of its own, of further files."""
    return {
        "COMPOSE_PROJECT_NAME": f"{PROJECT}-{name}",
        "COMPOSE_FILE": os.pathsep.join(map(str, [*FILES, *files])),
        **ports_from(first_port(f"compose-{name}")),
        **more,
    }


def gpu_variables(target: str, **more: str) -> dict[str, str]:
    """Of a stack of a GPU's target, without the devices, which no container here has."""
    return project(target, HERE / "no_gpu.yaml", TARGET=target, **more)


@contextmanager
def started(variables: dict[str, str], base: str = "") -> Iterator[Stack]:
    """A stack as `docker compose` starts it, gone with its volumes afterwards. `base`: the image from which
    those of its target are built before.
    """
    try:
        if base:
            built = {**variables, f"{variables['TARGET'].upper()}_BASE": base}
            compose("build", "-q", "triton-0", "builder", seconds=900, **built)
        compose("up", "--wait", "--no-build", **variables)
        yield Stack.at(int(variables["PORT"]))
    finally:
        compose("down", "-v", "-t", "5", **variables)  # nothing is kept


@dataclass(frozen=True)
class Engine:
    """The Docker engine's own view of the project."""

    client: docker.DockerClient

    def container(self, service: str, project: str = PROJECT) -> Container:
        """The newest container of a service, running or not."""
        labels = [
            f"com.docker.compose.project={project}",
            f"com.docker.compose.service={service}",
            "com.docker.compose.oneoff=False",
        ]
        found = self.client.containers.list(all=True, filters={"label": labels})
        assert found, f"no container of {service}"
        return max(found, key=lambda container: str(container.attrs["Created"]))


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """The docker SDK's client."""
    client = docker.from_env(timeout=120)
    yield Engine(client)
    client.close()


@pytest.fixture(scope="session", autouse=True)
def variables(engine: Engine) -> Iterator[None]:
    """What every `docker compose` of this session sees; set up first, so at the end it sees what the session
    has left: nothing.
    """
    os.environ.update(VARIABLES)
    yield
    mine = {"label": "com.docker.compose.project"}
    left = [
        *engine.client.containers.list(all=True, filters=mine),
        *engine.client.volumes.list(filters=mine),
        *engine.client.networks.list(filters=mine),
    ]
    assert not [thing.name for thing in left if thing.name.startswith(PROJECT)]


@pytest.fixture(scope="session")
def docker_compose_file() -> list[str]:
    return [str(path) for path in FILES]


@pytest.fixture(scope="session")
def docker_compose_project_name() -> str:
    return PROJECT


def _make_images() -> None:
    """Stand-ins, then Conch's images; next to each other, as newer Compose builds them (2.26, Debian's,
    builds in the order of dependencies).
    """
    with ThreadPoolExecutor() as pool:
        stand_ins = pool.submit(
            subprocess.run, [str(HERE / "base_images"), str(ROOT / ".conch" / "rootfs")], check=True
        )
        if not any(WHEELS.glob("torch-*")):
            # Where the package index has a CPU build of torch, the image gets the same one.
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
            subprocess.run([*pip, "-d", str(WHEELS), "torch==2.13.0"], check=True)
        stand_ins.result()
        groups = (["builder"], ["triton-0", "triton-1"], ["gateway"])
        list(pool.map(lambda services: compose("build", "-q", *services), groups))


@pytest.fixture(scope="session")
def docker_setup(variables: None) -> list[str]:
    """pytest-docker's default with time for building; a leftover of a session that was killed is removed
    first.
    """
    _make_images()
    return ["down -v --remove-orphans", "up --wait --no-build"]


@pytest.fixture(scope="session")
def nvidia_base(docker_services: object) -> str:
    """NVIDIA's plain image."""
    return build_base("localhost/conch/nvidia-stand-in:test", "nvidia_base.Dockerfile")


@pytest.fixture(scope="session")
def docker_cleanup() -> list[str]:
    return ["down -v --remove-orphans"]


@pytest.fixture(scope="session")
def stack(docker_services: object) -> Stack:
    return Stack.at(PORT)


def wait_ready(stack: Stack, seconds: float) -> None:
    """Return when the public listener says that everything answers."""
    url = f"{stack.url}/health/ready"
    until(
        lambda: compose("ps", "-a").stdout,
        lambda: httpx.get(url, timeout=30).status_code == 200,
        seconds,
        httpx.HTTPError,
    )
