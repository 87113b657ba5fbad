"""The unary face of `tensorrt_llm_stream`: forwards each row, waits in a thread, answers once."""

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # serving/ lies beside the repository; the stub ignores PYTHONPATH

from conch.bundle import ENGINE, EngineFacts, load_parameters
from serving.errors import told
from serving.triton.calls import ALWAYS, BlsClient, engine_id, row_names
from serving.triton.requests import RequestPool
from serving.triton.rows import (
    greedy_at_zero,
    merge,
    refuse_beams,
    refuse_logits,
    refuse_misread,
    refuse_samples,
    split,
    started,
)
from serving.triton.watch import Watch


class TritonPythonModel:
    """One response for each request, however many the engine sends."""

    def initialize(self, args):
        self.facts = EngineFacts.load(BUNDLE / ENGINE)
        self.beams = load_parameters(BUNDLE).get("served_beam_width")
        self.calls = BlsClient(pb_utils, told)
        self.rows = {}  # of the requests that run here: the engine's ids by their own
        self.watch, self.requests = Watch(), RequestPool(self._answer, self.calls.refuse)

    def execute(self, requests):
        self.requests.submit(requests)

    def _answer(self, request, sender):
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if "streaming" in inputs and inputs["streaming"].any():
            raise ValueError("streaming=true needs the decoupled model tensorrt_llm_stream")
        if "stop" in inputs and inputs["stop"].any():
            self._stop(request.request_id(), sender)
            return
        refuse_misread(inputs, self.facts.misread)
        refuse_samples(inputs)
        refuse_beams(inputs, self.beams)
        refuse_logits(inputs, self.facts.vocabulary)
        rows = [started(greedy_at_zero(row), list(self.facts.decoder_start)) for row in split(inputs)]
        name, own = engine_id(request)
        # The engine knows the last request of an id only, so rows are told apart.
        names = self.rows[name] = [name, *row_names(name, len(rows))]
        try:
            with (
                self.watch.over(sender, lambda: own and self._end(names)),
                ThreadPoolExecutor(len(rows)) as threads,
            ):
                answers = list(threads.map(partial(self._forward, request), rows, names))
        finally:
            self.rows.pop(name, None)
        sender.send(
            pb_utils.InferenceResponse(answers[0] if len(answers) == 1 else self._merged(answers)),
            self.calls.last,
        )

    def _stop(self, name, sender):
        """Rows of a façade's request come as requests of their own."""
        for own in [key for key in list(self.rows) if key.startswith(f"{name}-row")]:
            self._end(self.rows.get(own, ()))
        self._end(self.rows.get(name, [name]))
        sender.send(pb_utils.InferenceResponse([]), self.calls.last)

    def _end(self, names):
        for name in names:
            self.calls.stop(name, "tensorrt_llm_stream")

    def _forward(self, request, row, name):
        """Tensors as they come: copying them while decoupled calls run in several threads has crashed the
        stub (docs/decisions/0002).
        """
        answer, outputs = [], list(dict.fromkeys([*ALWAYS, *request.requested_output_names()]))
        for response in self.calls.call(
            "tensorrt_llm_stream", self.calls.tensors(row), outputs, name, decoupled=True
        ):
            answer = response.output_tensors() or answer
        return answer

    def _merged(self, answers):
        return self.calls.tensors(
            merge([{tensor.name(): tensor.as_numpy() for tensor in answer} for answer in answers])
        )

    def finalize(self):
        self.requests.close()
        self.calls.close()
