"""Decoders that differ from LLaMA in what a Shape has, on the portable engines against transformers: small
models of the true architectures with random weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from serving.engine.jobs import Limits
from serving.engine.runtime import Row
from serving.engine.scheduler import Scheduler
from serving.engine.strategies import strategy
from serving.engine.torch.batch import DeviceBatch
from serving.engine.torch.ranks import LeadingRuntime
from serving.engine.torch.slots import PendingStep

from ..engines import answers, exported, runtime
from .test_text_engines import FEW, VOCABULARY, job, prompts, theirs

pytestmark = pytest.mark.slow

PIECE = 5  # ids of a prompt that are read at once
FIRST = 32  # positions that a scaled model was first trained for
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": FIRST,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": FIRST}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
GEMMA = {"head_dim": 16, "sliding_window": 9, "query_pre_attn_scalar": 24}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
CONFIGS: dict[str, dict[str, Any]] = {
    "llama scaled": {"tie_word_embeddings": True, "rope_parameters": LLAMA3},
    "llama biases": {"attention_bias": True, "head_dim": 16, "rope_parameters": YARN},
    "mistral": {"sliding_window": 12, "head_dim": 16},
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    "qwen3": {"head_dim": 16},
    "smollm3": {"no_rope_layer_interval": 2},
    "phi3": {"rope_parameters": PARTIAL},
    "gemma": {"num_key_value_heads": 1, "head_dim": 16},
    "gemma2": GEMMA,
    "gemma3_text": {**GEMMA, "layer_types": ALTERNATING},
}


def model_of(name: str) -> PreTrainedModel:
    """transformers' model."""
    torch.manual_seed(12)
    config = AutoConfig.for_model(
        name.partition(" ")[0],
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=[1, 2],
        pad_token_id=0,
        **{"num_key_value_heads": 2, **CONFIGS[name]},
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # as trained ones are, norms and biases are not neutral
        for part, tensor in model.named_parameters():
            if tensor.dim() == 1:
                tensor.add_(torch.randn(tensor.shape), alpha=0.1 if "norm" in part else 0.5)
    return model.eval()


@pytest.mark.parametrize("engine_name", ["openvino 1", "torch 1", "torch 2"])
@pytest.mark.parametrize("name", CONFIGS)
def test_ids_equal_transformers(name: str, engine_name: str, tmp_path: Path) -> None:
    """In a running batch that prompts of mixed lengths join and leave, long ones read in pieces."""
    target, _, ranks = engine_name.partition(" ")
    if ranks != "1" and name not in ("qwen3", "gemma2"):
        pytest.skip("two models that span processes are enough")
    if torch.cuda.is_available() and torch.cuda.device_count() < int(ranks):
        pytest.skip("fewer GPUs than processes")
    model = model_of(name)
    engine = exported(target, "llama", model, tmp_path)
    running = runtime(target, engine, int(ranks), prefill_tokens=PIECE)
    asked = prompts(FEW)
    ours = answers(running, [job(running, ids) for ids in asked], max_rows=4, prefill_tokens=PIECE)
    if isinstance(running, LeadingRuntime):
        running.close()
    assert ours == [theirs(model, ids, 1) for ids in asked]
    assert len({tuple(ids) for ids in ours}) > FEW // 2


def test_pieces_are_read_with_the_steps_of_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So weights are read once for both, and a step reads the end of one and the start of another. Ids are
    those of whole prompts, with penalties and without, whichever slot a prompt is read into, one of the rows
    that step or one beyond.
    """
    engine = exported("torch", "llama", model_of("qwen3"), tmp_path)
    launch, ways = DeviceBatch._launch_mixed, set[tuple[bool, bool, bool]]()

    def noted(batch: DeviceBatch, rows: Sequence[Row], reading: Sequence[int]) -> PendingStep:
        pending = launch(batch, rows, reading)
        others = [slot for i, slot in enumerate(batch.where) if i not in reading]
        plain = all(batch.slots[one].plain for one in batch.where)
        inside = {batch.where[i] < batch._bucket(max(others) + 1) for i in reading}
        ways.update((one, plain, len(reading) > 1) for one in inside)
        return pending

    monkeypatch.setattr(DeviceBatch, "_launch_mixed", noted)
    found = []
    for piece in (0, PIECE):
        running = runtime("torch", engine, 1, prefill_tokens=piece, max_rows=5)
        scheduler = Scheduler(running, Limits(max_rows=5, max_queue=2 * FEW, prefill_tokens=piece))
        jobs = [job(running, ids) for ids in [*prompts(FEW), *prompts(FEW)]]
        for i, one in enumerate(jobs):  # they end one by one
            penalty = 1.0 if i < FEW else one.sampling.repetition_penalty
            one.sampling = replace(one.sampling, max_tokens=2 + 7 * i % 11, repetition_penalty=penalty)
            one.strategy, one.due = strategy(one.prompt, one.sampling), 1.0 + i  # they join in this order
        for one in jobs:
            scheduler.submit(one)
        scheduler.start()
        found.append([list(one.listener.wait(120)[0].ids) for one in jobs])
        scheduler.stop()
    assert found[0] == found[1]
    assert [{*way} for way in zip(*ways, strict=True)] == [{False, True}] * 3
