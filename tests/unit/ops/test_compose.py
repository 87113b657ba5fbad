"""Driving Compose from a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import yaml

from build import targets
from build.catalog import ROOT
from ops import compose
from ops.hardware import Line


class Docker:
    """What `up` asks of Docker."""

    def __init__(self) -> None:
        self.compose, self.called = self, list[str]()

    def build(self) -> None:
        self.called.append("build")

    def up(self, **_: Any) -> None:
        self.called.append("up")


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """What `make up` asks of Docker with these settings; `says`: why it asks nothing."""
    monkeypatch.setattr(compose.hardware, "driver", lambda: "580.65.06")
    monkeypatch.setattr(compose.hardware, "toolkit", lambda: "1.17.5")

    def run(says: str = "", **values: str) -> list[str]:
        monkeypatch.setattr(compose, "settings", lambda: values)
        docker: Any = Docker()
        with pytest.raises(ValueError, match=says) if says else nullcontext():
            compose.up(docker)
        return docker.called

    return run


def test_only_targets_with_an_image_are_built(up: Callable[..., list[str]]) -> None:
    """The others are told how they run, before anything is built."""
    for target in ("openvino", "torch"):
        assert up(TARGET=target) == ["build", "up"]
    assert up("no image; run it without Docker: make serve TARGET=other", TARGET="other") == []


ASKED = [
    Line("TARGET", "trtllm", ""),
    Line("INSTANCES", "2", ""),
    Line("COMPOSE_PROFILES", "instances-2", ""),
]


def test_a_proposal_names_the_images_of_encoders() -> None:
    """Of those instances that serve them; without encoders it stays as it is."""
    made = compose.with_images(ASKED, {"MODEL_ID": "base,mini-clip"})
    assert {line.name: line.value for line in made} == {
        "TARGET": "trtllm",
        "INSTANCES": "2",
        "COMPOSE_PROFILES": "instances-2,tensorrt",
        "TRITON_1_TARGET": "tensorrt",
    }
    for values in ({}, {"MODEL_ID": "base"}, {"MODEL_ID": "mini-clip", "TARGET": "openvino"}):
        assert compose.with_images(ASKED, values) == ASKED


def test_an_instance_with_the_wrong_image_is_refused_before_images_are_fetched(
    up: Callable[..., list[str]],
) -> None:
    given = {"TARGET": "trtllm", "MODEL_ID": "mini-clip"}
    assert up("set TRITON_0_TARGET=tensorrt", **given) == []
    assert up(**given, TRITON_0_TARGET="tensorrt") == ["build", "up"]


@pytest.mark.parametrize("target", ["torch", "trtllm", "tensorrt"])
def test_a_driver_that_is_too_old_is_told_before_images_are_fetched(
    up: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(compose.hardware, "driver", lambda: "560.28.03")
    assert up(r"the driver is 560\.28\.03.*needs 5\d\d", TARGET=target) == []


def test_defaults_of_compose_and_make_are_the_registrys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither file can import them."""
    shared = yaml.safe_load((ROOT / "compose.yaml").read_text("utf-8"))["x-deployment"]
    assert shared["TARGET"] == f"${{TARGET:-{targets.DEFAULT_IN_DOCKER}}}"
    monkeypatch.delenv("TARGET", raising=False)
    command = ["make", "-n", "-o", ".venv/build/.done", "engines"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"--target {targets.DEFAULT_WITHOUT_DOCKER}" in shown


def test_other_profiles_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make up` adds the profile of INSTANCES to those that a user names, such as gpu."""
    given = {"COMPOSE_PROFILES": "instances-3,gpu", "INSTANCES": "2", "TARGET": "torch"}
    monkeypatch.setattr(compose, "settings", lambda: given)
    monkeypatch.setenv("COMPOSE_PROFILES", "")  # which it sets, for the builder
    assert compose.client().client_config.compose_profiles == ["instances-2", "gpu"]
