"""The engine model's template of NVIDIA's image, made again from the contract: its tensors, and one parameter
for each placeholder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).parent.parent / "contract" / "model_io.json"
CONTRACT: dict[str, Any] = json.loads(PUBLISHED.read_text("utf-8"))
ENGINE = CONTRACT["inflight_batcher_llm/tensorrt_llm"]
# Keys of parameters that are not called as their placeholders.
KEYS = {
    "batching_strategy": "gpt_model_type",
    "engine_dir": "gpt_model_path",
    "encoder_engine_dir": "encoder_model_path",
}
ELSEWHERE = {
    "triton_backend",
    "triton_max_batch_size",
    "decoupled_mode",
    "max_queue_delay_microseconds",
    "max_queue_size",
    "encoder_input_features_data_type",
    "logits_datatype",
}
HEAD = """name: "tensorrt_llm"
backend: "${triton_backend}"
max_batch_size: ${triton_max_batch_size}
model_transaction_policy { decoupled: ${decoupled_mode} }
dynamic_batching {
  preferred_batch_size: [ ${triton_max_batch_size} ]
  max_queue_delay_microseconds: ${max_queue_delay_microseconds}
  default_queue_policy: { max_queue_size: ${max_queue_size} }
}
"""


def port(kind: str, row: dict[str, Any]) -> str:
    extra = "reshape: { shape: [ ] } " if row.get("reshape") == [] else ""
    extra += "optional: true " if row.get("optional") else ""
    extra += "allow_ragged_batch: true " if row.get("allow_ragged_batch") else ""
    dims = ", ".join(map(str, row["dims"]))
    return f'{kind} [ {{ name: "{row["name"]}" data_type: {row["data_type"]} dims: [ {dims} ] {extra}}} ]\n'


def parameter(key: str, value: str) -> str:
    return f'parameters: {{\n  key: "{key}"\n  value: {{\n    string_value: "{value}"\n  }}\n}}\n'


# What the template of about 1.2 (TensorRT-LLM 2a9abd95) adds: counts of tokens, and a type to fill in.
FLAG = {"data_type": "TYPE_BOOL", "dims": [1], "reshape": [], "optional": True}
COUNT = {"data_type": "TYPE_INT32", "dims": [1]}
NEWER = (
    *(port("input", {"name": f"return_num_{what}_tokens", **FLAG}) for what in ("input", "output")),
    *(port("output", {"name": f"num_{what}_tokens", **COUNT}) for what in ("input", "output")),
)
TABLE = 'name: "prompt_embedding_table" data_type: '


def template(newer: bool = False) -> str:
    """config.pbtxt with ${placeholders}, of 0.20.0 or of about 1.2."""
    ports = [port("input", row) for row in ENGINE["inputs"]] + [
        port("output", row) for row in ENGINE["outputs"]
    ]
    if newer:
        typed = TABLE + "${prompt_embedding_table_data_type}"
        ports = [*(line.replace(TABLE + "TYPE_FP16", typed) for line in ports), *NEWER]
        assert any(typed in line for line in ports)
    open_ones = [
        parameter(KEYS.get(name, name), f"${{{name}}}")
        for name in ENGINE["template_parameters"]
        if name not in ELSEWHERE
    ]
    fixed = [
        parameter("FORCE_CPU_ONLY_INPUT_TENSORS", "no"),
        parameter("executor_worker_path", "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"),
    ]
    return (
        HEAD
        + "".join(ports)
        + "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
        + "".join([*open_ones, *fixed])
    )
