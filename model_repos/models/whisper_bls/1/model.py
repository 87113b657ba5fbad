"""Triton's shell around serving.whisper; the same file serves `whisper_bls`, `whisper_bls_stream` and `infer_bls`."""

import json
import sys
from functools import partial
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # serving/ lies beside the repository; the stub ignores PYTHONPATH

from serving.batches import merge, split  # noqa: E402
from serving.desk import Desk  # noqa: E402
from serving.errors import EngineError, code_name, unbroken  # noqa: E402
from serving.whisper import Whisper  # noqa: E402

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
# Which of the engine's outputs a request for them brings.
ASKED = {
    "return_log_probs": ("output_ids", "sequence_length", "cum_log_probs", "output_log_probs"),
    "return_generation_logits": ("generation_logits",),
    "return_cross_attention": ("cross_attention",),
}


def refuse(sender, error):
    code = getattr(pb_utils.TritonError, code_name(error))
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error) or repr(error), code)), FINAL)


class TritonPythonModel:
    """Answers from threads, so that one request's wait for the engine never holds up another."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.streaming = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.outputs = {output["name"] for output in config["output"]}
        self.whisper = Whisper(BUNDLE)
        self.desk = Desk(self._answer, refuse)

    def execute(self, requests):
        self.desk.take(requests)

    def _answer(self, request, sender):
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        wanted = set(request.requested_output_names()) or self.outputs
        engine = partial(self._engine, request.request_id())
        if self.streaming:
            self._stream(inputs, wanted, sender, engine)
        else:
            rows = [list(self.whisper.transcribe(row, wanted, engine, streaming=False))[-1] for row in split(inputs)]
            sender.send(self._response(merge(rows), wanted), FINAL)

    def _stream(self, inputs, wanted, sender, engine):
        rows = split(inputs)
        if len(rows) > 1:
            raise ValueError(f"a stream takes one recording, WAV has {len(rows)} rows; send one request for each")
        for arrays in self.whisper.transcribe(rows[0], wanted, engine, streaming=True):
            if sender.is_cancelled():
                break
            sender.send(self._response(arrays, wanted))
        sender.send(flags=FINAL)

    def _response(self, arrays, wanted):
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items() if name in wanted])

    def _engine(self, request_id, arrays, streaming):
        outputs = [name for flag, names in ASKED.items() if flag in arrays for name in names] or ["output_ids", "sequence_length"]
        call = pb_utils.InferenceRequest(
            model_name="tensorrt_llm_stream" if streaming else "tensorrt_llm",
            request_id=request_id,
            requested_output_names=outputs,
            inputs=[pb_utils.Tensor(name, array) for name, array in arrays.items()],
        )
        for response in call.exec(decoupled=True) if streaming else [call.exec()]:
            if response.has_error():
                raise EngineError(response.error().message())
            if response.output_tensors():
                yield unbroken({tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()})

    def finalize(self):
        self.desk.close()
