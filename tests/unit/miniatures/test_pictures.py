"""The generated pictures, their captions, and what training writes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from transformers import CLIPModel

from build.checkpoints import clip
from miniatures.training.course import Course
from miniatures.training.pictures.corpus import CHUNK, make_corpus
from miniatures.training.pictures.drawing import CANVAS, draw
from miniatures.training.pictures.museum import museum, recall
from miniatures.training.pictures.scenes import COLOURS, KINDS, scene
from miniatures.training.pictures.train import SIZE, contrast, normalized, save, train, vectors
from miniatures.training.pictures.vocabulary import make_tokenizer

pytestmark = pytest.mark.slow  # trains


@pytest.mark.parametrize("kind", KINDS)
def test_scenes(kind: str) -> None:
    """Held back or not as asked; what is drawn is seen, and the seed alone decides it."""
    for held in (True, False):
        rng, again = Random(5), Random(5)
        for _ in range(20):
            drawn = scene(rng, kind, held=held)
            assert drawn.held == held
            assert drawn == scene(again, kind, held=held)
            assert drawn.ground in drawn.caption
            picture, same = draw(drawn, rng), draw(drawn, again)
            assert picture.size == (CANVAS, CANVAS)
            assert picture.tobytes() == same.tobytes()
            colours = np.unique(np.asarray(picture).reshape(-1, 3), axis=0)
            assert len(colours) >= 2
            for colour in (drawn.ground, *(thing.colour for thing in drawn.things)):
                assert np.abs(colours - np.array(COLOURS[colour])).max(1).min() <= 12, colour


def test_the_museum_is_new_and_always_the_same() -> None:
    exhibits = museum()
    captions = {one.caption for one in exhibits}
    assert len(captions) == len(exhibits) == 600
    again = museum()
    assert all(
        a.picture.tobytes() == b.picture.tobytes() for a, b in zip(exhibits[::50], again[::50], strict=True)
    )
    rng = Random(1)
    seen = {scene(rng, kind, held=False).caption for kind in KINDS for _ in range(2000)}
    assert not captions & seen


def test_recall_counts() -> None:
    pictures, texts = np.eye(4, dtype=np.float32), np.eye(4, dtype=np.float32)[[0, 1, 3, 3]]
    assert recall(pictures, texts) == (0.75, 0.5)


def test_equal_captions_are_not_wrong() -> None:
    """Of two rows with the same words neither is told from the other."""
    vectors = torch.nn.functional.normalize(
        torch.randn(3, 8, generator=torch.Generator().manual_seed(1)), dim=1
    )
    ids = torch.tensor([[1, 2], [1, 2], [3, 4]])
    scale = torch.tensor(3.0)
    assert contrast(vectors[[0, 0, 2]], vectors[[0, 0, 2]], scale, ids) < 0.5
    assert contrast(vectors[[0, 0, 2]], vectors[[0, 0, 2]], scale, torch.arange(6).view(3, 2)) > 0.4


def test_training_writes_a_clip(tmp_path: Path) -> None:
    """Two steps; transformers' CLIPModel and our own loader read the same from it."""
    tokenizer = make_tokenizer(tmp_path)
    assert tokenizer.get_vocab_size() <= 900
    corpus = make_corpus(tmp_path, CHUNK, SIZE, 3, workers=1)
    assert (corpus.ids == make_corpus(tmp_path, CHUNK, SIZE, 3, workers=1).ids).all()
    assert corpus.ids.max() == tokenizer.get_vocab_size() - 1
    assert (corpus.ids[:, -1] == corpus.ids.max()).all()  # no caption is cut
    log = io.StringIO()
    model = train(Course(1, 2, 8, 1e-3, 60, "cpu"), corpus, tmp_path, log)
    save(model, tmp_path)
    assert json.loads(log.getvalue().splitlines()[-1])["step"] == 2
    assert (tmp_path / "model.safetensors").stat().st_size < 16e6
    ours, theirs = clip.load(tmp_path), CLIPModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    pictures, ids = torch.from_numpy(corpus.pictures[:4]), torch.from_numpy(corpus.ids[:4]).long()
    with torch.no_grad():
        seen, read = vectors(theirs, pictures, ids)
        torch.testing.assert_close(ours.picture(normalized(pictures)), seen, atol=1e-5, rtol=0)
        torch.testing.assert_close(ours.text(ids, torch.ones_like(ids)), read, atol=1e-5, rtol=0)
