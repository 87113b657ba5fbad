"""What a family, a card or another knob does not allow is refused before anything is downloaded."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from build.bundle import build
from build.catalog import CatalogError
from build.plan import Places
from build.recipes import load_recipe
from build.targets.trtllm.engine_config import fill
from build.targets.trtllm.image import TrtLlmBuilderImage
from ops.deploy import check_gpus
from tests.fakes.nvidia_image import H100
from tests.fakes.nvidia_template import template

from .models import CATALOG

pytestmark = pytest.mark.long


B200 = ("NVIDIA B200", "10.0", 183359)
REFUSED = [
    (
        "mini-whisper",
        {"TP_SIZE": "2"},
        "TP_SIZE=2 cannot be built for TARGET=trtllm; family whisper takes: 1",
    ),
    ("mini-whisper", {"PRECISION": "bfloat16"}, "family whisper takes: float16"),
    ("mini-whisper", {"KV_CACHE": "fp8"}, "family whisper takes: none"),
    ("gpt2-medium", {"QUANTIZATION": "int4_awq"}, "family gpt2 takes: none, smoothquant, fp8"),
    ("mini-whisper", {"WEIGHT_ONLY": "int2"}, "family whisper takes: none, int8, int4"),
    (
        "mini-whisper",
        {"MAX_BEAM_WIDTH": "many"},
        "MAX_BEAM_WIDTH=many is not of type int; write for example MAX_BEAM_WIDTH=1",
    ),
    ("blip2-opt-2.7b", {"PP_SIZE": "2"}, "family blip2 takes: 1"),
    ("random-base", {}, "weights in the layout 'random' cannot be built for TARGET=trtllm"),
    (
        "mini-t5",
        {"PRECISION": "float32", "WEIGHT_ONLY": "int8"},
        "WEIGHT_ONLY=int8 needs PRECISION=float16 or",
    ),
    (
        "mini-t5",
        {"ENGINE_BATCH_SIZE": "4"},
        "ENGINE_BATCH_SIZE=4 is less than MAX_BATCH_SIZE=8; raise the first or lower the second",
    ),
    (
        "mini-t5",
        {"KV_CACHE_FRACTION": "1.5"},
        "kv_cache_free_gpu_mem_fraction is '1.5'; give a share between 0 and 1, such as 0.5",
    ),
    ("llava-1.5-7b", {"TP_SIZE": "4", "PP_SIZE": "2"}, "TP_SIZE × PP_SIZE is 8, its instance has 4 GPU"),
]
ON_A_CARD = [
    (
        ("NVIDIA A100", "8.0", 40960),
        "gpt2-medium",
        {"QUANTIZATION": "fp8"},
        "QUANTIZATION=fp8 needs compute capability 8.9, NVIDIA A100 has compute capability 8.0",
    ),
    (B200, "gpt2-medium", {"KV_CACHE": "int8"}, "INT4 engines; unset WEIGHT_ONLY, KV_CACHE, QUANTIZATION"),
    (B200, "gpt2-medium", {"QUANTIZATION": "smoothquant"}, "cannot build INT8 or INT4 engines"),
    (
        H100,
        "gpt2-medium",
        {"QUANTIZATION": "fp8", "WEIGHT_ONLY": "int8"},
        "QUANTIZATION=fp8 brings its own weights and cache; unset WEIGHT_ONLY and KV_CACHE",
    ),
]


@pytest.mark.parametrize(
    ("gpu", "model_id", "knobs", "sentence"), [*((None, *row) for row in REFUSED), *ON_A_CARD]
)
def test_the_impossible_is_refused_first(
    gpu: tuple[str, str, int] | None,
    model_id: str,
    knobs: dict[str, str],
    sentence: str,
    image: TrtLlmBuilderImage,
    places: Places,
) -> None:
    """What no family, no card or no other knob allows, before anything is downloaded or written."""
    if gpu:
        (image.root / "etc/gpus.json").write_text(json.dumps([gpu]))
    with pytest.raises(CatalogError, match=re.escape(sentence)):
        build(CATALOG[model_id], "trtllm", places, note=lambda _: None, environment=knobs)
    assert not places.weights.exists()
    assert not places.engines.exists()


@pytest.mark.parametrize(
    ("knobs", "sentence"),
    [
        ({"cross_kv_cache_fraction": 0.0}, "an encoder-decoder needs one between 0 and 1, such as 0.5"),
        ({"served_beam_width": 4}, "served_beam_width=4 is more than MAX_BEAM_WIDTH=1"),
        ({"batch_scheduler_policy": "fifo"}, "family t5 takes: guaranteed_no_evict, max_utilization"),
    ],
)
def test_what_the_catalog_alone_can_say(
    knobs: dict[str, Any], sentence: str, image: TrtLlmBuilderImage, places: Places
) -> None:
    """Beams are bounded by what is built, values by what the backend knows."""
    with pytest.raises(CatalogError, match=sentence):
        build(replace(CATALOG["mini-t5"], knobs=knobs), "trtllm", places, note=lambda _: None)
    assert not places.weights.exists()


def test_a_knob_of_another_target_is_refused() -> None:
    """Silence would be a wrong engine."""
    with pytest.raises(
        CatalogError, match="TP_SIZE=2 has no effect on family whisper with TARGET=openvino; unset TP_SIZE"
    ):
        load_recipe(CATALOG["mini-whisper"], "openvino", {"TP_SIZE": "2"})
    load_recipe(CATALOG["mini-whisper"], "openvino", {"TP_SIZE": "1", "WEIGHT_ONLY": "none", "PRECISION": ""})


def test_processes_of_the_speech_facade() -> None:
    """0, which is the default, is taken everywhere; fewer are none at all."""
    models = [CATALOG[name] for name in ("mini-whisper", "mini-gpt2")]
    for target in ("openvino", "torch", "trtllm"):
        for model in models:
            load_recipe(model, target, {"FACADE_INSTANCES": "0"})
    for model, target, given, name in (
        (models[0], "torch", {"FACADE_INSTANCES": "-1"}, "FACADE_INSTANCES=-1"),
        (replace(models[0], knobs={"facade_instances": -1}), "torch", {}, "facade_instances = -1"),
        (models[0], "trtllm", {"KV_CACHE_FRACTION": "-0.5"}, "KV_CACHE_FRACTION=-0.5"),
    ):
        with pytest.raises(CatalogError, match=f"{name} is below 0; write 0 or more"):
            load_recipe(model, target, given)


def test_ranks_are_counted_before_a_build() -> None:
    """The builder in Docker says which instance lacks a GPU, and what to write."""
    models = [CATALOG["t5-small"], CATALOG["large-v3"]]
    check_gpus(models[:1], "trtllm", 2, {"TP_SIZE": "2", "TRITON_0_GPUS": "0,1", "TRITON_1_GPUS": "2,3"})
    check_gpus(models, "openvino", 2, {})
    with pytest.raises(
        CatalogError, match=r"triton-1 has GPU 1, TP_SIZE × PP_SIZE is 2; set for example TRITON_1_GPUS=2,3"
    ):
        check_gpus(models[:1], "trtllm", 2, {"TP_SIZE": "2", "TRITON_0_GPUS": "0,1"})


def parameter(config: ModelConfig, key: str) -> str:
    return config.parameters[key].string_value if key in config.parameters else ""


def test_settings_of_the_engine_model(tmp_path: Path) -> None:
    """What the guides set by hand in config.pbtxt is a parameter of the catalog; unset, the backend's own."""
    plain = fill(template(), load_recipe(CATALOG["mini-t5"], "trtllm"), tmp_path)
    assert parameter(plain, "batch_scheduler_policy") == "guaranteed_no_evict"
    left = ("decoding_mode", "enable_context_fmha_fp32_acc", "recv_poll_period_ms")
    assert [parameter(plain, name) for name in left] == ["", "", ""]
    knobs = {
        "max_queue_size": 0,
        "max_queue_delay_microseconds": 100,
        "batch_scheduler_policy": "max_utilization",
        "decoding_mode": "top_k_top_p",
        "enable_context_fmha_fp32_acc": True,
        "recv_poll_period_ms": 5,
    }
    made = fill(template(), load_recipe(replace(CATALOG["mini-t5"], knobs=knobs), "trtllm"), tmp_path)
    assert made.dynamic_batching.default_queue_policy.max_queue_size == 0
    assert made.dynamic_batching.max_queue_delay_microseconds == 100
    names = ("batch_scheduler_policy", *left)
    assert [parameter(made, name) for name in names] == ["max_utilization", "top_k_top_p", "true", "5"]
