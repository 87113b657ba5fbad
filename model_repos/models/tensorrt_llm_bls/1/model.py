"""Triton's shell around serving.text; the same file serves `tensorrt_llm_bls`, its `_stream` face and `ensemble_stream`."""

import json
import sys
import uuid
from functools import partial
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # serving/ lies beside the repository; the stub ignores PYTHONPATH

from serving.desk import Desk  # noqa: E402
from serving.errors import BadRequest, EngineError, code_name, unbroken  # noqa: E402
from serving.text import ENGINE_OUTPUTS, TextModel  # noqa: E402

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def refuse(sender, error):
    code = getattr(pb_utils.TritonError, code_name(error))
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error) or repr(error), code)), FINAL)


class TritonPythonModel:
    """Answers from threads, so that one request's wait for the engine never holds up another."""

    def initialize(self, args):
        self.decoupled = json.loads(args["model_config"]).get("model_transaction_policy", {}).get("decoupled", False)
        self.text = TextModel(BUNDLE)
        self.desk = Desk(self._answer, refuse)

    def execute(self, requests):
        self.desk.take(requests)

    def _answer(self, request, sender):
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if not self.decoupled and "stream" in inputs and inputs["stream"].any():
            raise BadRequest("stream=true needs the decoupled face of this model; its name ends in _stream")
        wanted = set(request.requested_output_names())
        own, stopped = request.request_id() or uuid.uuid4().hex, False
        for arrays in self.text.complete(inputs, partial(self._engine, own)):
            if stopped or sender.is_cancelled():
                if not stopped and not request.request_id():  # a client's id may be several requests'
                    self._stop(own)
                stopped = True
                continue  # to the end: a stream of another model is not to be left
            response = pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items() if name in wanted])
            if not self.decoupled:
                sender.send(response, FINAL)
                return
            sender.send(response)
        sender.send(flags=FINAL)

    def _engine(self, request_id, arrays, streaming):
        call = pb_utils.InferenceRequest(
            model_name="tensorrt_llm_stream" if streaming else "tensorrt_llm",
            request_id=request_id,
            requested_output_names=ENGINE_OUTPUTS,
            inputs=[pb_utils.Tensor(name, array) for name, array in arrays.items()],
        )
        for response in call.exec(decoupled=True) if streaming else [call.exec()]:
            if response.has_error():
                raise EngineError(response.error().message())
            if response.output_tensors():
                yield unbroken({tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()})

    def _stop(self, own):
        one = np.array([[1]], np.int32)
        arrays = {"input_ids": one, "input_lengths": one, "request_output_len": one, "stop": np.array([[True]])}
        inputs = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
        pb_utils.InferenceRequest(model_name="tensorrt_llm", request_id=own, requested_output_names=[], inputs=inputs).exec()

    def finalize(self):
        self.desk.close()
