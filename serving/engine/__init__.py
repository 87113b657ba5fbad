"""Portable engines: one scheduler, and one folder for each runtime."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conch.bundle import ENGINE, Manifest, load_parameters

if TYPE_CHECKING:
    from .encoding import EncoderRuntime
    from .runtime import Runtime


def load(bundle: Path) -> Runtime:
    """Load the runtime of a bundle with `serving.engine.<target>.load`."""
    runtime: Runtime = _target(bundle).load(bundle / ENGINE, load_parameters(bundle))
    return runtime


def load_encoder(bundle: Path, graph: str = "encoder") -> EncoderRuntime:
    """Load one encoder, by name, of a bundle without a decoder: the same module's `load_encoder`."""
    encoder: EncoderRuntime = _target(bundle).load_encoder(bundle / ENGINE, load_parameters(bundle), graph)
    return encoder


def _target(bundle: Path) -> Any:
    return import_module(f"{__name__}.{Manifest.load(bundle).target}")
