"""The picture encoder in TensorRT, against stand-ins of the image's packages that insist on addresses, shapes
and dtypes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conch.bundle import EngineFacts, PicturePrompt

FAKES, ENCODER = "tests.fakes.tensorrt_image", "serving.engine.trtllm.encoder"
SIZE, ROWS, WIDTH, MOST = 6, 4, 3, 8
PLAN = {"input": [-1, 3, SIZE, SIZE], "encoder_output": [-1, ROWS, WIDTH], "max_batch_size": MOST}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The pictures of each run; the stand-ins are in place, and a picture's rows hold its first number. The
    encoder is imported with them, and forgotten with them.
    """
    found: list[int] = []

    def rows(_: Any, pixels: Any) -> Any:
        found.append(len(pixels))
        return np.broadcast_to(pixels[:, 0, :1, :1], (len(pixels), ROWS, WIDTH))

    for name in ("tensorrt", "torch"):
        monkeypatch.setitem(sys.modules, name, import_module(f"{FAKES}.{name}"))
    monkeypatch.setattr(f"{FAKES}.tensorrt.Context._rows", rows)
    monkeypatch.delitem(sys.modules, ENCODER, raising=False)
    yield found
    sys.modules.pop(ENCODER, None)


def loaded(folder: Path, plan: bytes) -> Any:
    """The encoder of a bundle with this plan."""
    (folder / "visual").mkdir()
    (folder / "visual/model.engine").write_bytes(plan)
    EngineFacts("llava", 64, 100, 1, prompt_width=WIDTH, prompt_rows=ROWS).save(folder)
    PicturePrompt(ROWS, "<image>", 99, "<image>{text}").save(folder)
    return import_module(ENCODER).TensorRtEncoder(folder)


def test_as_many_at_once_as_the_plan_takes(runs: list[int], tmp_path: Path) -> None:
    """Nineteen pictures in three runs, each with its own rows."""
    pixels = np.zeros((19, 3, SIZE, SIZE), np.float32)
    pixels[:] = np.arange(19)[:, None, None, None]
    found = loaded(tmp_path, json.dumps(PLAN).encode()).encode(pixels=pixels)
    assert runs == [8, 8, 3]
    assert found.dtype == np.float32
    assert found.shape == (19, ROWS, WIDTH)
    assert (found == np.arange(19)[:, None, None]).all()


def test_pictures_of_another_size(runs: list[int], tmp_path: Path) -> None:
    encoder = loaded(tmp_path, json.dumps(PLAN).encode())
    with pytest.raises(RuntimeError, match=r"does not take pictures of shape \[1, 3, 7, 7\]"):
        encoder.encode(pixels=np.zeros((1, 3, 7, 7), np.float32))
    assert runs == []


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (b"\0", r"cannot be read by TensorRT 10.*build the bundle again"),
        (
            json.dumps({**PLAN, "encoder_output": [-1, ROWS + 1, WIDTH]}).encode(),
            r"must make encoder_output \[4, 3\]",
        ),
    ],
)
def test_a_plan_that_does_not_fit(runs: list[int], tmp_path: Path, plan: bytes, says: str) -> None:
    """Another release's, or another model's: it is not served."""
    with pytest.raises(RuntimeError, match=says):
        loaded(tmp_path, plan)
