"""Fill the engine model's config.pbtxt from the template in NVIDIA's image; one table covers every
placeholder.
"""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from conch.names import ENGINE

from ...recipes import Recipe
from ...toolchain import TemplateError

PLACEHOLDER = re.compile(r"\$\{(\w+)\}")
# Filled, with names of parameters and of _values in braces.
FILLED = {
    "triton_backend": "tensorrtllm",
    "triton_max_batch_size": "{max_batch_size}",
    "decoupled_mode": "true",  # the engine model streams; tensorrt_llm is its unary face
    "max_queue_delay_microseconds": "{max_queue_delay_microseconds}",
    "max_queue_size": "{max_queue_size}",
    "engine_dir": "{engine}/decoder",
    "batching_strategy": "inflight_fused_batching",
    "batch_scheduler_policy": "{batch_scheduler_policy}",
    "kv_cache_free_gpu_mem_fraction": "{kv_cache_fraction}",
    "exclude_input_in_output": "{excludes}",
    "max_beam_width": "{served_beam_width}",
    "enable_kv_cache_reuse": "{kv_cache_reuse}",
    "enable_chunked_context": "false",
    # Normalised among the top k, which is one, each would be log 1 (samplingTopKKernels.cu): no confidence.
    "normalize_log_probs": "false",
    # Of the façade's features; read by encoders of sound only.
    "encoder_input_features_data_type": "TYPE_FP16",
    "logits_datatype": "TYPE_FP32",  # decoders are built with --logits_dtype float32
    "prompt_embedding_table_data_type": "TYPE_FP16",  # from 1.1.0 on
}
# Filled for encoder-decoders, left out for the rest: the backend refuses the fraction without an encoder, and
# any encoder path that exists.
FILLED_WITH_ENCODER = {
    "encoder_engine_dir": "{engine}/encoder",
    "cross_kv_cache_fraction": "{cross_kv_cache_fraction}",
}
# Filled where the family or the model gives a value; left out otherwise, so that the backend takes its own
# default.
FILLED_IF_GIVEN = (
    "max_tokens_in_paged_kv_cache",
    "max_attention_window_size",
    "decoding_mode",
    "enable_context_fmha_fp32_acc",
)
# Read by the backend, and in no template (model_instance_state.cc of r25.05).
APPENDED_IF_GIVEN = ("recv_poll_period_ms",)
# Read without a fallback: the keys must be there, and being empty they do nothing.
EMPTY = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")
# Left out, so that the backend takes its own default; each with the reason.
LEFT = {
    "sink_token_length": "no family here has attention sinks",
    "gpu_device_ids": "CUDA_VISIBLE_DEVICES says it for the whole server",
    "participant_ids": "orchestrator mode only; servers run in leader mode",
    "num_nodes": "one machine",
    "kv_cache_host_memory_bytes": "no cache in host memory",
    "kv_cache_onboard_blocks": "upstream's own",
    "gpu_weights_percent": "weights are not streamed",
    "cancellation_check_period_ms": "default of 100 ms",
    "stats_check_period_ms": "default of 100 ms",
    "iter_stats_max_iterations": "default",
    "request_stats_max_iterations": "default",
    "enable_trt_overlap": "deprecated, ignored",
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


def unknown_placeholders(template: str) -> list[str]:
    """Return placeholders that no table here covers."""
    known = {*FILLED, *FILLED_WITH_ENCODER, *FILLED_IF_GIVEN, *EMPTY, *LEFT}
    return sorted(set(PLACEHOLDER.findall(template)) - known)


def missing_placeholders(template: str) -> list[str]:
    """Return required placeholders that the template lacks."""
    return sorted(set(REQUIRED) - set(PLACEHOLDER.findall(template)))


def fill(template: str, recipe: Recipe, engine: Path) -> model_config_pb2.ModelConfig:
    """Return the configuration of `tensorrt_llm_stream` for engines that will lie in `engine`.

    Raises:
        TemplateError: a placeholder is unknown or missing, or the result is not a configuration.
    """
    unknown, missing = unknown_placeholders(template), missing_placeholders(template)
    if unknown or missing:
        names = ", ".join(
            [*(f"unknown {name}" for name in unknown), *(f"missing {name}" for name in missing)]
        )
        raise TemplateError(
            f"the image's template of tensorrt_llm is of another release ({names}); use the pinned image of "
            "docker/server.Dockerfile"
        )
    values = _values(recipe, engine)
    try:
        config = text_format.Parse(
            PLACEHOLDER.sub(lambda match: values.get(match[1], ""), template), model_config_pb2.ModelConfig()
        )
    except text_format.ParseError as error:
        raise TemplateError(
            f"the filled template of tensorrt_llm is not a valid configuration ({error}); use the pinned "
            "image of docker/server.Dockerfile"
        ) from error
    config.name = ENGINE
    for key in {
        key for key, name in _parameter_placeholders(template) if name not in values and name not in EMPTY
    }:
        del config.parameters[key]
    for name in APPENDED_IF_GIVEN:
        if value := recipe.parameters.get(name):
            config.parameters[name].string_value = str(value)
    return config


def _values(recipe: Recipe, engine: Path) -> dict[str, str]:
    encoder = recipe.kind == "encoder-decoder"
    # Reuse needs prompts that say everything: an encoder's memory is not among the ids, and a picture only by
    # prompt_table_extra_ids, without which the engine then refuses requests (llmRequest.cpp, `validate`).
    reuse = recipe.kind == "decoder" or bool(recipe.parameters.get("kv_cache_reuse", False))
    names = {
        "engine": str(engine),
        **{k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in recipe.parameters.items()},
        "kv_cache_reuse": str(reuse).lower(),
    }
    # An encoder-decoder's answer never holds its input; a decoder alone does as the family says.
    names["excludes"] = str(encoder or bool(recipe.parameters.get("exclude_input_in_output", True))).lower()
    given = {name: f"{{{name}}}" for name in FILLED_IF_GIVEN if recipe.parameters.get(name)}
    return {
        name: value.format(**names)
        for name, value in {**FILLED, **(FILLED_WITH_ENCODER if encoder else {}), **given}.items()
    }


def _parameter_placeholders(template: str) -> list[tuple[str, str]]:
    """Return (key, placeholder) of the parameters that the template leaves open."""
    return re.findall(r'key:\s*"(\w+)"\s*value:?\s*\{\s*string_value:\s*"\$\{(\w+)\}"', template)


def parameter(config: model_config_pb2.ModelConfig, key: str) -> str:
    """Return a string parameter; empty if it is missing."""
    return config.parameters[key].string_value if key in config.parameters else ""
