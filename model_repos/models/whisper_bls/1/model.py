"""Triton's shell around serving.whisper; the same file serves `whisper_bls`, `whisper_bls_stream` and
`infer_bls`.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # serving/ lies beside the repository; the stub ignores PYTHONPATH

from serving.audio.whisper import Whisper
from serving.engine.likelihood import untempered
from serving.triton.calls import ALWAYS, BlsClient, engine_id, row_names
from serving.triton.requests import RequestPool
from serving.triton.rows import merge, split
from serving.triton.watch import Watch

# Which of the engine's outputs a request for them brings, beside those that go with every request.
ASKED = {
    "return_log_probs": ("cum_log_probs", "output_log_probs"),
    "return_generation_logits": ("generation_logits",),
    "return_cross_attention": ("cross_attention",),
}


class TritonPythonModel:
    """Answers from threads, so that one request's wait for the engine never holds up another."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.outputs = {output["name"] for output in config["output"]}
        self.whisper, self.calls = Whisper(BUNDLE), BlsClient(pb_utils)
        self.watch, self.requests = Watch(), RequestPool(self._answer, self.calls.refuse)

    def execute(self, requests):
        self.requests.submit(requests)

    def _answer(self, request, sender):
        rows = split({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        wanted, (own, stoppable) = set(request.requested_output_names()) or self.outputs, engine_id(request)
        if not self.decoupled:
            self.calls.answer(sender, merge(self._all(rows, wanted, own, stoppable, sender)), wanted)
        elif len(rows) > 1:
            raise ValueError(
                f"a stream takes one recording, WAV has {len(rows)} rows; send one request for each"
            )
        else:
            texts = self.whisper.transcribe(rows[0], wanted, self._engine(own), streaming=True)
            self.calls.stream(sender, texts, wanted, stoppable)

    def _all(self, rows, wanted, own, stoppable, sender):
        """All rows at once. The engine knows the last request of an id only, so rows are told apart."""
        names = [own, *row_names(own, len(rows))]

        def one(row, name):
            return list(self.whisper.transcribe(row, wanted, self._engine(name), streaming=False))[-1]

        def stop():
            for name in names if own == stoppable else ():
                self.calls.stop(name)

        with self.watch.over(sender, stop), ThreadPoolExecutor(len(rows)) as threads:
            return list(threads.map(one, rows, names))

    def _engine(self, name):
        def call(arrays, streaming):
            asked = [output for flag, outputs in ASKED.items() if flag in arrays for output in outputs]
            return self.calls.engine(name, [*ALWAYS, *asked], arrays, streaming=streaming)

        return untempered(call) if self.whisper.tempered else call

    def finalize(self):
        self.requests.close()
        self.calls.close()
