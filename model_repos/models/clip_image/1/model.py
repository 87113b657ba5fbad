"""Pictures to vectors: serving.vision.embedding in Triton."""

import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie next to the repository; the stub ignores PYTHONPATH

from conch.bundle import ENGINE, PictureFacts
from serving.python_model import ThreadedModel
from serving.vision.embedding import PictureEmbeddingEndpoint


class TritonPythonModel(ThreadedModel):
    """See above."""

    def initialize(self, args: dict[str, str]) -> None:
        facts = PictureFacts.load(BUNDLE / ENGINE)
        self.endpoint = PictureEmbeddingEndpoint(facts, "clip_image_encoder", pb_utils)
