"""The engine model's config.pbtxt, filled from the template in NVIDIA's image, and the rules that TensorRT-LLM's backend leaves unsaid.

The rules are those of tensorrtllm_backend v0.19.0, inflight_batcher_llm/src/model_instance_state.cc and model_state.cc.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from .catalog import Recipe
from .derived import world_size

NAME = "tensorrt_llm_stream"
PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
# Filled, with names of parameters and of _values in braces.
FILLED = {
    "triton_backend": "tensorrtllm",
    "triton_max_batch_size": "{max_batch_size}",
    "decoupled_mode": "true",  # the engine model streams; tensorrt_llm is its unary face
    "max_queue_delay_microseconds": "0",
    "max_queue_size": "256",  # as the portable engine: more are told to come again
    "engine_dir": "{engine}/decoder",
    "batching_strategy": "inflight_fused_batching",
    "batch_scheduler_policy": "guaranteed_no_evict",
    "kv_cache_free_gpu_mem_fraction": "{kv_cache_fraction}",
    "exclude_input_in_output": "true",
    "max_beam_width": "{served_beam_width}",
    "enable_kv_cache_reuse": "{kv_cache_reuse}",
    "enable_chunked_context": "false",
    "normalize_log_probs": "true",  # the façade's confidence is made of them
    "encoder_input_features_data_type": "TYPE_FP16",  # of the façade's features; read by encoders of sound only
    "logits_datatype": "TYPE_FP32",  # decoders are built with --logits_dtype float32
    "prompt_embedding_table_data_type": "TYPE_FP16",  # from 1.1.0 on
}
# Filled for encoder-decoders, left out for the rest: the backend refuses the fraction without an encoder, and any encoder path that exists.
FILLED_WITH_ENCODER = {"encoder_engine_dir": "{engine}/encoder", "cross_kv_cache_fraction": "{cross_kv_cache_fraction}"}
# Read without a fallback: the keys must be there, and being empty they do nothing.
EMPTY = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")
# Left out, so that the backend takes its own default; each with the reason.
LEFT = {
    "max_tokens_in_paged_kv_cache": "the fraction bounds the cache; of two bounds the smaller would count",
    "max_attention_window_size": "no family here has a sliding window",
    "sink_token_length": "the same",
    "gpu_device_ids": "CUDA_VISIBLE_DEVICES says it for the whole server",
    "participant_ids": "orchestrator mode only; servers run in leader mode",
    "num_nodes": "one machine",
    "kv_cache_host_memory_bytes": "no cache in host memory",
    "kv_cache_onboard_blocks": "upstream's own",
    "gpu_weights_percent": "weights are not streamed",
    "decoding_mode": "follows max_beam_width",
    "cancellation_check_period_ms": "default of 100 ms",
    "stats_check_period_ms": "default of 100 ms",
    "iter_stats_max_iterations": "default",
    "request_stats_max_iterations": "default",
    "enable_trt_overlap": "deprecated, ignored",
    "enable_context_fmha_fp32_acc": "default of false",
    "multi_block_mode": "default of true",
    "cuda_graph_mode": "default of false",
    "cuda_graph_cache_size": "default of 0",
    "speculative_decoding_fast_logits": "no speculative decoding",
    "medusa_choices": "no speculative decoding",
    "eagle_choices": "no speculative decoding",
    "lookahead_window_size": "no speculative decoding",
    "lookahead_ngram_size": "no speculative decoding",
    "lookahead_verification_set_size": "no speculative decoding",
    "lora_cache_optimal_adapter_size": "no adapters",
    "lora_cache_max_adapter_size": "no adapters",
    "lora_cache_gpu_memory_fraction": "no adapters",
    "lora_cache_host_memory_bytes": "no adapters",
    "lora_prefetch_dir": "no adapters",
}
REQUIRED = (
    "triton_max_batch_size",
    "engine_dir",
    "encoder_engine_dir",
    "decoupled_mode",
    "kv_cache_free_gpu_mem_fraction",
    "cross_kv_cache_fraction",
    "max_beam_width",
)
BOOLEANS = ("enable_kv_cache_reuse", "enable_chunked_context", "exclude_input_in_output", "normalize_log_probs")
SPELT = {"True", "true", "TRUE", "1", "False", "false", "FALSE", "0"}
STRATEGIES = ("inflight_fused_batching", "inflight_batching", "V1")


class TemplateError(Exception):
    """The template does not fit this version of Conch; the message names placeholder and remedy."""


@dataclass(frozen=True)
class Engines:
    """The engine folder of a bundle: build configurations by the name of the engine."""

    folder: Path
    kind: str
    world_size: int
    visual_features: int

    @classmethod
    def of(cls, recipe: Recipe, folder: Path) -> Engines:
        """Those that a recipe makes."""
        return cls(folder, recipe.kind, world_size(recipe.parameters), int(recipe.parameters.get("visual_features", 0)))

    def limits(self, name: str) -> dict[str, Any]:
        """What trtllm-build was told; empty if there is no such engine."""
        path = self.folder / name / "config.json"
        return dict(json.loads(path.read_text("utf-8"))["build_config"]) if path.is_file() and path.stat().st_size else {}


def unknown_placeholders(template: str) -> list[str]:
    """Placeholders that no table here accounts for."""
    known = {*FILLED, *FILLED_WITH_ENCODER, *EMPTY, *LEFT}
    return sorted(set(PLACEHOLDER.findall(template)) - known)


def missing_placeholders(template: str) -> list[str]:
    """Placeholders without which the engine could not be described."""
    return sorted(set(REQUIRED) - set(PLACEHOLDER.findall(template)))


def fill(template: str, recipe: Recipe, engine: Path) -> model_config_pb2.ModelConfig:
    """The configuration of `tensorrt_llm_stream` for engines that will lie in `engine`.

    Raises:
        TemplateError: a placeholder is unknown or missing, or the result is no configuration.
    """
    unknown, missing = unknown_placeholders(template), missing_placeholders(template)
    if unknown or missing:
        names = ", ".join([*(f"unknown {name}" for name in unknown), *(f"missing {name}" for name in missing)])
        raise TemplateError(f"the image's template of tensorrt_llm is of another release ({names}); use the pinned image of docker/server.Dockerfile")
    values = _values(recipe, engine)
    try:
        config = text_format.Parse(PLACEHOLDER.sub(lambda match: values.get(match[1], ""), template), model_config_pb2.ModelConfig())
    except text_format.ParseError as error:
        raise TemplateError(f"the filled template of tensorrt_llm is no configuration ({error}); use the pinned image of docker/server.Dockerfile") from error
    config.name = NAME
    for key in {key for key, name in _parameter_placeholders(template) if name not in values and name not in EMPTY}:
        del config.parameters[key]
    return config


def _values(recipe: Recipe, engine: Path) -> dict[str, str]:
    encoder = recipe.kind == "encoder-decoder"
    # Reuse needs prompts that say everything: an encoder's memory or a picture is not among the ids.
    names = {"engine": str(engine), "kv_cache_reuse": str(recipe.kind == "decoder").lower(), **{k: str(v) for k, v in recipe.parameters.items()}}
    return {name: value.format(**names) for name, value in {**FILLED, **(FILLED_WITH_ENCODER if encoder else {})}.items()}


def _parameter_placeholders(template: str) -> list[tuple[str, str]]:
    """(key, placeholder) of the parameters that the template leaves open."""
    return re.findall(r'key:\s*"(\w+)"\s*value:?\s*\{\s*string_value:\s*"\$\{(\w+)\}"', template)


def findings(config: model_config_pb2.ModelConfig, engines: Engines) -> list[str]:
    """What is wrong with an engine model's configuration, one sentence each that names the remedy; nothing if it may be served."""
    return [*_form(config), *_paths(config, engines), *_cache(config, engines), *_sizes(config, engines)]


