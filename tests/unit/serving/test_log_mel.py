"""Features are OpenAI's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from serving.audio.log_mel import frames_of, log_mel
from serving.engine.torch.device import Device
from serving.engine.torch.log_mel import LogMel
from serving.errors import BadRequest

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


@pytest.mark.parametrize(
    ("samples", "lengths", "frames"),
    [
        (16_000, (), 100),  # zero_pad: one frame per 10 ms, even
        (16_001, (), 102),
        (1, (), 2),
        (16_000, (3000,), 3000),
        (16_000, (1000, 3000), 1000),
        (128_000, (1000, 3000), 1000),
        (128_001, (1000, 3000), 3000),
        (470_000, (1000, 2000, 3000), 3000),
        (480_000, (1000, 3000), 3000),
    ],
)
def test_frames(samples: int, lengths: tuple[int, ...], frames: int) -> None:
    assert frames_of(samples, lengths) == frames
    assert log_mel(np.zeros(samples, np.float32), 80, frames).shape == (frames, 80)


def test_over_thirty_seconds_is_refused() -> None:
    """The message says how long it was and what to do."""
    with pytest.raises(BadRequest, match=r"30\.00 s exceeds the 30 s"):
        frames_of(480_001)
