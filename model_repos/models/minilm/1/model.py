"""Texts to vectors: serving.text.embedding in Triton."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie next to the repository; the stub ignores PYTHONPATH

from serving.text.embedding import EmbeddingEndpoint, EmbeddingModel


class TritonPythonModel:
    """See above."""

    def initialize(self, args: dict[str, str]) -> None:
        self.endpoint = EmbeddingEndpoint(EmbeddingModel(BUNDLE), "minilm_encoder", pb_utils)

    def execute(self, requests: Sequence[Any]) -> None:
        self.endpoint.execute(requests)

    def finalize(self) -> None:
        self.endpoint.close()
