"""Turn the scheduler's results into outputs of the engine model: names, dtypes and shapes of `tensorrt_llm`
in TensorRT-LLM 0.20.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ABORTED
from .jobs import Job
from .sampling import Hypothesis, begun


def outputs(beams: Sequence[Hypothesis], job: Job, first: int = 0) -> dict[str, NDArray[Any]]:
    """Make the arrays of one response: output_ids int32 [1, beams, longest], sequence_length int32 [1,
    beams], and the requested optional outputs.

    With `first`, only tokens from there on.
    """
    beams = beams[: job.sequences]
    prompt = () if job.exclude_prompt else job.prompt
    rows = [(*prompt, *beam.ids[first:]) for beam in beams]
    longest = max([len(row) for row in rows] + [1])
    arrays: dict[str, NDArray[Any]] = {
        "output_ids": np.array([[*row, *[0] * (longest - len(row))] for row in rows], np.int32)[None],
        "sequence_length": np.array([[len(row) for row in rows]], np.int32),
    }
    if job.log_probs:
        arrays["cum_log_probs"] = np.array([[beam.cum_log_prob for beam in beams]], np.float32)
        chosen = [[*[0.0] * len(prompt), *beam.log_probs[first:]] for beam in beams]
        arrays["output_log_probs"] = np.array(
            [[*row, *[0.0] * (longest - len(row))] for row in chosen], np.float32
        )[None]
    if job.sampling.keep_logits:
        arrays["generation_logits"] = _logits([beam.logits[first:] for beam in beams])
    return arrays


def _logits(rows: Sequence[Sequence[NDArray[np.float32]]]) -> NDArray[np.float32]:
    """Return float32 [1, beams, longest, vocabulary], padded with 0."""
    count = max(len(row) for row in rows)
    blank = next((np.zeros_like(row[0]) for row in rows if row), np.zeros(0, np.float32))
    return np.array([[*row, *[blank] * (count - len(row))] for row in rows], np.float32)[None]


@dataclass
class Answers:
    """The responses to one request, in order.

    In a stream of one sequence each carries what is new, in a stream of beams everything so far
    (TensorRT-LLM's executor, `returnAllGeneratedTokens`). A possible start of a stop word is held back until
    it is none.
    """

    job: Job
    sent: int = field(default=0, init=False)

    def update(self, beams: Sequence[Hypothesis]) -> dict[str, NDArray[Any]] | None:
        """Return output tensors after tokens of a streaming request, as in the engine's config.pbtxt; None
        if there is nothing to send yet.
        """
        if self.job.sampling.beam_width > 1:
            return outputs(beams, self.job)
        best, first = beams[0], self.sent
        ready = len(best.ids) - begun(best.ids, self.job.sampling.stop_words)
        if ready <= first:
            return None
        self.sent = ready
        return outputs(
            [
                replace(
                    best, ids=best.ids[:ready], log_probs=best.log_probs[:ready], logits=best.logits[:ready]
                )
            ],
            self.job,
            first,
        )

    @staticmethod
    def aborted() -> dict[str, NDArray[Any]]:
        """Return what a stream that has started sends before its error (see errors.raise_if_aborted): int32
        [1, 1, 1] and [1, 1].
        """
        return {
            "output_ids": np.zeros((1, 1, 1), np.int32),
            "sequence_length": np.array([[ABORTED]], np.int32),
        }

    def finish(self, beams: Sequence[Hypothesis]) -> dict[str, NDArray[Any]]:
        """Return the output tensors of the last response; if the job was to `attend` with cross_attention,
        float16 [1, heads, steps, encoder positions] of the best sequence: one step for each generated id,
        including those that ended the text.
        """
        seen = {} if self.job.seen is None else {"cross_attention": self.job.seen()[None]}
        return outputs(beams, self.job, self.sent) | seen