def _parameter(config: model_config_pb2.ModelConfig, key: str) -> str:
    return config.parameters[key].string_value if key in config.parameters else ""


def _form(config: model_config_pb2.ModelConfig) -> Iterator[str]:
    if "${" in text_format.MessageToString(config):
        yield "a placeholder is left in it; build the bundle again with the pinned image"
    if (config.name, config.backend) != (NAME, "tensorrtllm"):
        yield f"it is {config.name!r} on backend {config.backend!r}; it must be {NAME!r} on 'tensorrtllm'"
    if not config.model_transaction_policy.decoupled:
        yield "it is not decoupled, so nothing could stream; set model_transaction_policy.decoupled"
    if _parameter(config, "gpt_model_type") not in STRATEGIES:
        yield f"gpt_model_type is {_parameter(config, 'gpt_model_type')!r}; it must be one of {', '.join(STRATEGIES)}"
    for key in EMPTY:
        if key not in config.parameters:
            yield f"parameter {key} is missing, which the backend reads without a default; add it, empty"
    for key in BOOLEANS:
        if _parameter(config, key) not in SPELT:
            yield f"{key} is {_parameter(config, key)!r}, which the backend does not read; write true or false"


def _paths(config: model_config_pb2.ModelConfig, engines: Engines) -> Iterator[str]:
    wanted = {"gpt_model_path": "decoder", "encoder_model_path": "encoder"}
    for key, name in wanted.items():
        path = _parameter(config, key)
        if name == "encoder" and engines.kind != "encoder-decoder":
            if path:
                yield f"encoder_model_path is set for a {engines.kind} model; remove it"
        elif not path or not (Path(path) / "config.json").is_file():
            yield f"{key} is {path!r}, where no engine lies, and the backend would go on without; set it to the bundle's engine/{name}"
        elif lacking := [rank for rank in range(engines.world_size) if not (Path(path) / f"rank{rank}.engine").is_file()]:
            yield f"{path} lacks rank{lacking[0]}.engine of {engines.world_size}; build the bundle again with the same TP_SIZE and PP_SIZE"


