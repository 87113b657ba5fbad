"""Reduce the GPU cache of a TensorRT-LLM instance where several share one GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from conch.names import ENGINE

BUDGET = "kv_cache_free_gpu_mem_fraction"
TOKENS = "max_tokens_in_paged_kv_cache"


def budgeted(repository: Path, view: Path, share: float) -> Path:
    """Make a view of a repository in which the engine model takes `share` of its cache budget; everything
    else is the bundle's own. An engine without a budget needs no view, nor does a bundle of encoders.
    """
    if not (repository / ENGINE).exists():
        return repository
    config = text_format.Parse(
        (repository / ENGINE / "config.pbtxt").read_text("utf-8"), model_config_pb2.ModelConfig()
    )
    if BUDGET not in config.parameters or not config.parameters[BUDGET].string_value:
        return repository
    shutil.rmtree(view, ignore_errors=True)
    (view / ENGINE).mkdir(parents=True)
    for model in repository.iterdir():
        if model.name != ENGINE:
            (view / model.name).symlink_to(model)
    (view / ENGINE / "1").symlink_to(repository / ENGINE / "1")
    take(config, share)
    (view / ENGINE / "config.pbtxt").write_text(text_format.MessageToString(config), "utf-8")
    return view


def take(config: model_config_pb2.ModelConfig, share: float) -> None:
    """Multiply an engine's cache budget, and its token limit if it has one, by `share`."""
    budget = config.parameters[BUDGET]
    budget.string_value = f"{float(budget.string_value) * share:.4g}"
    if tokens := config.parameters[TOKENS].string_value if TOKENS in config.parameters else "":
        config.parameters[TOKENS].string_value = str(int(int(tokens) * share))
