"""Hosts for tests: network namespaces of this machine on one bridge, each with a Docker engine of its own.

As root. Their engines share kernel, processors and files with this machine; what they do not share is the
network, so that one of them can be cut off.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.compose.conftest import checked
from tests.stack.conftest import until

BRIDGE, NET = "conch-hosts", "10.77.0"
ENGINE = Path("/opt/conch-docker/root/usr")  # scripts/install_docker
READY_SECONDS = 60.0


@dataclass(frozen=True)
class Host:
    """A namespace, its address, and the folder of its engine."""

    name: str
    address: str
    folder: Path

    @property
    def url(self) -> str:
        """Where the engine listens."""
        return f"unix://{self.folder}/docker.sock"

    def docker(self, *arguments: str, check: bool = True) -> str:
        """`docker …` on this host."""
        return checked("docker", "--host", self.url, *arguments, check=check).stdout

    def lines(self, *arguments: str) -> list[str]:
        """The same, line by line."""
        return self.docker(*arguments).splitlines()

    def cut_off(self) -> None:
        """Pull its cable."""
        checked("ip", "link", "set", self.name, "down")

    def reconnect(self) -> None:
        """And put it back."""
        checked("ip", "link", "set", self.name, "up")


@contextlib.contextmanager
def bridge() -> Iterator[None]:
    """One network for all hosts, and this machine on it. An engine that ran here before forwards nothing by
    itself.
    """
    forward = ("FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT")
    checked("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        checked("ip", "address", "add", f"{NET}.1/24", "dev", BRIDGE)
        checked("ip", "link", "set", BRIDGE, "up")
        checked("iptables", "-I", *forward)
        try:
            yield
        finally:
            checked("iptables", "-D", *forward)
    finally:
        checked("ip", "link", "del", BRIDGE)


@contextlib.contextmanager
def host(number: int, work: Path) -> Iterator[Host]:
    """A namespace with a running engine; both go, and the engine's files."""
    made = Host(f"conch-host-{number}", f"{NET}.{10 + number}", work / f"host-{number}")
    inside = ("ip", "-n", made.name)
    checked("ip", "netns", "add", made.name)
    try:
        checked("ip", "link", "add", made.name, "type", "veth", "peer", "name", "eth0", "netns", made.name)
        checked("ip", "link", "set", made.name, "master", BRIDGE, "up")
        checked(*inside, "link", "set", "lo", "up")
        checked(*inside, "address", "add", f"{made.address}/24", "dev", "eth0")
        checked(*inside, "link", "set", "eth0", "up")
        checked(*inside, "route", "add", "default", "via", f"{NET}.1")
        with engine(made):
            yield made
    finally:
        checked("ip", "netns", "del", made.name)


@contextlib.contextmanager
def engine(place: Host) -> Iterator[None]:
    """A Docker engine in the namespace. Not by `ip netns exec`, which hides the mounts of cgroups."""
    place.folder.mkdir(parents=True, exist_ok=True)
    command = ["nsenter", f"--net=/run/netns/{place.name}", "dockerd", "--host", place.url]
    for name in ("data-root", "exec-root"):
        command += [f"--{name}", str(place.folder / name)]
    command += ["--pidfile", str(place.folder / "pid"), "--log-level", "warn"]
    path = f"{ENGINE}/sbin:{ENGINE}/bin:{os.environ['PATH']}"
    with (place.folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, "PATH": path}, stdout=log, stderr=log)
    try:

        def ready() -> bool:
            assert process.poll() is None, (place.folder / "log").read_text("utf-8", "replace")[-2000:]
            return bool(place.docker("info", "--format", "{{.ServerVersion}}", check=False).strip())

        until("the engine starts", ready, READY_SECONDS)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        _remove(place.folder)


def _remove(folder: Path) -> None:
    """An engine's files, with what it has left mounted in them."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
        checked("umount", "-l", mount, check=False)
    if not os.environ.get("CONCH_TEST_KEEP"):
        shutil.rmtree(folder)


@contextlib.contextmanager
def hosts(count: int, work: Path) -> Iterator[list[Host]]:
    """So many, each with an engine."""
    with contextlib.ExitStack() as running:
        running.enter_context(bridge())
        yield [running.enter_context(host(number, work)) for number in range(1, count + 1)]
