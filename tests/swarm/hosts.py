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
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BRIDGE, NET = "conch-hosts", "10.77.0"
ENGINE = Path("/opt/conch-docker/root/usr")  # scripts/install_docker
READY_SECONDS = 60.0


def run(*command: str, check: bool = True, seconds: float = 300, **variables: str) -> str:
    """What a command prints.

    Raises:
        AssertionError: it failed; with what it said.
    """
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0 or not check, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


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

    def docker(self, *arguments: str, check: bool = True, seconds: float = 300) -> str:
        """`docker …` on this host."""
        return run("docker", "--host", self.url, *arguments, check=check, seconds=seconds)

    def lines(self, *arguments: str) -> list[str]:
        """The same, line by line."""
        return self.docker(*arguments).splitlines()

    def cut_off(self) -> None:
        """Pull its cable."""
        run("ip", "link", "set", self.name, "down")

    def reconnect(self) -> None:
        """And put it back."""
        run("ip", "link", "set", self.name, "up")


@contextlib.contextmanager
def bridge() -> Iterator[None]:
    """One network for all hosts, and this machine on it. An engine that ran here before forwards nothing by
    itself.
    """
    forward = ("FORWARD", "-i", BRIDGE, "-o", BRIDGE, "-j", "ACCEPT")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        run("ip", "address", "add", f"{NET}.1/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        run("iptables", "-I", *forward)
        try:
            yield
        finally:
            run("iptables", "-D", *forward)
    finally:
        run("ip", "link", "del", BRIDGE)


@contextlib.contextmanager
def host(number: int, work: Path) -> Iterator[Host]:
    """A namespace with a running engine; both go, and the engine's files."""
    made = Host(f"conch-host-{number}", f"{NET}.{10 + number}", work / f"host-{number}")
    inside = ("ip", "-n", made.name)
    run("ip", "netns", "add", made.name)
    try:
        run("ip", "link", "add", made.name, "type", "veth", "peer", "name", "eth0", "netns", made.name)
        run("ip", "link", "set", made.name, "master", BRIDGE, "up")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "address", "add", f"{made.address}/24", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "route", "add", "default", "via", f"{NET}.1")
        with engine(made):
            yield made
    finally:
        run("ip", "netns", "del", made.name)


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
        deadline = time.monotonic() + READY_SECONDS
        while not place.docker("info", "--format", "{{.ServerVersion}}", check=False).strip():
            assert process.poll() is None, (place.folder / "log").read_text("utf-8", "replace")[-2000:]
            assert time.monotonic() < deadline, "the engine does not start"
            time.sleep(0.2)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        _remove(place.folder)


def _remove(folder: Path) -> None:
    """An engine's files, with what it has left mounted in them."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
        run("umount", "-l", mount, check=False)
    if not os.environ.get("CONCH_TEST_KEEP"):
        shutil.rmtree(folder)


@contextlib.contextmanager
def hosts(count: int, work: Path) -> Iterator[list[Host]]:
    """So many, each with an engine."""
    with contextlib.ExitStack() as running:
        running.enter_context(bridge())
        yield [running.enter_context(host(number, work)) for number in range(1, count + 1)]
