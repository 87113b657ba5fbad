"""The portable engine as a Triton model: serving.engine in Triton."""

import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie next to the repository; the stub ignores PYTHONPATH

from conch.bundle import ENGINE, load_parameters
from serving.engine import load
from serving.engine.endpoint import Endpoint
from serving.python_model import ThreadedModel


class TritonPythonModel(ThreadedModel):
    """See above."""

    def initialize(self, args: dict[str, str]) -> None:
        self.endpoint = Endpoint(load(BUNDLE), load_parameters(BUNDLE), pb_utils, BUNDLE / ENGINE)
