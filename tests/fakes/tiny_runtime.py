"""The engine of the target `tiny`: it says one sentence, whatever it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.bundle import EngineFacts
from serving.engine.runtime import Row, RunningBatch, Step
from serving.engine.sampling import Sampling


class TinyRuntime(RunningBatch):
    """A Runtime (serving/engine/runtime.py): the next id of the sentence gets all the probability."""

    def __init__(self, engine: Path) -> None:
        self.facts = EngineFacts.load(engine)
        self.ids = [*np.load(engine / "sentence.npy").tolist(), self.facts.end_id]

    def chooses(self, sampling: Sampling) -> bool:
        return False

    def prepare(self, source: NDArray[Any]) -> Any:
        return source

    def encode(self, sources: Sequence[NDArray[Any]]) -> list[Any]:
        return [None for _ in sources]

    def align(self, ids: Sequence[int], memory: Any) -> NDArray[np.float16]:
        raise NotImplementedError

    def batch(self) -> TinyRuntime:
        self.counts: list[int] = []
        return self

    def close(self) -> None:
        """Nothing is left."""

    def step(self, rows: Sequence[Row]) -> Step:
        self.counts = [0 if row.parent is None else self.counts[row.parent] + 1 for row in rows]
        best = np.array([self.ids[min(count, len(self.ids) - 1)] for count in self.counts], np.int64)
        logits = np.full((len(rows), self.facts.vocabulary), -30, np.float32)
        logits[np.arange(len(rows)), best] = 0
        return Step(best, np.zeros(len(rows), np.float32), logits.__getitem__)
