"""The unary face of `tensorrt_llm_stream`: forwards each row, waits in a thread, answers once."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # serving/ lies beside the repository; the stub ignores PYTHONPATH

from serving.batches import merge, refuse_samples, split
from serving.desk import Desk
from serving.errors import told
from serving.shell import ALWAYS, Shell


class TritonPythonModel:
    """One response for each request, however many the engine sends."""

    def initialize(self, args):
        self.shell = Shell(pb_utils, told)
        self.desk = Desk(self._answer, self.shell.refuse)

    def execute(self, requests):
        self.desk.take(requests)

    def _answer(self, request, sender):
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if "streaming" in inputs and inputs["streaming"].any():
            raise ValueError("streaming=true needs the decoupled model tensorrt_llm_stream")
        refuse_samples(inputs)
        rows = split(inputs)
        with ThreadPoolExecutor(len(rows)) as threads:
            answers = list(threads.map(lambda row: self._forward(row, request), rows))
        sender.send(pb_utils.InferenceResponse(answers[0] if len(answers) == 1 else self._merged(answers)), self.shell.last)

    def _forward(self, row, request):
        """Tensors as they come: copying them while decoupled calls run in several threads has crashed the stub (docs/decisions/0002)."""
        answer, outputs = [], list(dict.fromkeys([*ALWAYS, *request.requested_output_names()]))
        for response in self.shell.call("tensorrt_llm_stream", self.shell.tensors(row), outputs, request.request_id(), decoupled=True):
            answer = response.output_tensors() or answer
        return answer

    def _merged(self, answers):
        return self.shell.tensors(merge([{tensor.name(): tensor.as_numpy() for tensor in answer} for answer in answers]))

    def finalize(self):
        self.desk.close()
