"""Triton's shell around the portable engine: requests go into the scheduler, its thread answers."""

import gc
import json
import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # serving/ lies beside the repository; the stub ignores PYTHONPATH

from serving.engine.openvino.graphs import Graphs
from serving.engine.scheduler import Scheduler
from serving.engine.tensors import Answers, parse, stops
from serving.errors import MARKED, code_name, told

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def triton_error(error):
    return pb_utils.TritonError(told(error), getattr(pb_utils.TritonError, code_name(error)))


class Reply:
    """A scheduler's listener that answers through Triton."""

    def __init__(self, request):
        self.sender = request.get_response_sender()
        self.names = set(request.requested_output_names())
        self.marked = MARKED in request.parameters()
        self.answers = None
        self.begun = False

    def cancelled(self):
        return self.sender.is_cancelled()

    def update(self, beams):
        arrays = self.answers.update(beams)
        if arrays is not None:
            self.begun = True
            self.sender.send(self._response(arrays))

    def finish(self, beams):
        self.sender.send(self._response(self.answers.finish(beams)), FINAL)

    def aligned(self, attention):
        self.sender.send(
            pb_utils.InferenceResponse([pb_utils.Tensor("cross_attention", attention[None])]), FINAL
        )

    def fail(self, error):
        if self.begun and self.marked:
            self.sender.send(self._response(self.answers.broken()), FINAL)
        else:
            self.sender.send(pb_utils.InferenceResponse(error=triton_error(error)), FINAL)

    def _response(self, arrays):
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor(name, array)
                for name, array in arrays.items()
                if not self.names or name in self.names
            ]
        )


class TritonPythonModel:
    """Admits requests; never waits."""

    def initialize(self, args):
        parameters = json.loads((BUNDLE / "parameters.json").read_text("utf-8"))
        self.exclude_prompt = bool(parameters.get("exclude_input_in_output"))
        self.graphs = Graphs(BUNDLE / "engine")
        self.scheduler = Scheduler(self.graphs)
        self.scheduler.start()

    def execute(self, requests):
        facts = self.graphs.facts
        for request in requests:
            reply = Reply(request)
            try:
                inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
                if stops(inputs, request.request_id()):
                    self.scheduler.drop(request.request_id())
                    reply.sender.send(flags=FINAL)
                else:
                    job, wanted = parse(
                        inputs, reply, facts, request.request_id(), exclude_prompt=self.exclude_prompt
                    )
                    reply.answers = Answers(wanted, job)
                    self.scheduler.submit(job)
            except Exception as error:  # noqa: BLE001  # the boundary: whatever went wrong is this request's answer
                reply.fail(error)

    def finalize(self):
        self.scheduler.stop()
        # Jobs and replies hold each other; a sender that is freed once the stub's shared memory is gone ends
        # the stub.
        gc.collect()
