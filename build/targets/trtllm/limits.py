"""Values that follow from a family's parameters, computed once and named for its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from conch.gpus import Gpu

from ...catalog import CatalogError, Model
from ...recipes import Recipe, Value

# How GPT-2 becomes a checkpoint: by its converter, or by the quantisation tool, whose FP8 brings a cache in
# FP8 (examples/models/core/gpt/README.md).
CONVERTER = ("{gpt_converter}", "--gpt_variant", "gpt2")
GPT_CONVERSIONS = {
    "none": CONVERTER,
    "smoothquant": (*CONVERTER, "--smoothquant", "0.5", "--per_token", "--per_channel"),
    "fp8": ("{quantizer}", "--qformat", "fp8", "--kv_cache_dtype", "fp8"),
}


def derived(parameters: Mapping[str, Any]) -> dict[str, Value]:
    """Return further names for steps, besides the parameters; a tuple stands for as many arguments.
    `world_size` is GPUs of one instance; `encoder_tokens` and `decoder_tokens` are --max_num_tokens of each
    engine of an encoder-decoder, tokens in one step, with which activation memory grows
    (NVIDIA/TensorRT-LLM#1188); `max_multimodal_len` is rows of the prompt table.
    """
    get = parameters.get
    batch = int(get("engine_batch_size", 0))
    precision, cache = get("weight_only", "none"), get("kv_cache", "none")
    return {
        "world_size": str(world_size(parameters)),
        "weight_only_flags": ()
        if precision == "none"
        else ("--use_weight_only", "--weight_only_precision", precision),
        "gpt_conversion": GPT_CONVERSIONS[get("quantization", "none")],
        "kv_cache_flags": () if cache == "none" else (f"--{cache}_kv_cache",),
        "encoder_tokens": str(int(get("encoder_batch_size", 0)) * int(get("max_input_len", 0))),
        "decoder_tokens": str(
            max(1024, batch * max(int(get("max_prompt_len", 0)), int(get("max_beam_width", 1))))
        ),
        "max_multimodal_len": str(batch * prompt_rows(parameters)),
    }


def prompt_rows(parameters: Mapping[str, Any]) -> int:
    """Return the most rows of a prompt table that one request may have: TensorRT-LLM allots each of a batch
    the same number (batch_manager/promptTuningBuffers.cpp), and upstream's preprocessing counts in the same
    way.
    """
    return int(parameters.get("visual_features", 0)) * int(parameters.get("max_num_images", 1))


RAISE = "raise the first or lower the second"
INTEGER = ("weight_only", "kv_cache", "quantization")  # knobs that may ask for kernels of INT8 and INT4


def world_size(parameters: Mapping[str, Any]) -> int:
    """Return the number of processes, and GPUs, of one instance."""
    return int(parameters.get("tp_size", 1)) * int(parameters.get("pp_size", 1))


def check_possible(model: Model, recipe: Recipe, found: list[Gpu]) -> None:
    """Refuse what no tool could build, before anything is downloaded.

    Raises:
        CatalogError: a combination of parallelism, precision, quantisation, limits and GPUs that cannot be.
    """
    if reason := next(chain(_sizes(recipe.parameters, found), _numbers(recipe.parameters, found)), ""):
        raise CatalogError(f"{model.id}: {reason}")


def _sizes(parameters: Mapping[str, Any], found: list[Gpu]) -> Iterator[str]:
    """Return numbers of GPUs, rows, beams, tokens and shares that cannot be, with remedies."""
    get, ranks = parameters.get, world_size(parameters)
    if ranks > max(len(found), 1):
        yield (
            f"TP_SIZE × PP_SIZE is {ranks}, its instance has {len(found)} GPU(s); give it more with "
            "TRITON_i_GPUS, or set TP_SIZE=1 PP_SIZE=1"
        )
    if (most := get("max_batch_size", 0)) > (least := get("engine_batch_size", 1 << 30)):
        yield f"ENGINE_BATCH_SIZE={least} is less than MAX_BATCH_SIZE={most}; {RAISE}"
    if (most := get("served_beam_width", 1)) > (least := get("max_beam_width", 1 << 30)):
        yield f"served_beam_width={most} is more than MAX_BEAM_WIDTH={least}; {RAISE}"
    if not 0 < (share := get("kv_cache_fraction", 0.5)) < 1:
        yield (
            f"kv_cache_free_gpu_mem_fraction is '{share}'; give a share between 0 and 1, such as 0.5 "
            "(KV_CACHE_FRACTION)"
        )
    if not 0 < (share := get("cross_kv_cache_fraction", 0.5)) < 1:
        yield (
            f"cross_kv_cache_fraction is '{share}'; an encoder-decoder needs one between 0 and 1, such as 0.5"
        )
    if (tokens := get("max_num_tokens", 1 << 30)) < (longest := get("max_input_len", 0)):
        yield f"max_num_tokens={tokens} is less than one input of {longest}; raise it"


def _numbers(parameters: Mapping[str, Any], found: list[Gpu]) -> Iterator[str]:
    """Return contradictions in precision and quantization, with remedies."""
    get = parameters.get
    capability = tuple(map(int, found[0].compute_capability.split("."))) if found else (99, 0)
    card = f"{found[0].name} has compute capability {found[0].compute_capability}" if found else ""
    half = get("precision") in ("float16", "bfloat16")
    quantized = get("quantization", "none")
    if capability < (8, 0):  # trtllm-build dumps core there (NVIDIA/TensorRT-LLM#2760, k2-fsa/sherpa#709)
        yield f"{card}, TensorRT-LLM needs 8.0 (Ampere); use a newer card, or TARGET=openvino"
    if get("weight_only", "none") != "none" and not half:
        yield f"WEIGHT_ONLY={get('weight_only')} needs PRECISION=float16 or bfloat16"
    if quantized == "fp8" and capability < (8, 9):
        yield f"QUANTIZATION=fp8 needs compute capability 8.9, {card}; use smoothquant or none"
    integers = any(get(name, "none") in ("int8", "int4", "smoothquant") for name in INTEGER)
    if found and capability >= (10, 0) and integers:
        names = ", ".join(name.upper() for name in INTEGER)
        yield f"{card}, for which TensorRT-LLM cannot build INT8 or INT4 engines; unset {names}"
    if quantized != "none" and (get("weight_only") != "none" or get("kv_cache") != "none"):
        yield f"QUANTIZATION={quantized} brings its own weights and cache; unset WEIGHT_ONLY and KV_CACHE"
    if quantized != "none" and not half:
        yield f"QUANTIZATION={quantized} needs PRECISION=float16 or bfloat16"
