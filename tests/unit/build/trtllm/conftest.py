"""A stand-in of NVIDIA's image, and bundles built in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from build.plan import Places
from build.targets.trtllm.image import TrtLlmBuilderImage
from tests.fakes.nvidia_image import environment, make_image

from .models import CATALOG, make


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrtLlmBuilderImage:
    """A stand-in of NVIDIA's image with four GPUs, in sight."""
    root = make_image(tmp_path / "image")
    for name, value in environment(root).items():
        monkeypatch.setenv(name, value)
    return TrtLlmBuilderImage(root)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "weights", tmp_path / "engines")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """A bundle of the smallest model of each kind, to look at and to copy."""
    home = tmp_path_factory.mktemp("finished")
    places = Places(home / "weights", home / "engines")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(make_image(home / "image")).items():
            patch.setenv(name, value)
        for model_id in ("mini-whisper", "mini-gpt2", "llava-1.5-7b"):
            make(CATALOG[model_id], places, patch)
        yield places
