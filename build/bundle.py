"""Build bundles in the engine cache, where engines/<model>/<target>/ is complete or absent.

A bundle is built in `<target>.partial` and renamed. Its manifest.json is written last; a build that wants the
same manifest does nothing.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from conch.bundle import ENGINE, EngineFacts, Manifest, Probe
from conch.contract import Malformed
from conch.toolchain import Identity

from .catalog import Model
from .conversion import converted, source_of
from .download import FetchError, require_space
from .plan import BuildError, BuildJob, Places, Wanted, plan_job, read_manifest
from .repository import render
from .sources import Weights, fetch

WAITS = 6 * 3600.0  # seconds
NOWHERE = Identity("", {}, {}, {})


@dataclass(frozen=True)
class Built:
    """One row of the final table."""

    model_id: str
    target: str
    bytes: int
    seconds: float
    unchanged: bool


def build(
    model: Model,
    target: str,
    places: Places,
    note: Callable[[str], None] = print,
    environment: Mapping[str, str] | None = None,
    devices: str = "",
) -> Built:
    """Build one bundle unless it exists, on the GPUs of `devices` (see Target.build_devices).

    Raises:
        BuildError: a step failed.
        FetchError, CatalogError, ToolchainError, TemplateError, Unfit: see `fetch`, `plan_job`, `render` and
        `Target.preflight`.
    """
    started = time.monotonic()
    jobs = [plan_job(source, target, places, environment, devices) for source in (model, *model.mirrors)]
    bundle = jobs[0].bundle
    bundle.parent.mkdir(parents=True, exist_ok=True)
    with _alone(model, bundle, note):
        have = _made_from(bundle)
        unchanged = any(have == job.wanted() for job in jobs)
        if not unchanged:
            _build(*fetched(jobs, note), note)
    return Built(model.id, target, _size(bundle), time.monotonic() - started, unchanged)


def _alone(model: Model, bundle: Path, note: Callable[[str], None]) -> AbstractContextManager[object]:
    """Wait for another builder of the same bundle, which makes what this one wants."""
    lock = FileLock(f"{bundle}.lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        note(f"{model.id}: another builder is making {bundle}; waiting for it")
        return lock.acquire(timeout=WAITS)


def _size(bundle: Path) -> int:
    """Return the size in bytes; a file with two names counts once."""
    files = [path.stat() for path in bundle.rglob("*") if path.is_file()]
    return sum({(file.st_dev, file.st_ino): file.st_size for file in files}.values())


def made_elsewhere(
    model: Model, target: str, places: Places, environment: Mapping[str, str] | None = None
) -> Built:
    """Return the bundle of a model whose tools are not here, if it is what they would build from today's
    recipe.

    Raises:
        BuildError: it is not; the message says where it is made.
        CatalogError: see `plan_job`.
    """
    started, bundle = time.monotonic(), places.bundle(model.id, target)
    have = _made_from(bundle)
    stamp = {name: have["engine"][name] for name in Identity.__dataclass_fields__} if have else {}
    jobs = [
        plan_job(source, target, places, environment, toolchain=Identity(**stamp) if stamp else NOWHERE)
        for source in (model, *model.mirrors)
    ]
    if not any(have == job.wanted() for job in jobs):
        raise BuildError(
            f"{model.id}: {bundle} is missing or out of date, and what makes it is in the image of "
            f"TARGET={target}; add {target} to COMPOSE_PROFILES, and docker compose up -d makes it first"
        )
    return Built(model.id, target, _size(bundle), time.monotonic() - started, unchanged=True)


def fetched(jobs: Sequence[BuildJob], note: Callable[[str], None]) -> tuple[BuildJob, Weights]:
    """Return the first model whose source delivers the right bytes, and its weights.

    Raises:
        FetchError: none does; each reason is in it.
    """
    failed = []
    for job in jobs:
        note(f"{job.model.id}: fetching {job.model.source}")
        try:
            files, types = job.recipe.files(job.model), job.recipe.model_types
            weights = fetch(job.model, files, job.places.weights, types)
        except FetchError as error:
            failed.append(str(error))
            if job is not jobs[-1]:
                mirror = jobs[jobs.index(job) + 1].model.source
                note(f"{job.model.id}: {error}")
                note(f"{job.model.id}: taking the mirror {mirror}")
        else:
            return job, weights
    raise FetchError("; ".join(failed))


def _made_from(bundle: Path) -> Wanted:
    """Return what an existing bundle was made from; empty if there is none that this version can read."""
    try:
        manifest = read_manifest(bundle)
        if manifest:
            EngineFacts.load(bundle / ENGINE)
    except Malformed:
        manifest = None
    return manifest.wanted if manifest else {}


def _build(job: BuildJob, weights: Weights, note: Callable[[str], None]) -> None:
    bundle, wanted = job.bundle, job.wanted()
    partial, old = bundle.with_suffix(".partial"), bundle.with_suffix(".old")
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    (partial / "engine").mkdir(parents=True)
    _make_engine(job, weights, wanted["engine"], partial, note)
    render(job.recipe, partial, bundle)
    try:
        serving = job.target.serving(job.recipe, partial / "engine")
    except BuildError as error:
        raise BuildError(f"{job.model.id}: {error}") from None
    manifest = Manifest(
        **wanted,
        content=weights.sha256,
        built=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        capabilities=job.recipe.capabilities,
        probe=Probe(**job.recipe.probe),
        serving=serving,
    )
    manifest.save(partial)
    if bundle.exists():
        bundle.rename(old)
    partial.rename(bundle)
    shutil.rmtree(old, ignore_errors=True)


def _make_engine(
    job: BuildJob, weights: Weights, wanted: Wanted, partial: Path, note: Callable[[str], None]
) -> None:
    """Link what an existing bundle has in common with the wanted one, and build the rest."""
    have = _made_from(job.bundle).get("engine", {})
    job.log.write_text("", "utf-8")
    names = {
        **job.tools,
        "source": source_of(job, weights),
        "engine": str(partial / "engine"),
        "timing": str(job.bundle.parent / "timing.cache"),
    }
    if have == wanted:
        _link(job.bundle / "engine", partial / "engine")
    else:
        _make_parts(job, weights, (have, wanted), names, note)
    job.run(job.work.finish, names, f"{job.model.id}: facts")


def _make_parts(
    job: BuildJob,
    weights: Weights,
    manifests: tuple[Wanted, Wanted],
    names: dict[str, str],
    note: Callable[[str], None],
) -> None:
    (have, wanted), engine = manifests, Path(names["engine"])
    job.target.preflight(job.recipe, job.work, weights.numbers, job.devices)
    ground = {key: value for key, value in wanted.items() if key != "commands"}
    same_ground = ground == {key: value for key, value in have.items() if key != "commands"}
    kept = [
        command
        for command in job.work.commands
        if same_ground and command.makes and list(command.argv) in have["commands"]
    ]
    for command in kept:
        _link(job.bundle / "engine" / command.makes, engine / command.makes)
    require_space(engine, 2 * weights.bytes, f"{job.model.id}: building its engine")
    names["weights"] = converted(job, weights, names["source"], ground, note)
    job.run(
        [command for command in job.work.commands if command not in kept],
        names,
        f"{job.model.id} for {job.recipe.target}",
    )


def _link(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=os.link, dirs_exist_ok=True)
