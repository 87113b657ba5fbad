"""Configurations that the backend would hide are refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from build.plan import Places
from build.recipes import load_recipe
from build.targets.trtllm.engine_config import EMPTY
from build.targets.trtllm.engine_rules import Engines, findings
from conch.bundle import PicturePrompt

from .models import CATALOG

pytestmark = pytest.mark.long


Mutation = Callable[[Any, Path], None]


def parameter(key: str, value: str) -> Mutation:
    def change(config: Any, _: Path) -> None:
        config.parameters[key].string_value = value

    return change


def without(key: str) -> Mutation:
    def change(config: Any, _: Path) -> None:
        del config.parameters[key]

    return change


def field(name: str, value: Any) -> Mutation:
    def change(config: Any, _: Path) -> None:
        setattr(config, name, value)

    return change


def limit(engine: str, name: str, value: int) -> Mutation:
    def change(_: Any, folder: Path) -> None:
        path = folder / engine / "config.json"
        data = json.loads(path.read_text())
        data["build_config"][name] = value
        path.write_text(json.dumps(data))

    return change


def drop_rank(_: Any, folder: Path) -> None:
    (folder / "decoder/rank0.engine").unlink()


def drop_plan(_: Any, folder: Path) -> None:
    (folder / "visual/model.engine").unlink()


def rows_of_a_picture(_: Any, folder: Path) -> None:
    """As a checkpoint for pictures of 448 pixels has them."""
    replace(PicturePrompt.load(folder), rows=1024).save(folder)


WHISPER: list[tuple[Mutation, str]] = [
    *((without(key), f"parameter {key} is missing.* add it, empty") for key in EMPTY),
    (without("gpt_model_type"), "gpt_model_type is ''; it must be one of"),
    (parameter("gpt_model_type", "${batching_strategy}"), "it still has a placeholder.*pinned image"),
    (
        parameter("encoder_model_path", "/nowhere/encodr"),
        "has no engine, and the backend would start without one; set it to the bundle's engine/encoder",
    ),
    (parameter("gpt_model_path", ""), "gpt_model_path is ''.*engine/decoder"),
    (without("cross_kv_cache_fraction"), "an encoder-decoder needs one between 0 and 1, such as 0.5"),
    (parameter("enable_kv_cache_reuse", "true"), "set it to false"),
    (parameter("enable_chunked_context", "no"), "write true or false"),
    (parameter("kv_cache_free_gpu_mem_fraction", "1.5"), "give a share between 0 and 1"),
    (parameter("max_beam_width", "9"), "raise MAX_BEAM_WIDTH"),
    (field("max_batch_size", 65), "lower MAX_BATCH_SIZE or raise ENGINE_BATCH_SIZE"),
    (field("name", "tensorrt_llm"), "it must be 'tensorrt_llm_stream'"),
    (limit("decoder", "max_encoder_input_len", 1500), "build both with the same max_input_len"),
    (drop_rank, "lacks rank0.engine.*same TP_SIZE"),
]
CROSS = parameter("cross_kv_cache_fraction", "0.5")
LLAVA: list[tuple[Mutation, str]] = [
    (CROSS, "which the backend refuses; remove it"),
    (parameter("encoder_model_path", "/somewhere"), "is set for a multimodal model; remove it"),
    (
        limit("decoder", "max_prompt_embedding_table_size", 576),
        "batch × features of a picture × pictures of a request, 8 × 576 × 3; build the bundle again",
    ),
    (
        rows_of_a_picture,
        "makes 1024 rows of a picture, visual_features is 576; set visual_features = 1024 in catalog.toml",
    ),
    (drop_plan, "engine/visual/model.engine is missing"),
]
MUTATIONS = [
    *(("mini-whisper", *row) for row in WHISPER),
    ("mini-gpt2", CROSS, "set for a decoder model, which the backend refuses; remove it"),
    *(("llava-1.5-7b", *row) for row in LLAVA),
]


@pytest.mark.parametrize(
    ("model_id", "mutation", "sentence"), MUTATIONS, ids=[f"{row[0]}-{i}" for i, row in enumerate(MUTATIONS)]
)
def test_mutations_are_refused(
    model_id: str, mutation: Mutation, sentence: str, finished: Places, tmp_path: Path
) -> None:
    """Each fault that the backend would hide, or answer in riddles, is one sentence with the remedy."""
    bundle, engine = finished.bundle(model_id, "trtllm"), tmp_path / "engine"
    shutil.copytree(bundle / "engine", engine)
    text = (
        (bundle / "repository/tensorrt_llm_stream/config.pbtxt")
        .read_text()
        .replace(f"{bundle}/engine", str(engine))
    )
    config, engines = (
        text_format.Parse(text, ModelConfig()),
        Engines(load_recipe(CATALOG[model_id], "trtllm"), engine),
    )
    assert findings(config, engines) == []
    mutation(config, engine)
    found = findings(config, engines)
    assert any(re.search(sentence, finding) for finding in found), found
