"""serving.audio in Triton; the same file serves `whisper_bls`, `whisper_bls_stream` and `infer_bls`."""

import json
import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # conch/ and serving/ lie next to the repository; the stub ignores PYTHONPATH

from serving.audio.endpoint import SpeechEndpoint
from serving.audio.whisper import Whisper
from serving.python_model import ThreadedModel


class TritonPythonModel(ThreadedModel):
    """See above."""

    def initialize(self, args: dict[str, str]) -> None:
        self.endpoint = SpeechEndpoint(Whisper(BUNDLE), json.loads(args["model_config"]), pb_utils)
