"""What the report on GPUs asks of a running deployment."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, field
from typing import Any

import httpx

from .gpu_machine import ROOT, Failed, short

SPEECH, TEXT, CHAT = "mini-whisper", ("mini-t5", "mini-bart", "mini-gpt2"), ("mini-llava", "mini-blip2")
VECTORS = ("mini-clip", "all-minilm-l6-v2")
MINIATURES = ROOT / "miniatures"
RECORDINGS = MINIATURES / "recordings"


@dataclass(frozen=True)
class DeploymentClient:
    """Client for a running deployment's public listeners."""

    url: str
    kserve: str
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=120, trust_env=False))

    def infer(self, model_id: str, model: str, tensors: dict[str, tuple[str, list[Any]]]) -> dict[str, Any]:
        """Return outputs by name, flattened."""
        inputs = [
            {"name": name, "datatype": kind, "shape": [1, len(data)], "data": data}
            for name, (kind, data) in tensors.items()
        ]
        answer = self.client.post(
            f"{self.kserve}/v2/models/{model}/infer",
            json={"inputs": inputs},
            headers={"x-model-id": model_id},
        )
        if answer.status_code != 200:
            raise Failed(f"{model_id} {model}: {answer.status_code} {short(answer.text)}")
        return {row["name"]: row["data"] for row in answer.json()["outputs"]}

    def ids(self, row: dict[str, Any], model_id: str) -> tuple[list[int], list[float]]:
        """Return the ids that the engine's unary model generates for ids, and their log probabilities."""
        one = {name: ("INT32", [row[name]]) for name in ("end_id", "pad_id")}
        ids = {
            "input_ids": ("INT32", row["input_ids"]),
            "input_lengths": ("INT32", [len(row["input_ids"])]),
            "request_output_len": ("INT32", [row["max_tokens"]]),
        }
        found = self.infer(
            model_id,
            "tensorrt_llm",
            {**ids, **one, "runtime_top_k": ("INT32", [1]), "return_log_probs": ("BOOL", [True])},
        )
        length = found["sequence_length"][0]
        return found["output_ids"][:length], found["output_log_probs"][:length]

    def text(self, row: dict[str, Any], model_id: str) -> str:
        """Return the answer of `ensemble` to a text."""
        given = {
            "text_input": ("BYTES", [row["text"]]),
            "max_tokens": ("INT32", [row["max_tokens"]]),
            "top_k": ("INT32", [1]),
        }
        return str(self.infer(model_id, "ensemble", given)["text_output"][0])

    def ask(self, path: str, **request: Any) -> Any:
        """Return the gateway's JSON."""
        answer = self.client.post(f"{self.url}/v1/{path}", **request)
        if answer.status_code != 200:
            raise Failed(f"{path}: {answer.status_code} {short(answer.text)}")
        return answer.json()

    def transcript(self, name: str) -> str:
        """Transcribe a recording."""
        files = {"file": (name, (RECORDINGS / name).read_bytes())}
        return str(self.ask("audio/transcriptions", files=files, data={"model": SPEECH})["text"])

    def vector(self, row: dict[str, Any], model_id: str) -> list[float]:
        """Embed a text or a picture."""
        given = [picture(row)] if "picture" in row else row["text"]
        return list(self.ask("embeddings", json={"model": model_id, "input": given})["data"][0]["embedding"])

    def reply(self, row: dict[str, Any], model_id: str) -> str:
        """Ask a question about a picture."""
        content = [picture(row), {"type": "text", "text": row["text"]}]
        message = {"role": "user", "content": content}
        given = {"model": model_id, "messages": [message], "temperature": 0, "max_tokens": 40}
        return str(self.ask("chat/completions", json=given)["choices"][0]["message"]["content"])


def picture(row: dict[str, Any]) -> dict[str, Any]:
    """Make a picture's content part."""
    data = base64.b64encode((MINIATURES / "pictures" / row["picture"]).read_bytes()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def cosine(one: list[float], other: list[float]) -> float:
    """Compute the cosine of two vectors of one length."""
    return sum(x * y for x, y in zip(one, other, strict=True)) / math.hypot(*one) / math.hypot(*other)
