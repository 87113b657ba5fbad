"""The unary face of `tensorrt_llm_stream`: serving.triton.unary in Triton."""

import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie next to the repository; the stub ignores PYTHONPATH

from conch.bundle import ENGINE, EngineFacts, load_parameters
from serving.python_model import ThreadedModel
from serving.triton.unary import UnaryFace


class TritonPythonModel(ThreadedModel):
    """See above."""

    def initialize(self, args: dict[str, str]) -> None:
        beams = load_parameters(BUNDLE).get("served_beam_width")
        self.endpoint = UnaryFace(EngineFacts.load(BUNDLE / ENGINE), beams, pb_utils)
