"""Choosing on the device compared with the rules in numpy: rows one by one, then all at once."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from serving.engine.sampling import Sampling, Scores, TimestampRules
from serving.engine.strategies import Single
from serving.engine.torch.choosing import Choices, on_device
from serving.engine.torch.device import Device

pytestmark = pytest.mark.slow  # imports torch

VOCABULARY, STEPS = 120, 12


def asked(rng: random.Random) -> Sampling:
    """Any combination of what a request may ask for."""
    return Sampling(
        max_tokens=STEPS,
        end_id=7,
        temperature=rng.choice([0.0, 0.3, 1.0, 1.7]),
        top_k=rng.choice([0, 1, 5]),
        top_p=rng.choice([0.0, 0.4, 1.0]),
        seed=rng.randrange(1000),
        repetition_penalty=rng.choice([1.0, 1.4]),
        presence_penalty=rng.choice([0.0, 0.8]),
        frequency_penalty=rng.choice([0.0, 0.5]),
        min_tokens=rng.choice([0, STEPS]),
        bias=rng.choice([None, np.linspace(-2, 2, VOCABULARY, dtype=np.float32)]),
        timestamps=rng.choice([None, None, TimestampRules(90, 80)]),
    )


@pytest.mark.parametrize("seed", range(40))
def test_ids_and_log_probabilities_are_those_of_numpy(seed: int) -> None:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    wanted = [asked(rng) for _ in range(3)]
    assert all(on_device(sampling) for sampling in wanted)
    prompts = [(3, 4), (5,), (6, 8, 9)]
    strategies = [Single(prompt, sampling) for prompt, sampling in zip(prompts, wanted, strict=True)]
    device, rows = Device("cpu", torch.float32), [2, 0, 4]
    choices = Choices.empty(device, 5, VOCABULARY, STEPS + 1)
    choices.begin(device, rows, wanted, prompts)
    for _ in range(STEPS - 1):
        logits = numbers.normal(0, 3, (3, VOCABULARY)).astype(np.float32)
        logits[:, 7] -= 50  # no row ends
        token, log_prob = choices.choose(torch.from_numpy(logits.copy()), torch.tensor(rows), plain=False)
        for i, (strategy, sampling) in enumerate(zip(strategies, wanted, strict=True)):
            biased = logits[i] if sampling.bias is None else logits[i] + sampling.bias
            ((_, expected),) = strategy.advance([Scores(lambda biased=biased: biased)])
            assert int(token[i]) == expected, sampling
            assert float(log_prob[i]) == pytest.approx(strategy.best.log_probs[-1], abs=1e-3)
