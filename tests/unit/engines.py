"""Engines for the unit tests, exported by the builder's own exporters, computing in float32, and what a
scheduler makes of jobs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from build.checkpoints import encoders
from build.checkpoints.arguments import parse
from serving.engine.encoding import EncoderRuntime
from serving.engine.jobs import Job, Limits
from serving.engine.runtime import Runtime
from serving.engine.scheduler import Scheduler


def export(target: str, family: str, weights: Path, engine: Path, *options: str) -> Path:
    """Into the folder `engine`. `options`: of the exporter's command line."""
    line = ["--family", family, "--weights", str(weights), "--output", str(engine)]
    if target == "torch":
        line += ["--precision", "float32"]
    if family in encoders.FAMILIES:
        line += ["--max-input-len", "0"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a tracer warns of what it takes for constant
        import_module(f"build.targets.{target}.export").export(parse(None, [*line, *options]))
    return engine


def exported(target: str, family: str, model: Any, folder: Path, *options: str) -> Path:
    """The engine of transformers' model; it and its weights have folders of their own in `folder`."""
    model.save_pretrained(folder / "weights")
    (folder / "engine").mkdir()
    return export(target, family, folder / "weights", folder / "engine", *options)


def runtime(target: str, engine: Path, tp_size: int = 1, **parameters: int) -> Runtime:
    """Of an engine folder. `tp_size` and the other parameters: see the torch target."""
    if target == "torch":
        from serving.engine.torch import load

        return load(engine, {"precision": "float32", "max_rows": 32, "tp_size": tp_size, **parameters})
    from serving.engine.openvino.runtime import OpenVinoRuntime

    return OpenVinoRuntime(engine, precision="f32")


def encoder_of(target: str, engine: Path, graph: str = "encoder") -> EncoderRuntime:
    """One of its encoders."""
    if target == "torch":
        from serving.engine.torch.encoder import TorchEncoder

        return TorchEncoder(engine, {"precision": "float32"}, graph)
    from serving.engine.openvino.encoder import OpenVinoEncoder

    return OpenVinoEncoder(engine, {}, "f32", graph)


@contextmanager
def scheduling(engine: Runtime, **limits: int) -> Iterator[Scheduler]:
    """A running scheduler."""
    scheduler = Scheduler(engine, Limits(**limits))
    scheduler.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()


def answers(engine: Runtime, jobs: Sequence[Job], **limits: int) -> list[list[int]]:
    """The ids of all of them, whose listeners are `Collected`, by one scheduler."""
    with scheduling(engine, max_queue=len(jobs), **limits) as scheduler:
        for job in jobs:
            scheduler.submit(job)
        return [list(job.listener.wait(120)[0].ids) for job in jobs]
