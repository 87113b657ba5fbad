"""The speech façade as a Triton model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..engine.likelihood import Engine, untempered
from ..triton.calls import ALWAYS, engine_id, row_names
from ..triton.rows import Arrays, merge, split
from ..triton.stub import Request, Sender, Utils, arrays_of, is_decoupled
from ..triton.threaded import ThreadedEndpoint
from ..triton.tracing import row_threads
from .whisper import Whisper

# Which of the engine's outputs a request for them brings, apart from those that go with every request.
ASKED = {
    "return_log_probs": ("cum_log_probs", "output_log_probs"),
    "return_generation_logits": ("generation_logits",),
    "return_step_attention": ("cross_attention",),
}


class SpeechEndpoint(ThreadedEndpoint):
    """Serves `whisper_bls`, `whisper_bls_stream` and `infer_bls`. `config` is the Triton model's
    configuration.
    """

    def __init__(self, whisper: Whisper, config: dict[str, Any], utils: Utils) -> None:
        super().__init__(utils)
        self.whisper, self.decoupled = whisper, is_decoupled(config)
        self.outputs = {output["name"] for output in config["output"]}

    def answer(self, request: Request, sender: Sender) -> None:
        rows = split(arrays_of(request.inputs()))
        wanted, (own, stoppable) = set(request.requested_output_names()) or self.outputs, engine_id(request)
        if not self.decoupled:
            # The engine knows only the last request of an id, so rows are told apart.
            names = [own, *row_names(own, len(rows))]

            def one(row: Arrays, name: str) -> Arrays:
                return list(self.whisper.transcribe(row, wanted, self._engine(name), streaming=False))[-1]

            watched = self.stopping(sender, names if stoppable else ())
            with watched, row_threads(len(rows)) as threads:
                results = list(threads.map(one, rows, names))
            self.calls.answer(sender, merge(results), wanted)
        elif len(rows) > 1:
            raise ValueError(
                f"a stream takes one recording, WAV has {len(rows)} rows; send one request for each"
            )
        else:
            texts = self.whisper.transcribe(rows[0], wanted, self._engine(own), streaming=True)
            self.calls.stream(sender, texts, wanted, stoppable)

    def _engine(self, name: str) -> Engine:
        def call(arrays: Arrays, streaming: bool) -> Iterator[Arrays]:
            asked = [output for flag, outputs in ASKED.items() if flag in arrays for output in outputs]
            return self.calls.engine(name, [*ALWAYS, *asked], arrays, streaming=streaming)

        return untempered(call) if self.whisper.facts.tempered_log_probs else call
