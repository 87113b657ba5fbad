"""Compile ONNX graphs to plans with trtexec, and describe the plans in plans.json."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from conch.contract import Stored


@dataclass(frozen=True)
class PlanTensor:
    """An input: Triton's name of its dtype, and the smallest, the optimal and the largest shape."""

    name: str
    datatype: str
    least: tuple[int, ...]
    favoured: tuple[int, ...]
    most: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """One plan, `engine/<name>.plan`."""

    name: str
    inputs: tuple[PlanTensor, ...]
    output: str
    dimensions: int

    @property
    def file(self) -> str:
        """Return the path below the engine folder."""
        return f"{self.name}.plan"


@dataclass(frozen=True)
class Plans(Stored):
    """Contents of plans.json."""

    FILE = "plans.json"

    plans: tuple[Plan, ...]


def command(trtexec: str, graph: Path, plan: Plan, made: Path, timing: Path, precision: str) -> list[str]:
    """Return the command that compiles a plan. trtexec wants an option and its value in one argument, with
    `=`; anything else is an unknown option (samples/common/sampleOptions.cpp, `argsToArgumentsMap`).
    """
    return [
        trtexec,
        f"--onnx={graph}",
        f"--saveEngine={made}",
        "--stronglyTyped",  # precisions as the graph says them
        *(["--noTF32"] if precision == "float32" else []),
        f"--minShapes={shapes(plan, 'least')}",
        f"--optShapes={shapes(plan, 'favoured')}",
        f"--maxShapes={shapes(plan, 'most')}",
        f"--timingCacheFile={timing}",
        "--skipInference",
    ]


def shapes(plan: Plan, which: str) -> str:
    """Format shapes as trtexec reads them: input_ids:1x1,attention_mask:1x1."""
    sizes = {tensor.name: getattr(tensor, which) for tensor in plan.inputs}
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in sizes.items())


def run(argv: Sequence[str]) -> None:
    """Run trtexec; its output goes where this process's goes.

    Raises:
        SystemExit: it failed.
    """
    status = subprocess.run(argv, check=False).returncode
    if status:
        raise SystemExit(f"{argv[0]} ended with status {status}: {' '.join(argv)}")
