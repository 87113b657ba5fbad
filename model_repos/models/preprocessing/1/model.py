"""Triton's shell around serving.text: strings to ids."""

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
        try:
            arrays = self.text.preprocess({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        except Exception as error:  # noqa: BLE001  # the boundary: whatever went wrong is this request's answer
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(str(error), getattr(pb_utils.TritonError, code_name(error)))
            )
        names = set(request.requested_output_names())
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, array) for name, array in arrays.items() if name in names]
        )
