"""Triton's shell around serving.whisper; the same file serves `whisper_bls`, `whisper_bls_stream` and `infer_bls`."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # serving/ lies beside the repository; the stub ignores PYTHONPATH

from serving.batches import merge, split  # noqa: E402
from serving.errors import EngineError, code_name  # noqa: E402
from serving.whisper import Whisper  # noqa: E402

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def triton_error(error):
    code = getattr(error, "code", None) or getattr(pb_utils.TritonError, code_name(error))
    return pb_utils.TritonError(str(error) or repr(error), code)


class TritonPythonModel:
    """Answers from threads, so that one request's wait for the engine never holds up another."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.streaming = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.outputs = {output["name"] for output in config["output"]}
        self.whisper = Whisper(BUNDLE)
        self.threads = ThreadPoolExecutor(64, "request")

    def execute(self, requests):
        for request in requests:
            self.threads.submit(self._answer, request, request.get_response_sender())

    def _answer(self, request, sender):
        try:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            wanted = set(request.requested_output_names()) or self.outputs
            if self.streaming:
                self._stream(inputs, wanted, sender)
            else:
                rows = [list(self.whisper.transcribe(row, wanted, self._engine, streaming=False))[-1] for row in split(inputs)]
                sender.send(self._response(merge(rows), wanted), FINAL)
        except Exception as error:  # noqa: BLE001  # the boundary: whatever went wrong is this request's answer
            sender.send(pb_utils.InferenceResponse(error=triton_error(error)), FINAL)

    def _stream(self, inputs, wanted, sender):
        rows = split(inputs)
        if len(rows) > 1:
            raise ValueError(f"a stream takes one recording, WAV has {len(rows)} rows; send one request for each")
        for arrays in self.whisper.transcribe(rows[0], wanted, self._engine, streaming=True):
            if sender.is_cancelled():
                break
            sender.send(self._response(arrays, wanted))
        sender.send(flags=FINAL)

    def _response(self, arrays, wanted):
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items() if name in wanted])

    def _engine(self, arrays, streaming):
        outputs = ["output_ids", "sequence_length", *(["cum_log_probs", "output_log_probs"] if "return_log_probs" in arrays else [])]
        call = pb_utils.InferenceRequest(
            model_name="tensorrt_llm_stream" if streaming else "tensorrt_llm",
            requested_output_names=[*outputs, *(["generation_logits"] if "return_generation_logits" in arrays else [])],
            inputs=[pb_utils.Tensor(name, array) for name, array in arrays.items()],
        )
        for response in call.exec(decoupled=True) if streaming else [call.exec()]:
            if response.has_error():
                raise EngineError(response.error().message(), response.error().code())
            if response.output_tensors():
                yield {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}

    def finalize(self):
        self.threads.shutdown(wait=False, cancel_futures=True)
