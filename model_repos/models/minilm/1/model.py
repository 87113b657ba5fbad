"""Texts to vectors: serving.text.embedding in Triton."""

import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie next to the repository; the stub ignores PYTHONPATH

from serving.python_model import ThreadedModel
from serving.text.embedding import EmbeddingEndpoint, EmbeddingModel


class TritonPythonModel(ThreadedModel):
    """See above."""

    def initialize(self, args: dict[str, str]) -> None:
        self.endpoint = EmbeddingEndpoint(EmbeddingModel(BUNDLE), "minilm_encoder", pb_utils)
