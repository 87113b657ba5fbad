"""The processes of a stack in process mode, by what they are; a ValueError where one is not there."""

from __future__ import annotations

from pathlib import Path

import httpx

from .conftest import Stack


def _command(pid: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return [""]


def _commands() -> dict[int, list[str]]:
    return {
        int(entry.name): _command(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()
    }


def tritonserver(stack: Stack, index: int) -> int:
    """The tritonserver of an instance."""
    prefix = stack.instance(index)["http"].removesuffix(".http")
    (found,) = [
        pid
        for pid, words in _commands().items()
        if words[0].endswith("/tritonserver") and f"--http-address={prefix}.inner.http" in words
    ]
    return found


def stub(stack: Stack, index: int, model: str) -> int:
    """A model's Python stub, the first of several; it carries its server's process id."""
    own = str(tritonserver(stack, index))
    return min(
        pid
        for pid, words in _commands().items()
        if words[0].endswith("python_backend_stub") and f"/{model}/1/model.py" in words[1] and own in words
    )


def guard(stack: Stack, index: int) -> int:
    """The parent of an instance's tritonserver."""
    return int(Path(f"/proc/{tritonserver(stack, index)}/stat").read_text().rsplit(")", 1)[1].split()[1])


def gateway_socket(stack: Stack, index: int) -> str:
    """Where a gateway listens."""
    first = str(stack.instance(0)["http"])
    return first.removeprefix("unix:").replace("triton-0.http", f"gateway-{index}")


def gateway(stack: Stack, index: int) -> int:
    """One of the gateways."""
    socket = gateway_socket(stack, index)
    (found,) = [pid for pid, words in _commands().items() if "gateway" in words and socket in words]
    return found


def gateway_answers(stack: Stack, index: int) -> bool:
    """Whether one of the gateways says that it is alive."""
    transport = httpx.HTTPTransport(uds=gateway_socket(stack, index))
    with httpx.Client(transport=transport, base_url="http://gateway", timeout=5) as client:
        try:
            return client.get("/health/live").status_code == 200
        except httpx.HTTPError:
            return False


def vectors(stack: Stack) -> int:
    """The embedded vector database."""
    home = f"{stack.home}/retrieval/vectors"
    (found,) = [pid for pid, words in _commands().items() if "ops.vectors" in words and home in words]
    return found


def nginx(stack: Stack) -> tuple[int, list[int]]:
    """The master, and its workers. A worker that has just been forked still has the master's name."""
    masters = [
        pid
        for pid, words in _commands().items()
        if words[0].startswith("nginx: master") and _folder(pid) == f"{stack.home}/nginx"
    ]
    (master,) = [pid for pid in masters if _parent(pid) not in masters]
    workers = [
        pid
        for pid, words in _commands().items()
        if words[0].startswith("nginx: worker") and _parent(pid) == master
    ]
    return master, workers


def _folder(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def all_of(stack: Stack) -> set[int]:
    """Servers, stubs, guards, gateways and nginx."""
    commands, found = _commands(), set[int]()
    for i in range(4):
        found |= {tritonserver(stack, i), guard(stack, i)}
    found |= {
        pid
        for pid, words in commands.items()
        if words and words[0].endswith("python_backend_stub") and any(str(one) in words for one in found)
    }
    master, workers = nginx(stack)
    return found | {gateway(stack, 0), gateway(stack, 1), master, *workers}
