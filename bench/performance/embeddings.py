"""Embeddings a second: a running Conch compared with sentence-transformers and fastembed on the same weights:
`python -m bench.performance.embeddings --weights weights/all-minilm-l6-v2`.

Texts are sentences of Python's manual; batches of 1 and 64 texts, 1 and 8 clients. The peers are called in
this process, from as many threads; Conch through its gateway, over HTTP. fastembed runs the ONNX graph that
is made here from the same weights. Needs requirements/peers.txt, in an environment of its own.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pydoc_data.topics import topics

import httpx
import numpy as np
from numpy.typing import NDArray

MODEL = "all-minilm-l6-v2"
CELLS = [(1, 1), (1, 8), (64, 1), (64, 8)]
Floats = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Floats]


def sentences() -> list[str]:
    """Return 3,000 sentences of 20 to 300 characters."""
    plain = " ".join(topics[name] for name in sorted(topics))
    found = [one.strip() for one in re.split(r"(?<=[.:])\s+", plain)]
    return [one for one in found if 20 <= len(one) <= 300][:3000]


def ours(url: str) -> Embed:
    """Embed through the gateway."""
    client = httpx.Client(trust_env=False, base_url=url, timeout=120)

    def embed(texts: Sequence[str]) -> Floats:
        body = {"model": MODEL, "input": list(texts), "encoding_format": "base64"}
        answer = client.post("/v1/embeddings", json=body).raise_for_status()
        rows = [base64.b64decode(row["embedding"]) for row in answer.json()["data"]]
        return np.frombuffer(b"".join(rows), "<f4").reshape(len(texts), -1)

    return embed


def sentence_transformers(weights: Path) -> Embed:
    """Embed as its README shows."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(weights), device="cpu")
    options = {"batch_size": 64, "normalize_embeddings": True, "show_progress_bar": False}
    return lambda texts: np.asarray(model.encode(list(texts), **options))


def fastembed(weights: Path, folder: Path) -> Embed:
    """Embed with a graph like its own repository's: ids, mask and types to hidden states."""
    import torch
    from fastembed import TextEmbedding
    from transformers import BertModel

    model = BertModel.from_pretrained(weights, add_pooling_layer=False, attn_implementation="eager").eval()

    class Hidden(torch.nn.Module):  # type: ignore[misc]  # torch is not seen by mypy
        """The output of the published graph."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state

    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.ones(2, 5, dtype=torch.long)
    axes = {name: {0: "texts", 1: "tokens"} for name in (*names, "last_hidden_state")}
    torch.onnx.export(
        Hidden(),
        (ids, ids, ids * 0),
        str(folder / "model.onnx"),
        input_names=names,
        output_names=["last_hidden_state"],
        dynamic_axes=axes,
        dynamo=False,
    )
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        source = weights / file
        content = source.read_text("utf-8") if source.exists() else '{"pad_token": "[PAD]"}'
        (folder / file).write_text(content, "utf-8")
    name, threads = "sentence-transformers/all-MiniLM-L6-v2", len(os.sched_getaffinity(0))
    made = TextEmbedding(name, specific_model_path=str(folder), threads=threads)
    return lambda texts: np.array(list(made.embed(list(texts), batch_size=64)))


def rate(embed: Embed, texts: Sequence[str], batch: int, clients: int, seconds: float) -> float:
    """Return texts per second."""
    batches = itertools.cycle([texts[i : i + batch] for i in range(0, len(texts) - batch, batch)])
    end = time.monotonic() + seconds

    def work(_: int) -> int:
        count = 0
        while time.monotonic() < end:
            count += len(embed(next(batches)))
        return count

    started = time.monotonic()
    with ThreadPoolExecutor(clients) as threads:
        return sum(threads.map(work, range(clients))) / (time.monotonic() - started)


def main() -> None:
    """Print a table: texts per second, medians of the rounds, and the ratio to the better peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    texts = sentences()
    with tempfile.TemporaryDirectory() as folder:
        compared = {
            "Conch": ours(arguments.url),
            "sentence-transformers": sentence_transformers(arguments.weights),
            "fastembed": fastembed(arguments.weights, Path(folder)),
        }
    first = {name: embed(texts[:64]) for name, embed in compared.items()}
    for name, vectors in first.items():
        print(f"{name}: least cosine with Conch {(vectors * first['Conch']).sum(1).min():.5f}")
    found: dict[tuple[int, int, str], list[float]] = {}
    for _ in range(arguments.rounds):
        for batch, clients in CELLS:
            for name, embed in compared.items():
                one = rate(embed, texts, batch, clients, arguments.seconds)
                found.setdefault((batch, clients, name), []).append(one)
    print(f"| texts of a request | clients | {' | '.join(compared)} | ratio |\n|---|---|{'---|' * 4}")
    for batch, clients in CELLS:
        rates = {name: statistics.median(found[batch, clients, name]) for name in compared}
        best = max(rate for name, rate in rates.items() if name != "Conch")
        cells = " | ".join(f"{rate:.0f}" for rate in rates.values())
        print(f"| {batch} | {clients} | {cells} | {rates['Conch'] / best:.2f} |")


if __name__ == "__main__":
    main()
