"""The gateway's application in a test: over a deployment of given pools, with a Triton whose answers the test
sets.
"""

from __future__ import annotations

import asyncio
import json
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient

from conch.deployment import Chat, Deployment, Instance, Pool
from gateway.app import create_app
from gateway.settings import Settings
from gateway.text.generator import bytes_of

CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


class FakeTriton:
    """Answers like `tensorrt_llm_bls`: " one two", a token a word, or an error; reads as many tokens as the
    prompt has words.
    """

    async def close(self) -> None: ...

    words = (" one", " two")

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.order: list[int] = []  # in which order the streams begin: a place for each call
        self.together = 1  # tokens of an event

    async def infer(
        self, pool: Any, model: str, arrays: Mapping[str, np.ndarray], outputs: list[str], request_id: str
    ) -> dict[str, np.ndarray]:
        self.asked.append(dict(arrays))
        if self.error:
            raise self.error
        count = int(arrays["num_return_sequences"].item()) if "num_return_sequences" in arrays else 1
        lengths = np.full((1, count), len(self.words), np.int32)
        result = {
            "text_output": np.full((1, count), b"".join(map(bytes_of, self.words)), object),
            "num_input_tokens": np.array([[len(arrays["text_input"].item().split())]], np.int32),
            "num_output_tokens": lengths[:, :1],
            "output_lengths": lengths,
            "output_tokens": np.array([[[word.encode() for word in self.words]] * count], object),
            "output_log_probs": np.full((1, count, len(self.words)), -0.5, np.float32),
            "top_tokens": np.array([[[[b" a", b" b"]] * len(self.words)] * count], object),
            "top_token_log_probs": np.full((1, count, len(self.words), 2), -0.25, np.float32),
        }
        return {name: result[name] for name in outputs}

    async def stream(
        self, pool: Any, model: str, fields: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[dict[str, Any], None]:
        self.asked.append(dict(fields))
        if self.order:
            await asyncio.sleep(0.02 * self.order[len(self.asked) - 1])
        text = getincrementaldecoder("utf-8")()
        for n in range(0, len(self.words), self.together):
            if self.error and n:
                raise self.error
            words = self.words[n : n + self.together]
            several = {
                "output_lengths": [len(words)],
                "output_tokens": list(words),
                "output_log_probs": [-0.5] * len(words),
                "top_tokens": [" a", " b"] * len(words),
                "top_token_log_probs": [-0.25, -0.25] * len(words),
            }
            flat = {name: value[0] if len(value) == 1 else value for name, value in several.items()}
            yield {
                "text_output": text.decode(b"".join(map(bytes_of, words))),
                "num_input_tokens": len(fields["text_input"].split()),
                "num_output_tokens": n + len(words),
                **(flat if "top_log_probs" in fields else {}),
            }


Gateway = tuple[TestClient, FakeTriton]


@contextmanager
def application(folder: Path, *pools: Pool, triton: Any, **settings: Any) -> Iterator[TestClient]:
    """The application over the instances of pools. `settings`: other than the deployment's."""
    deployment = folder / "deployment.json"
    instances = tuple(
        Instance(n, pool.model_id, pool.family, str(folder), (n,), f"a:{n}", f"b:{n}", gpus=str(n))
        for n, pool in enumerate(pool for pool in pools for _ in pool.instances)
    )
    Deployment(instances, pools).save(deployment)
    app = create_app(Settings(deployment=deployment, **settings), triton=triton)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@contextmanager
def text_gateway(
    folder: Path, chat: Chat | None, *abilities: str, positions: int = 512, **settings: Any
) -> Iterator[Gateway]:
    """One text model, `mini`, which can complete and what `abilities` name."""
    capabilities = frozenset({"completion", *abilities})
    pool = Pool("mini", "llama", (0,), capabilities=capabilities, positions=positions, chat=chat)
    fake = FakeTriton()
    with application(folder, pool, triton=fake, **settings) as client:
        yield client, fake


def chat(gateway: Gateway, *messages: dict[str, Any], **fields: Any) -> Any:
    """The answer to a conversation, by default one short message; half a surrogate pair is sent as it is."""
    rows = messages or ({"role": "user", "content": "add 1"},)
    body = json.dumps({"model": "mini", "messages": rows, **fields})
    return gateway[0].post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})


def linked(url: str, **more: Any) -> dict[str, Any]:
    """A part of a content that is a picture."""
    return {"type": "image_url", "image_url": {"url": url, **more}}


def refuses(answer: Any, param: str | None, says: str = "", status: int = 400) -> None:
    """The answer is an error that names a field and says so."""
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param), error
    assert says in error["message"], error


def chunks(answer: Any) -> list[dict[str, Any]]:
    """The events of a stream that ended as it should."""
    assert answer.text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]
