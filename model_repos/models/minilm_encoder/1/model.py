"""An encoder that maps token ids to vectors once."""

import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie beside the repository; the stub ignores PYTHONPATH

from serving.engine import load_encoder
from serving.engine.encoding import EncoderEndpoint


class TritonPythonModel:
    """Computes together what Triton hands over together."""

    def initialize(self, args):
        self.endpoint = EncoderEndpoint(load_encoder(BUNDLE), pb_utils)

    def execute(self, requests):
        return self.endpoint.execute(requests)
