"""Triton's shell around serving.text: ids to strings."""

import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # serving/ lies beside the repository; the stub ignores PYTHONPATH

from serving.errors import code_name
from serving.text.facade import TextModel


class TritonPythonModel:
    """Fast enough to answer at once."""

    def initialize(self, args):
        self.text = TextModel(BUNDLE)

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        try:
            texts = self.text.postprocess(
                given["TOKENS_BATCH"], given["SEQUENCE_LENGTH"], given.get("STOP_WORDS_IDS")
            )
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", texts)])
        except Exception as error:  # noqa: BLE001  # the boundary: whatever went wrong is this request's answer
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(str(error), getattr(pb_utils.TritonError, code_name(error)))
            )
