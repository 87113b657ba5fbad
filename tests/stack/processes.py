"""The tritonservers of a stack in process mode, and the processes that belong to them."""

from __future__ import annotations

from pathlib import Path

from .conftest import Stack


def processes(*words: str) -> list[int]:
    """Those whose command lines hold all these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().decode()
        except OSError:
            continue
        if all(word in command for word in words):
            found.append(int(path.parent.name))
    return found


def tritonserver(stack: Stack, index: int) -> int:
    """The process id of an instance's tritonserver."""
    prefix = stack.instance(index)["http"].removesuffix(".http")
    found = processes("bin/tritonserver", f"--http-address={prefix}.inner.http\0")
    assert len(found) == 1, f"triton-{index}: {found}"
    return found[0]


def stub(stack: Stack, index: int, model: str) -> int:
    """The process id of a model's Python stub, the first of several; it carries its server's."""
    server = tritonserver(stack, index)
    return min(processes("triton_python_backend_stub", f"/{model}/1/model.py", f"\0{server}\0"))
