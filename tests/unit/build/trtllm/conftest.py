"""A stand-in of NVIDIA's image, and bundles built in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.plan import Places
from build.targets.trtllm.image import TrtLlmBuilderImage
from tests.fakes.nvidia_image import enter, make_image

from ...conftest import made_once
from .models import CATALOG, make


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrtLlmBuilderImage:
    """A stand-in of NVIDIA's image with four GPUs, in sight."""
    return TrtLlmBuilderImage(enter(make_image(tmp_path / "image"), monkeypatch))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "weights", tmp_path / "engines")


def build(home: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        enter(make_image(home / "image"), patch)
        for model_id in ("mini-whisper", "mini-gpt2", "llava-1.5-7b"):
            make(CATALOG[model_id], Places(home / "weights", home / "engines"), patch)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """A bundle of the smallest model of each kind, to look at and to copy."""
    home = made_once(tmp_path_factory, "finished", build)
    return Places(home / "weights", home / "engines")
