"""Convert weights from the fetched layout into the one that a target reads.

A layout lies in weights/<model>.<layout>/, complete or absent, with a file that records what it was made
from.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from .commands import Conversion
from .download import require_space
from .plan import BuildError, BuildJob, Wanted
from .sources import Weights


def source_of(job: BuildJob, weights: Weights) -> str:
    """Return the folder of fetched weights, or the name of random ones."""
    if job.model.source.startswith("random:"):
        return job.model.source
    folder = weights.folder / job.model.folder
    return str(_checkpoint(job, folder) if job.model.layout == "checkpoint" else _named(job, folder))


def converted(
    job: BuildJob, weights: Weights, source: str, ground: Wanted, note: Callable[[str], None]
) -> str:
    """Return the weights in the layout that the target reads."""
    for n, conversion in enumerate(job.work.conversions, 1):
        made_from = {**ground, "conversions": ground["conversions"][:n]}
        source = str(_conversion(job, conversion, source, made_from, weights.bytes, note))
    return source


def _checkpoint(job: BuildJob, folder: Path) -> Path:
    """Find the folder that holds the checkpoint's parts, the given one or one inside it. If a repository
    holds several, the catalog must choose.
    """
    found = sorted(
        {path.parent.parent for path in folder.rglob("*/config.json") if path.parent.name == "decoder"}
    )
    if len(found) == 1:
        return found[0]
    names = ", ".join(str(path.relative_to(folder)) for path in found) or "none"
    raise BuildError(
        f"{job.model.id}: {folder} holds {len(found)} checkpoints with encoder/ and decoder/ ({names}); name "
        "one with `folder` in catalog.toml"
    )


def _named(job: BuildJob, folder: Path) -> Path:
    """Return the folder; a layout of one file gets that file under the name that converters expect."""
    layout = job.recipe.layouts[job.model.layout]
    name = layout.name.format(model_name=job.recipe.parameters.get("model_name") or job.model.id)
    link = folder / name
    if not name or (link.exists() and not link.is_symlink()):
        return folder
    patterns = (job.model.file,) if job.model.file else layout.files
    found = sorted(path for pattern in patterns for path in folder.glob(pattern) if not path.is_symlink())
    if len(found) != 1:
        raise BuildError(
            f"{job.model.id}: {folder} holds {len(found)} files where one is wanted as {name}; name it with "
            "`file` in catalog.toml"
        )
    wanted = found[0].relative_to(folder)
    if not link.is_symlink() or link.readlink() != wanted:
        link.unlink(missing_ok=True)
        link.symlink_to(wanted)
    return folder


def _conversion(
    job: BuildJob, conversion: Conversion, source: str, ground: Wanted, size: int, note: Callable[[str], None]
) -> Path:
    """Convert the weights into another layout and keep the latest of each kind."""
    folder = job.places.weights / f"{job.model.id}.{conversion.to}"
    key = hashlib.sha256(
        json.dumps({name: value for name, value in ground.items() if name != "gpu"}, sort_keys=True).encode()
    ).hexdigest()
    mark, partial = folder / ".key", folder.with_name(f"{folder.name}.partial")
    if mark.exists() and mark.read_text("utf-8") == key:
        return folder
    note(f"{job.model.id}: bringing its weights into the layout {conversion.to!r}")
    for leftover in (folder, partial):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    require_space(partial, size, f"{job.model.id}: its weights in the layout {conversion.to!r}")
    job.run(
        conversion.commands,
        {**job.tools, "from": source, "to": str(partial), "source": source},
        f"{job.model.id} to {conversion.to}",
    )
    (partial / ".key").write_text(key, "utf-8")
    partial.rename(folder)
    return folder
