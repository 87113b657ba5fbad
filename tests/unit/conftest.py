"""Shared by the unit tests: speech to work on, and the miniature's engine."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from hypothesis import settings

settings.register_profile("unit", max_examples=200, deadline=None, database=None, derandomize=True)
settings.load_profile("unit")
if not shutil.which(
    "nvidia-smi"
):  # before anybody imports Triton's language: its own functions are bound then
    os.environ["TRITON_INTERPRET"] = "1"
# Models of the tests are too small for threads of torch, which spin while they wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if TYPE_CHECKING:  # every pytest loads this file, and most tests need neither torch nor OpenVINO nor scipy
    from miniatures.training.speech.clips import Clipper
    from miniatures.training.speech.corpus import Corpus
    from serving.engine.openvino.runtime import OpenVinoRuntime
    from serving.engine.scheduler import Scheduler

ROOT = Path(__file__).parent.parent.parent
MINIATURE = ROOT / "miniatures" / "whisper"


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` has filled, once for all workers of pytest-xdist."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    done = folder.with_suffix(".done")
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def whisper_engine(factory: pytest.TempPathFactory, target: str, *options: str) -> Path:
    """The miniature Whisper, exported for a target."""
    from . import engines

    return made_once(
        factory,
        f"whisper-{target}",
        lambda folder: engines.export(target, "whisper", MINIATURE, folder, *options),
    )


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whisper_engine(tmp_path_factory, "openvino", "--compress", "none")


@pytest.fixture(scope="session")
def torch_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whisper_engine(tmp_path_factory, "torch")


@pytest.fixture(scope="session")
def graphs(engine: Path) -> OpenVinoRuntime:
    """Its graphs at full precision."""
    from serving.engine.openvino.runtime import OpenVinoRuntime

    return OpenVinoRuntime(engine, precision="f32")


@pytest.fixture
def scheduler(graphs: OpenVinoRuntime) -> Iterator[Scheduler]:
    """A running scheduler."""
    from . import engines

    with engines.scheduling(graphs, max_rows=8, max_queue=4) as scheduler:
        yield scheduler


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """Sentences that no training saw."""
    from miniatures.training.speech.corpus import make_corpus

    return make_corpus(60, seed=5, held_out=True)


@pytest.fixture
def clipper(corpus: Corpus) -> Clipper:
    """Clips of them, the same for a test whichever ran before."""
    from miniatures.training.speech.clips import Clipper

    return Clipper(corpus, random.Random(1))
