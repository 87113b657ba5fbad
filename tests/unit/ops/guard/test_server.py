"""The command of an instance's tritonserver."""

from __future__ import annotations

from pathlib import Path

import pytest

from conch.bundle import Serving
from conch.deployment import Instance
from ops.guard import server
from ops.guard.server import GROWTH, Doors, Server


@pytest.mark.parametrize(("gpus", "grows"), [("", False), ("0", True), ("0,1", True)])
def test_shared_memory_grows_in_large_parts_beside_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, grows: bool
) -> None:
    """On a CPU few sounds are in flight, and each process would take 256 MB for them."""
    monkeypatch.setattr(server, "find_tritonserver", lambda home: (["tritonserver"], {}))
    instance = Instance(0, "mini", "whisper", str(tmp_path), (), "", "", gpus)
    made = Server(instance, tmp_path, Doors("", "", ("--door",)), Serving(), lambda name, status: None)
    made.prefix = "p"
    command, _ = made._command()
    assert (GROWTH in command) == grows
    assert command[:2] == ["tritonserver", f"--model-repository={tmp_path}/repository"]
    assert "--door" in command