def _cache(config: model_config_pb2.ModelConfig, engines: Engines) -> Iterator[str]:
    cross, encoder = _parameter(config, "cross_kv_cache_fraction"), engines.kind == "encoder-decoder"
    if encoder and not _fraction(cross):
        yield f"cross_kv_cache_fraction is {cross!r}; an encoder-decoder needs one between 0 and 1, such as 0.5"
    if not encoder and cross:
        yield f"cross_kv_cache_fraction is set for a {engines.kind} model, which the backend refuses; remove it"
    if engines.kind != "decoder" and _parameter(config, "enable_kv_cache_reuse") not in ("false", "False", "FALSE", "0"):
        yield f"enable_kv_cache_reuse must be false for a {engines.kind} model: equal ids there do not mean equal inputs; set it to false"
    if not _fraction(share := _parameter(config, "kv_cache_free_gpu_mem_fraction")):
        yield f"kv_cache_free_gpu_mem_fraction is {share!r}; give a share between 0 and 1, such as 0.5 (KV_CACHE_FRACTION)"


def _fraction(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False


def _sizes(config: model_config_pb2.ModelConfig, engines: Engines) -> Iterator[str]:
    decoder, encoder = engines.limits("decoder"), engines.limits("encoder")
    for name, limits in (("decoder", decoder), ("encoder", encoder)):
        if limits and config.max_batch_size > limits["max_batch_size"]:
            yield f"max_batch_size is {config.max_batch_size}, the {name} engine takes {limits['max_batch_size']}; lower MAX_BATCH_SIZE or raise ENGINE_BATCH_SIZE"
    beams = int(_parameter(config, "max_beam_width") or 1)
    if decoder and beams > decoder["max_beam_width"]:
        yield f"max_beam_width is {beams}, the engine was built for {decoder['max_beam_width']}; lower served_beam_width or raise MAX_BEAM_WIDTH"
    if decoder and encoder and decoder["max_encoder_input_len"] != encoder["max_input_len"]:
        yield (
            f"the decoder reads {decoder['max_encoder_input_len']} encoder positions, the encoder takes {encoder['max_input_len']}; "
            "build both with the same max_input_len"
        )
    if engines.kind == "multimodal" and decoder and decoder["max_prompt_embedding_table_size"] != decoder["max_batch_size"] * engines.visual_features:
        yield (
            f"the prompt table has {decoder['max_prompt_embedding_table_size']} rows; it must have batch × features of a picture, "
            f"{decoder['max_batch_size']} × {engines.visual_features}; build the bundle again"
        )


def cuda_pool_bytes(engines: Engines) -> int:
    """Memory for tensors that stay on the GPU between models, for tritonserver's --cuda-memory-pool-byte-size: room for the prompt tables of a
    full batch in 2-byte numbers, once on their way in and once on their way out, rounded up to MiB; 0 where no pictures are read.
    """
    if not engines.visual_features:
        return 0
    hidden = json.loads((engines.folder / "decoder" / "config.json").read_text("utf-8"))["pretrained_config"]["hidden_size"]
    table = engines.limits("decoder")["max_batch_size"] * engines.visual_features * int(hidden) * 2
    mebibytes: int = max(64, -(-2 * table // (1 << 20)))
    return mebibytes << 20


def with_share(config: model_config_pb2.ModelConfig, share: float) -> model_config_pb2.ModelConfig:
    """The same with its part of the cache's budget, for a GPU that several instances sit on."""
    changed = model_config_pb2.ModelConfig()
    changed.CopyFrom(config)
    fraction = float(_parameter(config, "kv_cache_free_gpu_mem_fraction")) * share
    changed.parameters["kv_cache_free_gpu_mem_fraction"].string_value = f"{fraction:.4g}"
    return changed


def settings(engines: Engines) -> dict[str, Any]:
    """What the guard needs to know to start a server: how many ranks, and how much memory they exchange tensors in."""
    return {"kind": engines.kind, "world_size": engines.world_size, "visual_features": engines.visual_features, "cuda_pool_bytes": cuda_pool_bytes(engines)}
