"""Engines for the unit tests, exported by the builder's own commands, computing in float32."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from build.catalog import ROOT
from serving.engine.runtime import Runtime


def export(target: str, family: str, weights: Path, engine: Path, *options: str) -> Path:
    """Into the folder `engine`, in a process of its own."""
    command = [sys.executable, "-m", f"build.targets.{target}.export", "--family", family]
    command += ["--weights", str(weights), "--output", str(engine)]
    if target == "torch":
        command += ["--precision", "float32"]
    command += options
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return engine


def runtime(target: str, engine: Path, tp_size: int = 1) -> Runtime:
    """Of an engine folder. `tp_size`: see the torch target."""
    if target == "torch":
        from serving.engine.torch import load

        return load(engine, {"precision": "float32", "max_rows": 32, "tp_size": tp_size})
    from serving.engine.openvino.runtime import OpenVinoRuntime

    return OpenVinoRuntime(engine, precision="f32")
