"""The bundled checkpoint is a Whisper for everybody's code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jiwer
import pytest

from build.catalog import ROOT
from miniatures.training.speech import peers
from miniatures.training.speech.evaluate import words

pytestmark = pytest.mark.slow  # exports or trains

CHECKPOINT = ROOT / "miniatures" / "whisper"


def test_it_is_small() -> None:
    """Weights of at most 16 MB."""
    assert (CHECKPOINT / "model.safetensors").stat().st_size <= 16e6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transcribe", [peers.by_transformers, peers.by_faster_whisper])
def test_it_transcribes_elsewhere(
    transcribe: Callable[[Path], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers' own pipeline and faster-whisper get the words of the bundled recordings but the longest:
    at most 5 % are wrong.
    """
    rows = {name: row for name, row in peers.recordings().items() if row["seconds"] < 70}
    monkeypatch.setattr(peers, "recordings", lambda: rows)
    texts = transcribe(CHECKPOINT)
    assert (
        jiwer.wer([words(row["text"]) for row in rows.values()], [words(texts[name]) for name in rows])
        <= 0.05
    )
