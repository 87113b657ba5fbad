"""What makes a bundle stale."""

from __future__ import annotations

from pathlib import Path

import pytest

from build.catalog import ROOT, load_catalog
from build.plan import RENDER, Places, plan_job, tree_hash

CODE = "def twice(x):\n    return 2 * x  # why\n"


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ("# a comment\n\ndef twice(x):\n    return 2 * x\n", True),
        ("def twice(x):\n        return 2 * x\n", True),
        ("def twice(x):\n    return 3 * x  # why\n", False),
        ("def twice(y):\n    return 2 * y  # why\n", False),
    ],
)
def test_comments_make_nothing_stale(tmp_path: Path, changed: str, same: bool) -> None:
    file = tmp_path / "a.py"
    file.write_text(CODE)
    before = tree_hash(tmp_path)
    file.write_text(changed)
    assert (tree_hash(tmp_path) == before) is same


def test_other_files_and_names_count(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("x = 1  # why\n")
    before = tree_hash(tmp_path)
    (tmp_path / "a.toml").write_text("x = 1\n")
    other = tree_hash(tmp_path)
    (tmp_path / "a.toml").rename(tmp_path / "b.toml")
    assert len({before, other, tree_hash(tmp_path)}) == 3


def test_a_bundle_depends_on_what_it_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the Triton models of its family, and on what writes them: a change of another file of build/, or of
    another family's model, leaves it as it is.
    """
    assert all((ROOT / path).exists() for path in RENDER)
    hashed: list[str] = []
    monkeypatch.setattr("build.plan.tree_hash", lambda *places: hashed.extend(map(str, places)) or "0")
    plan_job(load_catalog()["mini-t5"], "openvino", Places(Path("/w"), Path("/e"))).wanted()
    names = {path.removeprefix(f"{ROOT}/") for path in hashed}
    assert {"conch", "serving", "model_repos/models/tensorrt_llm_bls", "build/targets/openvino"} <= names
    assert not {"build", "model_repos", "model_repos/models/whisper_bls"} & names
