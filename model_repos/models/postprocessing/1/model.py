"""Triton's shell around serving.text: ids to strings."""

import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # serving/ lies beside the repository; the stub ignores PYTHONPATH

from serving.errors import code_name  # noqa: E402
from serving.text import TextModel  # noqa: E402


class TritonPythonModel:
    """Fast enough to answer at once."""

    def initialize(self, args):
        self.text = TextModel(BUNDLE)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        tokens, lengths = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("TOKENS_BATCH", "SEQUENCE_LENGTH"))
        try:
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", self.text.postprocess(tokens, lengths))])
        except Exception as error:  # noqa: BLE001  # the boundary: whatever went wrong is this request's answer
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), getattr(pb_utils.TritonError, code_name(error))))
