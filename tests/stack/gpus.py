"""A machine with NVIDIA's GPUs, image and backend, all of them stand-ins: what tests of that way share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.nvidia_image import environment, make_image

from .conftest import ROOT, Stack, started

BACKEND = ROOT / "tests/fakes/trtllm_backend"
TENSORRT = ROOT / "tests/fakes/tensorrt_image"


def gpu_machine(home: Path, model: str, graphs: str, port: int, **more: str) -> dict[str, str]:
    """The environment of a machine with four GPUs and two instances, each on a pair. `graphs`: whose OpenVINO
    graphs do the arithmetic.
    """
    return {
        **os.environ,
        **environment(make_image(home / "image")),
        "MODEL_ID": model,
        "TARGET": "trtllm",
        "WEIGHTS_DIR": f"{home}/weights",
        "ENGINES_DIR": f"{home}/engines",
        "CONCH_HOME": f"{home}/home",
        "CONTRACT_GRAPHS": str(ROOT / f"engines/{graphs}/openvino/engine"),
        "PORT": str(port),
        "INSTANCES": "2",
        "TRITON_0_GPUS": "0,1",
        "TRITON_1_GPUS": "2,3",
        **more,
    }


@contextmanager
def served(variables: dict[str, str]) -> Iterator[Stack]:
    """A stack whose tritonservers have the stand-in backend, and where models look at pictures, the image's
    Python packages, which a stub finds next to its bundle's code.
    """
    shutil.copytree(BACKEND, Path(variables["CONCH_HOME"]) / "backends" / "tensorrtllm")
    add_packages(variables)
    with started(variables) as stack:
        yield stack


def add_packages(variables: dict[str, str]) -> None:
    """Stand-ins of the image's torch and tensorrt, next to the code of bundles that look at pictures."""
    for visual in Path(variables["ENGINES_DIR"]).glob("*/trtllm/engine/visual"):
        for module in TENSORRT.glob("*.py"):
            shutil.copy(module, visual.parents[1])
