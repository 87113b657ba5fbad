"""Ids to strings: serving.text in Triton."""

import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie next to the repository; the stub ignores PYTHONPATH

from serving.python_model import PythonModel
from serving.text.endpoint import postprocessing
from serving.text.model import TextModel


class TritonPythonModel(PythonModel):
    """See above."""

    def initialize(self, args: dict[str, str]) -> None:
        self.endpoint = postprocessing(TextModel.load(BUNDLE), pb_utils)
