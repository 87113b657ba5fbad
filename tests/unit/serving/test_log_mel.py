"""Features are OpenAI's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from serving.audio.log_mel import AudioTooLong, log_mel
from serving.engine.torch.device import Device
from serving.engine.torch.log_mel import LogMel

pytestmark = pytest.mark.slow  # imports torch and transformers


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("samples", [1, 160, 300, 16_000, 160_007, 479_999, 480_000])
@pytest.mark.parametrize("kind", ["noise", "tone", "silence"])
def test_equal_to_transformers(mels: int, samples: int, kind: str) -> None:
    """At most 2e-4 (float32 FFTs differ with the processor) away from transformers' extractor, whatever the
    length.
    """
    random = np.random.default_rng(samples)
    tone = np.sin(np.arange(samples) * 0.3)
    wave = {"noise": 0.1 * random.standard_normal(samples), "tone": tone, "silence": np.zeros(samples)}[
        kind
    ].astype(np.float32)
    theirs = (
        WhisperFeatureExtractor(feature_size=mels)(wave, sampling_rate=16_000, return_tensors="np")
        .input_features[0]
        .T
    )
    assert np.abs(log_mel(wave, mels) - theirs).max() <= 2e-4
    padded = np.pad(wave, (0, 480_000 - samples))
    ours = LogMel(Device("cpu", torch.float32), mels)(torch.from_numpy(np.stack([padded, padded[::-1]])))
    assert np.abs(ours[0].numpy() - theirs).max() <= 2e-4


def test_unpadded_is_as_long_as_the_sound() -> None:
    """zero_pad: one frame per 10 ms, even."""
    assert log_mel(np.zeros(16_000, np.float32), 80, pad=False).shape == (100, 80)
    assert log_mel(np.zeros(16_001, np.float32), 80, pad=False).shape == (102, 80)
    assert log_mel(np.zeros(1, np.float32), 80, pad=False).shape == (2, 80)


def test_over_thirty_seconds_is_refused() -> None:
    """The message says how long it was and what to do."""
    with pytest.raises(AudioTooLong, match=r"30\.00 s exceeds the 30 s"):
        log_mel(np.zeros(480_001, np.float32), 80)
