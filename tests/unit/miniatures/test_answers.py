"""What mini-llava and mini-blip2 are asked, and that training and transformers compute the same."""

from __future__ import annotations

import io
import json
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from miniatures.training.answers.pictures import ALL, drawn
from miniatures.training.answers.questions import questions
from miniatures.training.pictures.scenes import Scene, Thing

TWO = Scene(
    "two",
    "blue",
    "a red star at the right and a green ring at the top",
    "",
    (Thing("star", "red", 5, 25.0), Thing("ring", "green", 1, 25.0)),
)
LEFT = Scene(
    "relation",
    "white",
    "a red star right of a green ring",
    "",
    (Thing("star", "red", 5, 25.0), Thing("ring", "green", 3, 25.0)),
)


def asked(scene: Scene, draws: int = 4000) -> dict[str, set[str]]:
    """Answers by their questions."""
    found: dict[str, set[str]] = {}
    for one in islice(questions(scene, Random(1)), draws):
        found.setdefault(one.text, set()).add(one.answer)
    return found


def test_a_question_has_one_answer() -> None:
    """Of every scene, whatever is asked of it."""
    rng = Random(4)
    for number in range(60):
        scene, _ = drawn(rng, ALL[number % len(ALL)], held=True)
        assert {len(answers) for answers in asked(scene).values()} == {1}, scene


def test_what_is_right() -> None:
    """Colours, places, counts, what is not there, and descriptions in one order."""
    found = asked(TWO, 40_000)
    expected = {
        "what colour is the star?": "red",
        "where is the green ring?": "at the top",
        "how many shapes are there?": "two",
        "what color is the heart?": "there is no heart",
        "is there a red star?": "yes",
        "is there a red ring?": "no",
        "is there not a red shape?": "no",
        "is no blue shape present?": "yes",
        "what color is the background?": "blue",
        "describe the picture.": "a green ring at the top and a red star at the right on a blue background",
    }
    assert {text: found[text] for text in expected} == {text: {answer} for text, answer in expected.items()}
    related = asked(LEFT)
    assert related["what is right of the green ring?"] == {"a red star"}
    assert related["describe the picture."] == {"a green ring left of a red star on a white background"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llava", "blip2"])
def test_training_computes_what_transformers_does(kind: str, tmp_path: Path) -> None:
    """Embeddings with a picture's rows in place give transformers' own logits."""
    import numpy as np
    import torch
    from transformers import AutoModelForImageTextToText

    from miniatures.training.answers.corpus import dialogue, tokenizer_of
    from miniatures.training.answers.models import decoder_of, embedded, new_model, rows_of
    from miniatures.training.answers.pictures import small
    from miniatures.training.answers.train import save
    from miniatures.training.answers.vocabulary import make_tokenizer
    from miniatures.training.pictures.train import normalized

    make_tokenizer(kind, tmp_path)
    tokenizer = tokenizer_of(tmp_path)
    model = new_model(kind, tokenizer).half().float().eval()
    save(kind, model, tmp_path)
    scene, picture = drawn(Random(2), "two", held=False)
    ids, targets = dialogue(kind, tokenizer, scene, Random(3))
    assert len(ids) == len(targets)
    assert [i for i in targets if i >= 0].count(tokenizer.token_to_id("</s>")) > 3
    pictures = torch.from_numpy(np.asarray(small(picture))[None].copy())
    placeholder = tokenizer.token_to_id("<image>")
    body, head = decoder_of(model)
    with torch.no_grad():
        rows = rows_of(model, pictures)
        made = embedded(model, torch.tensor([ids]), rows, placeholder)
        ours = head(body(inputs_embeds=made).last_hidden_state)
        at = ids.index(placeholder)
        whole = torch.tensor([[*ids[:at], *[placeholder] * rows.shape[1], *ids[at + 1 :]]])
        theirs = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float32).eval()
        logits = theirs(
            input_ids=whole, pixel_values=normalized(pictures), attention_mask=torch.ones_like(whole)
        ).logits
    assert torch.allclose(ours, logits, atol=1e-4)


@pytest.mark.slow
def test_a_few_steps_of_training(tmp_path: Path) -> None:
    """Every weight has learnt, and dialogues of a second epoch are other ones."""
    import torch

    from miniatures.training.answers.corpus import CHUNK, make_corpus, tokenizer_of
    from miniatures.training.answers.models import new_model
    from miniatures.training.answers.train import Dialogues, train
    from miniatures.training.answers.vocabulary import make_tokenizer
    from miniatures.training.course import Course

    make_tokenizer("blip2", tmp_path)
    corpus = make_corpus("blip2", tmp_path, CHUNK, 1, workers=1)
    log, course = io.StringIO(), Course(1, 3, 4, 1e-3, 60, "cpu", log_every=1)
    model = train("blip2", course, corpus, tmp_path, log, workers=1)
    assert [json.loads(line)["step"] for line in log.getvalue().splitlines()] == [1, 2, 3]
    torch.manual_seed(course.seed)
    before = new_model("blip2", tokenizer_of(tmp_path)).state_dict()
    same = [name for name, one in model.named_parameters() if one.requires_grad and one.equal(before[name])]
    assert not same
    dialogues, random = Dialogues("blip2", corpus, tmp_path, 1, workers=1), torch.Generator().manual_seed(1)
    first, second = (dialogues.batch(CHUNK, random) for _ in range(2))
    dialogues.close()
    assert dialogues.epoch == 2
    for epoch in (first, second):
        assert sorted(epoch[0].tolist()) == list(range(CHUNK))
    order = [torch.argsort(chosen) for chosen, _, _ in (first, second)]
    assert first[1][order[0]].equal(torch.from_numpy(corpus.ids).long())
    assert not second[1][order[1]].equal(first[1][order[0]])


def test_kinds() -> None:
    """Every kind of question is asked."""
    rng, kinds = Random(1), set[str]()
    for kind in ALL:
        kinds |= {one.kind for one in islice(questions(drawn(rng, kind, held=False)[0], rng), 200)}
    assert kinds == {
        "background", "description", "presence", "colour", "not there", "shape", "size", "place", "count",
        "relation", "number", "word",
    }  # fmt: skip
