"""Check rules of TensorRT-LLM's backend that it does not report, or reports unclearly, for an engine model's
configuration.

Rules: tensorrtllm_backend v0.19.0, inflight_batcher_llm/src/model_instance_state.cc and model_state.cc.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from conch.bundle import PicturePrompt
from conch.names import ENGINE

from ...recipes import Recipe
from .engine_config import EMPTY, parameter
from .limits import prompt_rows, world_size

BOOLEANS = (
    "enable_kv_cache_reuse",
    "enable_chunked_context",
    "exclude_input_in_output",
    "normalize_log_probs",
)
SPELT = {"True", "true", "TRUE", "1", "False", "false", "FALSE", "0"}
NO = {"False", "false", "FALSE", "0"}
STRATEGIES = ("inflight_fused_batching", "inflight_batching", "V1")


@dataclass(frozen=True)
class Engines:
    """The engine folder of a bundle, with build configurations by engine name, and its recipe."""

    recipe: Recipe
    folder: Path

    @property
    def encodes(self) -> bool:
        """Tell whether there is an encoder besides the decoder."""
        return self.recipe.kind == "encoder-decoder"

    @property
    def visual_features(self) -> int:
        """Return the rows of one picture that they are built for; 0 if they read none."""
        return int(self.recipe.parameters.get("visual_features", 0))

    def limits(self, name: str) -> dict[str, Any]:
        """Return the limits that trtllm-build was given; empty if there is no such engine."""
        path = self.folder / name / "config.json"
        return (
            dict(json.loads(path.read_text("utf-8"))["build_config"])
            if path.is_file() and path.stat().st_size
            else {}
        )


def findings(config: model_config_pb2.ModelConfig, engines: Engines) -> list[str]:
    """Return what is wrong with an engine model's configuration, one sentence each with the remedy; empty if
    it may be served.
    """
    return [*_form(config), *_paths(config, engines), *_cache(config, engines), *_sizes(config, engines)]


def _form(config: model_config_pb2.ModelConfig) -> Iterator[str]:
    if "${" in text_format.MessageToString(config):
        yield "it still has a placeholder; build the bundle again with the pinned image"
    if (config.name, config.backend) != (ENGINE, "tensorrtllm"):
        yield f"it is {config.name!r} on backend {config.backend!r}; it must be {ENGINE!r} on 'tensorrtllm'"
    if not config.model_transaction_policy.decoupled:
        yield "it is not decoupled, so nothing could stream; set model_transaction_policy.decoupled"
    if parameter(config, "gpt_model_type") not in STRATEGIES:
        yield (
            f"gpt_model_type is {parameter(config, 'gpt_model_type')!r}; it must be one of "
            f"{', '.join(STRATEGIES)}"
        )
    for key in EMPTY:
        if key not in config.parameters:
            yield f"parameter {key} is missing, which the backend reads without a default; add it, empty"
    if parameter(config, "normalize_log_probs") not in NO:
        yield (
            "normalize_log_probs is not false: log probabilities would be those among the top k, which for a "
            "greedy answer is one, so all 0; set it to false"
        )
    for key in BOOLEANS:
        if parameter(config, key) not in SPELT:
            yield f"{key} is {parameter(config, key)!r}, which the backend does not read; write true or false"


def _paths(config: model_config_pb2.ModelConfig, engines: Engines) -> Iterator[str]:
    wanted = {"gpt_model_path": "decoder", "encoder_model_path": "encoder"}
    ranks = world_size(engines.recipe.parameters)
    for key, name in wanted.items():
        path = parameter(config, key)
        if name == "encoder" and not engines.encodes:
            if path:
                yield f"encoder_model_path is set for a {engines.recipe.kind} model; remove it"
        elif not path or not (Path(path) / "config.json").is_file():
            yield (
                f"{key} is {path!r}, which has no engine, and the backend would start without one; set it to "
                f"the bundle's engine/{name}"
            )
        elif lacking := [rank for rank in range(ranks) if not (Path(path) / f"rank{rank}.engine").is_file()]:
            yield (
                f"{path} lacks rank{lacking[0]}.engine of {ranks}; build the bundle again with "
                "the same TP_SIZE and PP_SIZE"
            )


def _cache(config: model_config_pb2.ModelConfig, engines: Engines) -> Iterator[str]:
    cross, encoder = parameter(config, "cross_kv_cache_fraction"), engines.encodes
    kind = engines.recipe.kind
    if encoder and not _fraction(cross):
        yield (
            f"cross_kv_cache_fraction is {cross!r}; an encoder-decoder needs one between 0 and 1, such as 0.5"
        )
    if not encoder and cross:
        yield (f"cross_kv_cache_fraction is set for a {kind} model, which the backend refuses; remove it")
    if encoder and parameter(config, "enable_kv_cache_reuse") not in NO:
        yield (
            f"enable_kv_cache_reuse must be false for a {kind} model: equal ids there do not mean "
            "equal inputs; set it to false"
        )
    if not _fraction(share := parameter(config, "kv_cache_free_gpu_mem_fraction")):
        yield (
            f"kv_cache_free_gpu_mem_fraction is {share!r}; give a share between 0 and 1, such as 0.5 "
            "(KV_CACHE_FRACTION)"
        )


def _fraction(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False


def _sizes(config: model_config_pb2.ModelConfig, engines: Engines) -> Iterator[str]:
    decoder, encoder = engines.limits("decoder"), engines.limits("encoder")
    # The encoder's may be smaller: the executor schedules requests for it by its own
    # (batch_manager/trtEncoderModel.cpp).
    if decoder and config.max_batch_size > decoder["max_batch_size"]:
        yield (
            f"max_batch_size is {config.max_batch_size}, the decoder engine takes "
            f"{decoder['max_batch_size']}; lower MAX_BATCH_SIZE or raise ENGINE_BATCH_SIZE"
        )
    beams = int(parameter(config, "max_beam_width") or 1)
    if decoder and beams > decoder["max_beam_width"]:
        yield (
            f"max_beam_width is {beams}, the engine was built for {decoder['max_beam_width']}; lower "
            "served_beam_width or raise MAX_BEAM_WIDTH"
        )
    if decoder and encoder and decoder["max_encoder_input_len"] != encoder["max_input_len"]:
        yield (
            f"the decoder reads {decoder['max_encoder_input_len']} encoder positions, the encoder takes "
            f"{encoder['max_input_len']}; "
            "build both with the same max_input_len"
        )
    if engines.recipe.kind == "multimodal" and decoder:
        yield from _pictures(decoder, engines)


def _pictures(decoder: dict[str, Any], engines: Engines) -> Iterator[str]:
    rows, batch = decoder["max_prompt_embedding_table_size"], decoder["max_batch_size"]
    most, each = prompt_rows(engines.recipe.parameters), engines.visual_features
    if rows != batch * most:
        yield (
            f"the prompt table has {rows} rows; it must have batch × features of a picture × pictures of a "
            f"request, {batch} × {each} × {most // each}; build the bundle again"
        )
    if (found := PicturePrompt.load(engines.folder).rows) != engines.visual_features:
        yield (
            f"the checkpoint makes {found} rows of a picture, visual_features is {engines.visual_features}; "
            f"set visual_features = {found} in catalog.toml"
        )
    if not (engines.folder / "visual" / "model.engine").is_file():
        yield "engine/visual/model.engine is missing, which looks at pictures; build the bundle again"


def cuda_pool_bytes(engines: Engines) -> int:
    """Return the size for tritonserver's --cuda-memory-pool-byte-size, memory for tensors that stay on the
    GPU between models: room for the prompt tables of a full batch in 2-byte numbers, once as input and once
    as output, rounded up to MiB; 0 where no pictures are read. Conch's own façades hand over tables in host
    memory; the pool is for clients that pass theirs on the GPU.
    """
    if not engines.visual_features:
        return 0
    hidden = json.loads((engines.folder / "decoder" / "config.json").read_text("utf-8"))["pretrained_config"][
        "hidden_size"
    ]
    table = (
        engines.limits("decoder")["max_batch_size"] * prompt_rows(engines.recipe.parameters) * int(hidden) * 2
    )
    mebibytes: int = max(64, -(-2 * table // (1 << 20)))
    return mebibytes << 20
