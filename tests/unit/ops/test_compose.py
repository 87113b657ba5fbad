"""Driving Compose from a shell."""

from __future__ import annotations

import subprocess
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


@pytest.mark.parametrize(
    ("target", "calls"), [("openvino", ["build", "up"]), ("torch", ["build", "up"]), ("other", [])]
)
def test_only_targets_with_an_image_are_built(
    monkeypatch: pytest.MonkeyPatch, target: str, calls: list[str]
) -> None:
    """The others are told how they run, before anything is built."""
    monkeypatch.setattr(compose, "settings", lambda: {"TARGET": target})
    monkeypatch.setattr(compose.hardware, "obstacles", lambda _: [])
    docker = Docker()
    if calls:
        compose.up(docker)  # type: ignore[arg-type]
    else:
        with pytest.raises(ValueError, match="no image; run it without Docker: make serve TARGET=other"):
            compose.up(docker)  # type: ignore[arg-type]
    assert docker.called == calls


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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = {"TARGET": "trtllm", "MODEL_ID": "mini-clip"}
    monkeypatch.setattr(compose, "settings", lambda: values)
    monkeypatch.setattr(compose.hardware, "obstacles", lambda _: [])
    docker = Docker()
    with pytest.raises(ValueError, match="set TRITON_0_TARGET=tensorrt"):
        compose.up(docker)  # type: ignore[arg-type]
    assert docker.called == []
    values["TRITON_0_TARGET"] = "tensorrt"
    compose.up(docker)  # type: ignore[arg-type]
    assert docker.called == ["build", "up"]


@pytest.mark.parametrize("target", ["torch", "trtllm", "tensorrt"])
def test_a_driver_that_is_too_old_is_told_before_images_are_fetched(
    monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setattr(compose, "settings", lambda: {"TARGET": target})
    monkeypatch.setattr(compose.hardware, "driver", lambda: "560.28.03")
    monkeypatch.setattr(compose.hardware, "toolkit", lambda: "1.17.5")
    docker = Docker()
    with pytest.raises(ValueError, match=r"the driver is 560\.28\.03.*needs 5\d\d"):
        compose.up(docker)  # type: ignore[arg-type]
    assert docker.called == []


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
