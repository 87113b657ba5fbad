"""Triton's shell around serving.text; the same file serves `tensorrt_llm_bls`, its `_stream` face and
`ensemble_stream`.
"""

import json
import sys
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # serving/ lies beside the repository; the stub ignores PYTHONPATH

from serving.errors import BadRequest
from serving.text.facade import ENGINE_OUTPUTS, TextModel
from serving.triton.calls import ALWAYS, BlsClient, engine_id
from serving.triton.requests import RequestPool
from serving.triton.watch import Watch


class TritonPythonModel:
    """Answers from threads, so that one request's wait for the engine never holds up another."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        declared = {
            *ALWAYS,
            *(output["name"] for output in config["output"]),
        }  # narrowed to what the engine has (build/tensors.py)
        self.outputs = [name for name in ENGINE_OUTPUTS if name in declared]
        self.text, self.calls = TextModel(BUNDLE), BlsClient(pb_utils)
        self.watch, self.requests = Watch(), RequestPool(self._answer, self.calls.refuse)

    def execute(self, requests):
        self.requests.submit(requests)

    def _answer(self, request, sender):
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if not self.decoupled and "stream" in inputs and inputs["stream"].any():
            raise BadRequest("stream=true needs the decoupled face of this model; its name ends in _stream")
        wanted, (own, stoppable) = set(request.requested_output_names()), engine_id(request)
        results = self.text.complete(
            inputs,
            lambda arrays, streaming: self.calls.engine(own, self.outputs, arrays, streaming=streaming),
        )
        if self.decoupled:
            self.calls.stream(sender, results, wanted, stoppable)
        else:
            with self.watch.over(sender, lambda: own == stoppable and self.calls.stop(own)):
                result = next(results)
            self.calls.answer(
                sender, result, wanted
            )  # not while it is watched: Triton must not be asked about what it has let go

    def finalize(self):
        self.requests.close()
        self.calls.close()
