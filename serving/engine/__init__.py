"""Portable engines: one scheduler, and a folder for each runtime."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conch.bundle import ENGINE, Manifest, load_parameters

if TYPE_CHECKING:
    from .runtime import Runtime


def load(bundle: Path) -> Runtime:
    """The runtime of a bundle: `serving.engine.<target>` has a function `load`."""
    module: Any = import_module(f"{__name__}.{Manifest.load(bundle).target}")
    runtime: Runtime = module.load(bundle / ENGINE, load_parameters(bundle))
    return runtime
