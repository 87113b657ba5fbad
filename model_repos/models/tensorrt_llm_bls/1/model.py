"""serving.text in Triton; the same file serves `tensorrt_llm_bls`, its `_stream` face and
`ensemble_stream`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie next to the repository; the stub ignores PYTHONPATH

from serving.text.endpoint import TextEndpoint
from serving.text.model import TextModel


class TritonPythonModel:
    """See above."""

    def initialize(self, args: dict[str, str]) -> None:
        self.endpoint = TextEndpoint(TextModel.load(BUNDLE), json.loads(args["model_config"]), pb_utils)

    def execute(self, requests: Sequence[Any]) -> None:
        self.endpoint.execute(requests)

    def finalize(self) -> None:
        self.endpoint.close()
