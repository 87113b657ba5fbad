"""The stack of deploy/swarm on three hosts: a manager and two workers, with the miniature Whisper."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from build.catalog import ROOT
from tests.compose.conftest import VARIABLES as COMPOSE
from tests.compose.conftest import _make_images, checked, ports_from
from tests.ports import first_port
from tests.stack.conftest import Stack, run

from .hosts import Host, hosts

STACK = "conch-test"
PORT = first_port("swarm")
WORK = ROOT / ".conch" / "swarm"
IMAGES = ["localhost/conch/server:test-openvino", "localhost/conch/gateway:test", "nginx:1.30"]
BUILDER = "localhost/conch/builder:test-openvino"
# What each host is for. triton-2 may go to the second one, too: see the test of a host that is cut off.
LABELS = (("builder", "entry", "triton-0"), ("entry", "triton-1"), ("triton-2",))
VARIABLES = {
    "MODEL_ID": "mini-whisper",
    "TARGET": "openvino",
    "INSTANCES": "3",
    "GATEWAYS": "2",
    "CONCH_VERSION": "test",
    **ports_from(PORT),
    "ENGINES_FOLDER": str(WORK / "engines"),
    "WEIGHTS_FOLDER": str(WORK / "weights"),
    "TRITON_MEMORY": "4g",
    "BUILDER_MEMORY": "8g",
}


@dataclass(frozen=True)
class Swarm:
    """The hosts; the first is the manager."""

    hosts: list[Host]

    @property
    def manager(self) -> Host:
        """Where `docker service …` is understood."""
        return self.hosts[0]

    def deploy(self) -> str:
        """`deploy/swarm/deploy`, as an operator calls it."""
        variables = {**VARIABLES, "DOCKER_HOST": self.manager.url}
        return checked(str(ROOT / "deploy" / "swarm" / "deploy"), STACK, seconds=500, **variables).stdout

    def tasks(self, service: str) -> list[tuple[str, str]]:
        """(host, state) of a service's tasks that should run, such as ("conch-host-1", "Running")."""
        shown = "{{.Node}} {{.CurrentState}}"
        asked = ("--filter", "desired-state=running", "--format", shown)
        rows = self.manager.lines("service", "ps", *asked, f"{STACK}_{service}")
        return [(row.split()[0], row.split()[1]) for row in rows]

    def log(self, service: str) -> str:
        """The output of its tasks."""
        asked = ("service", "logs", "--raw", f"{STACK}_{service}")
        done = run("docker", "--host", self.manager.url, *asked, seconds=60)
        return done.stdout + done.stderr

    def stack(self, entry: int = 0) -> Stack:
        """The listeners of an entry host."""
        at = self.hosts[entry].address
        return Stack.at(PORT, host=at)


def images() -> Path:
    """Conch's images as archives, made by this machine's own engine."""
    os.environ.update(COMPOSE)
    _make_images()
    for name, wanted in (("images.tar", IMAGES), ("builder.tar", [BUILDER])):
        subprocess.run(["docker", "save", "-o", str(WORK / name), *wanted], check=True)
    return WORK


def load(one: Host, archive: str, names: list[str]) -> None:
    """Images into a host's engine; an engine that was kept has left its swarm and has them."""
    one.docker("swarm", "leave", "--force", check=False)
    one.docker("network", "prune", "--force")
    if not one.docker("image", "inspect", *names, check=False).startswith("[\n"):
        one.docker("load", "-i", str(WORK / archive))


def folders() -> None:
    """What the hosts share, as they would by NFS."""
    for name in ("ENGINES_FOLDER", "WEIGHTS_FOLDER"):
        folder = Path(VARIABLES[name])
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, 10001, 10001)


@pytest.fixture(scope="session")
def swarm() -> Iterator[Swarm]:
    """Three engines that know each other, with images and labels."""
    WORK.mkdir(parents=True, exist_ok=True)
    if not os.environ.get("CONCH_TEST_KEEP"):
        images()
    folders()
    with hosts(3, WORK) as three:
        first, *others = three
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda one: load(one, "images.tar", IMAGES), three))
        load(first, "builder.tar", [BUILDER])
        first.docker("swarm", "init", "--advertise-addr", first.address)
        token = first.docker("swarm", "join-token", "-q", "worker").strip()
        for one in others:
            one.docker("swarm", "join", "--token", token, "--advertise-addr", one.address, first.address)
        label_all(first, three)
        yield Swarm(three)
    if not os.environ.get("CONCH_TEST_KEEP"):
        shutil.rmtree(WORK)


def node(manager: Host, one: Host) -> str:
    """The id of a host in the swarm; names are the machine's, which all of them share."""
    rows = manager.lines("node", "ls", "-q")
    shown = ("node", "inspect", "--format", "{{.ID}} {{.Status.Addr}} {{.ManagerStatus}}")
    own = one.docker("info", "--format", "{{.Swarm.NodeID}}").strip()
    assert own in rows, (own, rows, shown)
    return own


def label_all(manager: Host, three: list[Host]) -> None:
    """Each host's labels."""
    for one, names in zip(three, LABELS, strict=True):
        added = [word for name in names for word in ("--label-add", f"conch.{name}=true")]
        manager.docker("node", "update", *added, node(manager, one))
