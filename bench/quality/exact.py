"""The checkpoint's own weights in 32 bits, with which int8 and bf16 are compared."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from build.bundle import build
from build.catalog import load_catalog
from build.plan import Places


def exact_bundle(weights: Path, model_id: str) -> Path:
    """Return a bundle of `model_id` without compressed weights, built next to the weights if missing. It
    computes in 32 bits if `Direct` requests that.
    """
    model = load_catalog()[model_id]
    engines = (weights / "exact").resolve()
    plain = replace(model, knobs={**model.knobs, "compress": "none"})
    build(plain, "openvino", Places(weights.resolve(), engines), environment=os.environ)
    return engines / model_id / "openvino"
