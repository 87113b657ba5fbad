"""Sound to speakers: the filter bank against Kaldi's definition, both engines against each other, the
checkpoint's reader, and what is refused. The networks against their authors' code on real weights:
tests/stack/test_speakers.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from build.checkpoints.speakers import SEGMENTATION, VOICE, facts, load
from serving.architectures.speakers import FilterBank, Shape, Speakers
from serving.engine.encoding import SegmentationEndpoint, VoiceEndpoint
from speech.speakers.tuning import FRAMES, WINDOW
from tests.fakes.triton_python import UTILS, answers_of, request

from ..engines import encoder_of, export

pytestmark = pytest.mark.slow  # imports torch


def noise(*shape: int) -> NDArray[np.float32]:
    return (0.1 * np.random.default_rng(3).standard_normal(shape)).astype(np.float32)


def published(folder: Path) -> Path:
    """Random weights under the names of the published files, with the objects that lightning pickles."""
    torch.manual_seed(7)
    whole = Speakers(Shape())
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    renamed = {}
    for name, tensor in whole.segmentation.state_dict().items():
        kind, _, rest = name.partition(".")
        theirs = {"level": "sincnet.wav_norm1d", "convolutions": "sincnet.conv1d", "norms": "sincnet.norm1d"}
        renamed[f"{theirs.get(kind, kind)}.{rest}"] = tensor
    del renamed["sincnet.conv1d.0.weight"]
    prefix = "sincnet.conv1d.0.filterbank."
    renamed |= {
        prefix + "low_hz_": torch.linspace(30, 7000, 40)[:, None],
        prefix + "band_hz_": torch.full((40, 1), 60.0),
    }
    hostile = {"callbacks": Path("whatever"), "hook": Runs(str(folder / "unpickled"))}
    torch.save({"state_dict": renamed, **hostile}, folder / SEGMENTATION)
    voice = {
        name.replace("dense.", "xvector.dense."): t
        for name, t in whole.voice.state_dict().items()
        if name.startswith("dense.")
    }
    voice |= {name: t for name, t in whole.voice.state_dict().items() if not name.startswith("dense.")}
    torch.save(voice, folder / VOICE)
    return folder


class Runs:
    """What a hostile checkpoint would pickle."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.where,)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("published"))


def test_a_checkpoint_runs_nothing(weights: Path) -> None:
    load(weights)
    assert not (weights / "unpickled").exists()
    torch.load(weights / SEGMENTATION, weights_only=False)  # as the fixture means it
    assert (weights / "unpickled").exists()


def test_the_filter_bank_is_kaldis() -> None:
    """Frame by frame, as feature-fbank.cc computes it."""
    wav, found = noise(1, 5000), FilterBank()(torch.tensor(noise(1, 5000)))[0].numpy()
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
    edges = np.linspace(*(1127 * np.log1p(np.array([20.0, 8000.0]) / 700)), 82)
    bins = 1127 * np.log1p(np.arange(257) * 16000 / 512 / 700)
    rows = []
    for start in range(0, 5000 - 400 + 1, 160):
        frame = wav[0, start : start + 400].astype(np.float64)
        frame -= frame.mean()
        frame -= 0.97 * np.concatenate([frame[:1], frame[:-1]])
        power = np.abs(np.fft.rfft(frame * window, 512)) ** 2
        row = []
        for left, middle, right in zip(edges, edges[1:], edges[2:], strict=False):
            weight = np.minimum((bins - left) / (middle - left), (right - bins) / (right - middle)).clip(0)
            row.append(np.log((weight[:256] * power[:256]).sum()))
        rows.append(row)
    assert np.abs(found - (np.array(rows) - np.mean(rows, 0))).max() < 1e-3


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_engines_agree(weights: Path, tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("openvino", "torch")}
    for folder in folders.values():
        folder.mkdir()
    export("openvino", "speakers", weights, folders["openvino"])
    export("torch", "speakers", weights, folders["torch"])
    sounds = {"segmentation": noise(2, WINDOW), "voice": noise(2, 16_000)}
    for graph, wav in sounds.items():
        ours, theirs = (encoder_of(*one, graph).encode(wav=wav) for one in folders.items())
        assert np.abs(ours - theirs).max() < 1e-3
        assert ours.shape == ((2, FRAMES, 7) if graph == "segmentation" else (2, 192))


class Sums:
    """An encoder whose vector says what it was given together with."""

    facts = facts()

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def encode(self, wav: NDArray[np.float32]) -> NDArray[np.float32]:
        self.calls.append(wav.shape)
        found = np.zeros((len(wav), 192), np.float32)
        found[:, 0], found[:, 1] = wav.sum(1), wav.shape[1]
        return found


def test_voices_of_one_length_are_computed_together() -> None:
    encoder = Sums()
    endpoint: Any = VoiceEndpoint(encoder, UTILS)  # type: ignore[arg-type]
    sounds = [
        np.full((rows, length), value, np.float32)
        for rows, length, value in ((2, 16_000, 1e-3), (1, 32_000, 2e-3), (20, 16_000, 3e-3))
    ]
    answers = answers_of(endpoint, [request(WAV=wav) for wav in sounds])
    for wav, answer in zip(sounds, answers, strict=True):
        (vectors,) = answer.arrays.values()
        assert vectors[:, :2] == pytest.approx(np.array([[row.sum(), len(row)] for row in wav]), rel=1e-4)
    assert sorted(encoder.calls) == [(1, 32_000), (7, 16_000), (15, 16_000)]  # rounds of 16


@pytest.mark.parametrize(
    ("kind", "wav", "said"),
    [
        (SegmentationEndpoint, np.zeros((1, 100), np.float32), "it must have 160000"),
        (SegmentationEndpoint, np.full((1, WINDOW), np.nan, np.float32), "must be finite"),
        (VoiceEndpoint, np.zeros((1, 7_999), np.float32), "it must have 8000 to 160000"),
        (VoiceEndpoint, np.zeros((1, 160_001), np.float32), "it must have 8000 to 160000"),
        (VoiceEndpoint, np.full((1, 16_000), np.inf, np.float32), "must be finite"),
    ],
)
def test_what_is_refused(kind: Any, wav: NDArray[np.float32], said: str) -> None:
    good = np.zeros((1, WINDOW), np.float32)
    bad, fine = answers_of(kind(Sums(), UTILS), [request(WAV=wav), request(WAV=good)])
    assert said in bad.error.message
    assert fine.error is None
