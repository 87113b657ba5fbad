"""`python -m build engines` builds the bundles of MODEL_ID for TARGET. `check` only compares the steps with
the image they run in. Models that another target builds (with TARGET=trtllm, encoders) are built where its
tools are; elsewhere their bundles must exist already.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from conch import proxies
from conch.toolchain import ToolchainError

from . import targets
from .bundle import Built, build, made_elsewhere
from .catalog import CatalogError, Model, known, load_catalog, select, target_of
from .download import FetchError
from .plan import BuildError, Places, plan_job
from .targets import TemplateError, Unfit

EXPORT_BYTES = 6 << 30  # memory that has to be free for each export that runs
CGROUP = Path("/sys/fs/cgroup")


def table(rows: list[Built]) -> str:
    """Print what was built, one line each."""
    lines = [f"{'id':24} {'target':9} {'MB':>8} {'seconds':>8}  state"]
    lines += [
        f"{row.model_id:24} {row.target:9} {row.bytes / 1e6:8.1f} {row.seconds:8.1f}  "
        f"{'unchanged' if row.unchanged else 'built'}"
        for row in rows
    ]
    return "\n".join(lines)


def check_all(models: Sequence[Model], target: str, places: Places) -> str:
    """Check each model's steps and print a line for each that fit.

    Raises:
        Unfit: one that does not.
    """
    jobs = [
        plan_job(model, target_of(model, target), places, os.environ, devices)
        for model, devices in zip(models, known(target).build_devices(models, os.environ), strict=True)
    ]
    for job in jobs:
        job.target.preflight(job.recipe, job.work, devices=job.devices)
    return "\n".join(
        f"{job.model.id}: its {len(job.work.all())} steps fit the toolchain {job.toolchain.toolchain}"
        for job in jobs
    )


def build_all(models: Sequence[Model], target: str, places: Places, only: str = "") -> list[Built]:
    """Build the bundles of all models, or of those that `only` builds. Bundles of a target whose tools are
    not here must exist.

    Raises:
        BuildError, CatalogError, FetchError, ToolchainError, TemplateError, Unfit: see `build` and
        `made_elsewhere`.
    """
    own = known(target).build_devices(models, os.environ)

    def made(number: int, model: Model, devices: str) -> Built:
        maker = target_of(model, target)

        def note(what: str) -> None:
            print(f"[{number}/{len(models)}] {what}", flush=True)

        try:
            return build(model, maker, places, note, os.environ, devices)
        except ToolchainError:
            if maker == target or only:
                raise
            return made_elsewhere(model, maker, places, os.environ)

    wanted = [
        (number, model, devices)
        for number, (model, devices) in enumerate(zip(models, own, strict=True), 1)
        if only in ("", target_of(model, target))
    ]
    workers = 1 if any(own) else side_by_side(len(wanted))
    if workers == 1:
        return [made(*row) for row in wanted]
    pool = ThreadPoolExecutor(workers)
    futures = [pool.submit(made, *row) for row in wanted]
    wait(futures, return_when=FIRST_EXCEPTION)
    pool.shutdown(wait=False, cancel_futures=True)  # what runs goes on to its end; a failure is told first
    failed = next((future for future in futures if future.done() and future.exception()), None)
    return [future.result() for future in ([failed] if failed else futures)]


def side_by_side(models: int) -> int:
    """Return how many models are built at once where no GPU is needed, as cores and free memory allow."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text("ascii").splitlines())
    free, limit = int(lines["MemAvailable"].split()[0]) << 10, CGROUP / "memory.max"
    if limit.exists() and (most := limit.read_text("ascii").strip()).isdecimal():
        free = min(free, int(most) - int((CGROUP / "memory.current").read_text("ascii")))
    return max(1, min(models, len(os.sched_getaffinity(0)), free // EXPORT_BYTES))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns exit status 0, or 1 with one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m build", description=__doc__)
    parser.add_argument("command", choices=["engines", "check"])
    parser.add_argument(
        "--model-id",
        default=os.environ.get("MODEL_ID", ""),
        help="ids of catalog.toml, comma-separated (default: the miniatures)",
    )
    parser.add_argument("--target", default=os.environ.get("TARGET") or targets.DEFAULT_IN_DOCKER)
    parser.add_argument("--only", default="", help="leave out what other targets than this one build")
    parser.add_argument("--weights", type=Path, default=Path(os.environ.get("WEIGHTS_DIR") or "weights"))
    parser.add_argument("--engines", type=Path, default=Path(os.environ.get("ENGINES_DIR") or "engines"))
    arguments = parser.parse_args(argv)
    os.environ.update(proxies.legible(os.environ))
    places = Places(arguments.weights.resolve(), arguments.engines.resolve())
    try:
        models = select(load_catalog(), arguments.model_id, arguments.target)
        if arguments.command == "check":
            print(check_all(models, arguments.target, places))
        else:
            print(table(build_all(models, arguments.target, places, arguments.only)))
    except (BuildError, CatalogError, FetchError, ToolchainError, TemplateError, Unfit) as error:
        print(f"conch: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("conch: stopped; downloads and finished models are kept", file=sys.stderr, flush=True)
        os._exit(130)  # threads that download would be waited for
    return 0


if __name__ == "__main__":
    sys.exit(main())
