"""Rules for timestamps, compared with those of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from serving.engine.sampling import NEVER, TimestampRules

pytestmark = pytest.mark.slow  # imports torch and transformers

END, FIRST, SIZE = 40, 45, 145


def test_what_is_forbidden_is_what_transformers_forbids() -> None:
    """Random logits and random histories, of which some favour text and some times."""
    config = GenerationConfig(
        no_timestamps_token_id=FIRST - 1, eos_token_id=END, bos_token_id=END, max_initial_timestamp_index=50
    )
    theirs = WhisperTimeStampLogitsProcessor(config, begin_index=1)
    rng = np.random.default_rng(1)
    for _ in range(300):
        history, at = [], FIRST
        for kind in rng.integers(0, 2, rng.integers(0, 7)):
            at = min(SIZE - 2, at + int(rng.integers(1, 6)))
            history += [at, int(rng.integers(0, END))] if kind else [int(rng.integers(0, END)), at]
        scores = rng.normal(0, 3, SIZE).astype(np.float32)
        scores[:FIRST] += rng.choice([-4, 0, 6])
        scores[FIRST - 1] = NEVER
        wanted = theirs(torch.tensor([[0, *history]]), torch.tensor(scores)[None].clone())[0].numpy()
        found = scores.copy()
        TimestampRules(FIRST, END).forbid(found, history)
        assert np.array_equal(found <= NEVER, (wanted == -np.inf) | (scores <= NEVER)), history
