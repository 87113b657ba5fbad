"""Which bundles a guard takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conch.bundle import ENGINE, MANIFEST, EngineFacts, Manifest, Probe
from conch.contract import save
from ops.guard.supervise.budget import budgeted
from ops.guard.supervise.bundle import BundleRefused, check_bundle


@pytest.mark.parametrize("fields", [{"memory": 1500}, {"positions": "448"}, None])
def test_an_engine_json_of_another_version_is_refused(tmp_path: Path, fields: dict[str, object]) -> None:
    """With the command that rebuilds it: a field that was renamed since, one of another type, no file."""
    bundle = tmp_path / "tiny.en" / "openvino"
    (bundle / ENGINE).mkdir(parents=True)
    made_from = {
        "model": "tiny.en",
        "family": "whisper",
        "target": "openvino",
        "engine": {},
        "repository": {},
    }
    rest = {"content": "0", "built": "today", "capabilities": (), "probe": Probe("whisper_bls", {})}
    save(Manifest(**made_from, **rest), bundle / MANIFEST)
    if fields is not None:
        EngineFacts("whisper", 448, 51865, 50257).save(bundle / ENGINE)
        path = bundle / ENGINE / "engine.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}), "utf-8")
    with pytest.raises(BundleRefused, match=r"another version of Conch; rebuild it with: .*tiny\.en"):
        check_bundle(bundle, "tiny.en")


def test_encoders_alone_have_no_budget(tmp_path: Path) -> None:
    """Alongside a model that generates, on the same GPU, they take their repository as it is."""
    (tmp_path / "repository" / "minilm_encoder").mkdir(parents=True)
    assert budgeted(tmp_path / "repository", tmp_path / "view", 0.5) == tmp_path / "repository"
    assert not (tmp_path / "view").exists()
