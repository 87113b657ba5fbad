"""The catalog's models that TensorRT-LLM engines are made of, and builds of them from small weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from build.bundle import build
from build.catalog import Model, load_catalog
from build.plan import Places, plan_job, read_manifest
from tests.fakes.published_weights import published

CATALOG = load_catalog()
UNWANTED = ("README.md", "flax_model.msgpack", "other.pt", "model.fp32-00001-of-00002.safetensors")
SMALLEST = {
    "whisper": "mini-whisper",
    "t5": "mini-t5",
    "bart": "mini-bart",
    "gpt2": "mini-gpt2",
    "blip2": "blip2-opt-2.7b",
    "llava": "llava-1.5-7b",
}
WANTED = [
    model for model in CATALOG.values() if model.family in SMALLEST and not model.source.startswith("random:")
]
# One of each family, layout and set of parameters: others differ in their numbers alone.
DISTINCT = list({(one.family, one.layout, *one.knobs): one for one in reversed(WANTED)}.values())


def make(model: Model, places: Places, monkeypatch: pytest.MonkeyPatch, **knobs: str) -> Any:
    """Build from small weights; the manifest."""
    with published(model) as (there, url):
        monkeypatch.setenv("HF_ENDPOINT", url)
        built = build(there, "trtllm", places, note=lambda _: None, environment=knobs)
        again = build(there, "trtllm", places, note=lambda _: None, environment=knobs)
    assert again.unchanged
    assert not built.unchanged
    return read_manifest(places.bundle(model.id, "trtllm"))


def job_of(model_id: str) -> Any:
    return plan_job(CATALOG[model_id], "trtllm", Places(Path("/w"), Path("/e")))
