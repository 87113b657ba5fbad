"""The portable engine as a Triton model."""

import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie beside the repository; the stub ignores PYTHONPATH

from conch.bundle import load_parameters
from serving.engine import load
from serving.engine.endpoint import Endpoint


class TritonPythonModel:
    """Admits requests; never waits."""

    def initialize(self, args):
        self.endpoint = Endpoint(load(BUNDLE), load_parameters(BUNDLE), pb_utils)

    def execute(self, requests):
        self.endpoint.execute(requests)

    def finalize(self):
        self.endpoint.close()
