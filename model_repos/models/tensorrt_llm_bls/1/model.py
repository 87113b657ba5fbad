"""serving.text in Triton; the same file serves `tensorrt_llm_bls`, its `_stream` face and
`ensemble_stream`.
"""

import json
import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie next to the repository; the stub ignores PYTHONPATH

from serving.python_model import ThreadedModel
from serving.text.endpoint import TextEndpoint
from serving.text.model import TextModel


class TritonPythonModel(ThreadedModel):
    """See above."""

    def initialize(self, args: dict[str, str]) -> None:
        self.endpoint = TextEndpoint(TextModel.load(BUNDLE), json.loads(args["model_config"]), pb_utils)
