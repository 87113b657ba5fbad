"""Driving Compose from a shell."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml

from build import targets
from build.catalog import ROOT
from ops import compose


class Docker:
    """What `up` asks of Docker."""

    def __init__(self) -> None:
        self.compose, self.called = self, list[str]()

    def build(self) -> None:
        self.called.append("build")

    def up(self, **_: Any) -> None:
        self.called.append("up")


@pytest.mark.parametrize(("target", "calls"), [("openvino", ["build", "up"]), ("torch", [])])
def test_only_targets_with_an_image_are_built(
    monkeypatch: pytest.MonkeyPatch, target: str, calls: list[str]
) -> None:
    """The others are told how they run, before anything is built."""
    monkeypatch.setattr(compose, "settings", lambda: {"TARGET": target})
    docker = Docker()
    if calls:
        compose.up(docker)  # type: ignore[arg-type]
    else:
        with pytest.raises(ValueError, match="no image; run it without Docker: make serve TARGET=torch"):
            compose.up(docker)  # type: ignore[arg-type]
    assert docker.called == calls


def test_defaults_of_compose_and_make_are_the_registrys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither file can import them."""
    shared = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["x-deployment"]
    assert shared["TARGET"] == f"${{TARGET:-{targets.DEFAULT_IN_DOCKER}}}"
    monkeypatch.delenv("TARGET", raising=False)
    command = ["make", "-n", "-o", ".venv/build/.done", "engines"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"--target {targets.DEFAULT_WITHOUT_DOCKER}" in shown
