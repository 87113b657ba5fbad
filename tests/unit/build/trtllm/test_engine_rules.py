"""Engine folders that the backend would serve wrongly are refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from build.plan import Places
from build.recipes import load_recipe
from build.targets.trtllm.engine_rules import findings
from conch.bundle import PicturePrompt

from .models import CATALOG

pytestmark = pytest.mark.long


def drop(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def rows_of_a_picture(folder: Path) -> None:
    """As a checkpoint for pictures of 448 pixels has them."""
    replace(PicturePrompt.load(folder), rows=1024).save(folder)


@pytest.mark.parametrize(
    ("model_id", "change", "sentence"),
    [
        ("mini-whisper", drop("decoder/rank0.engine"), "decoder lacks rank0.engine of 1.*same TP_SIZE"),
        ("mini-whisper", drop("encoder/rank0.engine"), "encoder lacks rank0.engine"),
        ("mini-gpt2", drop("decoder/rank0.engine"), "decoder lacks rank0.engine"),
        (
            "llava-1.5-7b",
            rows_of_a_picture,
            "1024 rows of a picture, visual_features is 576; set visual_features = 1024 in catalog.toml",
        ),
        ("llava-1.5-7b", drop("visual/model.engine"), "engine/visual/model.engine is missing"),
    ],
)
def test_changes_are_refused(
    model_id: str, change: Callable[[Path], None], sentence: str, finished: Places, tmp_path: Path
) -> None:
    """Each fault that the backend would hide is one sentence with the remedy."""
    recipe, engine = load_recipe(CATALOG[model_id], "trtllm"), tmp_path / "engine"
    shutil.copytree(finished.bundle(model_id, "trtllm") / "engine", engine)
    assert [*findings(recipe, engine)] == []
    change(engine)
    (found,) = findings(recipe, engine)
    assert re.search(sentence, found), found
