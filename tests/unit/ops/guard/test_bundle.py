"""Which bundles a guard takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conch.bundle import ENGINE, MANIFEST, EngineFacts, Manifest, Probe
from conch.contract import save
from ops.guard.supervise.bundle import BundleRefused, check_bundle
from ops.guard.supervise.fitting import fitted


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
    assert fitted(tmp_path, tmp_path / "view", 0.5, 16) == tmp_path / "repository"
    assert not (tmp_path / "view").exists()


def test_speech_facades_are_as_many_as_the_cpus_allow(tmp_path: Path) -> None:
    """A bundle has one, unless its parameters give a number."""
    model = tmp_path / "repository" / "whisper_bls"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(
        'name: "whisper_bls"\ninstance_group [ { count: 1, kind: KIND_CPU } ]\n'
    )
    (tmp_path / "repository" / "other").mkdir()
    (tmp_path / "parameters.json").write_text('{"facade_instances": 0}')
    found = fitted(tmp_path, tmp_path / "view", 1, 16)
    assert "count: 4" in (found / "whisper_bls/config.pbtxt").read_text()
    assert {path.name for path in found.iterdir()} == {"other", "whisper_bls"}
    assert (found / "whisper_bls/1").resolve() == model / "1"
    for parameters in ('{"facade_instances": 1}', "{}"):
        (tmp_path / "parameters.json").write_text(parameters)
        assert fitted(tmp_path, tmp_path / "other view", 1, 16) == tmp_path / "repository"
