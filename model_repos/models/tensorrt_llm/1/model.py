"""The unary face of `tensorrt_llm_stream`: forwards each row, waits in a thread, answers once."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # serving/ lies beside the repository; the stub ignores PYTHONPATH

from serving.batches import merge, split
from serving.desk import Desk
from serving.errors import EngineError, code_name, told

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def refuse(sender, error):
    code = getattr(pb_utils.TritonError, code_name(error))
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(told(error), code)), FINAL)


class TritonPythonModel:
    """One response for each request, however many the engine sends."""

    def initialize(self, args):
        self.desk = Desk(self._answer, refuse)

    def execute(self, requests):
        self.desk.take(requests)

    def _answer(self, request, sender):
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if "streaming" in inputs and inputs["streaming"].any():
            raise ValueError("streaming=true needs the decoupled model tensorrt_llm_stream")
        rows = split(inputs)
        with ThreadPoolExecutor(len(rows)) as threads:
            answers = list(threads.map(lambda row: self._forward(row, request), rows))
        sender.send(pb_utils.InferenceResponse(answers[0] if len(answers) == 1 else self._merged(answers)), FINAL)

    def _forward(self, row, request):
        call = pb_utils.InferenceRequest(
            model_name="tensorrt_llm_stream",
            request_id=request.request_id(),
            requested_output_names=list(request.requested_output_names()),
            inputs=[pb_utils.Tensor(name, array) for name, array in row.items()],
        )
        answer = []
        for response in call.exec(decoupled=True):
            if response.has_error():
                raise EngineError(response.error().message())
            answer = response.output_tensors() or answer
        return answer

    def _merged(self, answers):
        arrays = merge([{tensor.name(): tensor.as_numpy() for tensor in answer} for answer in answers])
        return [pb_utils.Tensor(name, array) for name, array in arrays.items()]

    def finalize(self):
        self.desk.close()
