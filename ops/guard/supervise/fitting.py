"""Fit a bundle's Triton configurations to the machine that serves it, in a view of its repository: the cache
of a TensorRT-LLM instance where several share one GPU, and the processes of the speech façade, of which the
machine that built the bundle may have had CPUs for fewer or more.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from conch.bundle import load_parameters, speech_facades
from conch.names import ENGINE, SPEECH

BUDGET = "kv_cache_free_gpu_mem_fraction"
TOKENS = "max_tokens_in_paged_kv_cache"


def fitted(bundle: Path, view: Path, share: float, cpus: int) -> Path:
    """Return a bundle's repository, or a view of it in which the engine model takes `share` of its cache
    budget and the speech façade has as many processes as the bundle's parameters request for `cpus`.
    """
    repository = bundle / "repository"
    changed = dict(_changed(bundle, repository, share, cpus))
    if not changed:
        return repository
    shutil.rmtree(view, ignore_errors=True)
    view.mkdir(parents=True)
    for model in repository.iterdir():
        if model.name in changed:
            (view / model.name).mkdir()
            (view / model.name / "1").symlink_to(model / "1")
            text = text_format.MessageToString(changed[model.name])
            (view / model.name / "config.pbtxt").write_text(text, "utf-8")
        else:
            (view / model.name).symlink_to(model)
    return view


def _changed(
    bundle: Path, repository: Path, share: float, cpus: int
) -> Iterator[tuple[str, model_config_pb2.ModelConfig]]:
    """Yield configurations that do not fit, by name, as they should be."""
    config = _config(repository, ENGINE)
    if config and share != 1 and BUDGET in config.parameters and config.parameters[BUDGET].string_value:
        take(config, share)
        yield ENGINE, config
    if config := _config(repository, SPEECH):
        count = speech_facades(load_parameters(bundle), cpus)
        if count and config.instance_group[0].count != count:
            config.instance_group[0].count = count
            yield SPEECH, config


def _config(repository: Path, model: str) -> model_config_pb2.ModelConfig | None:
    """Read a model's configuration; None if the repository has no such model."""
    path = repository / model / "config.pbtxt"
    text = path.read_text("utf-8") if path.exists() else None
    return None if text is None else text_format.Parse(text, model_config_pb2.ModelConfig())


def take(config: model_config_pb2.ModelConfig, share: float) -> None:
    """Multiply an engine's cache budget, and its token limit if it has one, by `share`."""
    budget = config.parameters[BUDGET]
    budget.string_value = f"{float(budget.string_value) * share:.4g}"
    if tokens := config.parameters[TOKENS].string_value if TOKENS in config.parameters else "":
        config.parameters[TOKENS].string_value = str(int(int(tokens) * share))
