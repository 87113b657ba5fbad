"""An encoder that maps pixels to vectors: serving.engine.encoding in Triton."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie next to the repository; the stub ignores PYTHONPATH

from conch.bundle import ENGINE, PictureFacts
from serving.engine import load_encoder
from serving.engine.encoding import PictureEncoderEndpoint


class TritonPythonModel:
    """See above."""

    def initialize(self, args: dict[str, str]) -> None:
        size = PictureFacts.load(BUNDLE / ENGINE).size
        self.endpoint = PictureEncoderEndpoint(load_encoder(BUNDLE, "image"), size, pb_utils)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return self.endpoint.execute(requests)
