"""The generated world, the tasks over it, and the text miniatures' tokenizers and training."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoTokenizer,
    BartTokenizerFast,
    GPT2TokenizerFast,
    PreTrainedTokenizerBase,
    T5TokenizerFast,
)

from build.catalog import ROOT
from miniatures.training.course import Course
from miniatures.training.text import tasks
from miniatures.training.text.corpus import make_corpus
from miniatures.training.text.evaluate import Student, figures
from miniatures.training.text.grammar import is_paragraph, readings, sentences
from miniatures.training.text.models import GENERATION, SHAPES, new_model, pair_loss, save_weights
from miniatures.training.text.tasks import TASKS, document
from miniatures.training.text.train import Pairs, Stream, train
from miniatures.training.text.vocabulary import LENGTHS
from miniatures.training.text.world import WORLD, Draw, Sentence, WorldSlot, held_out, parts

pytestmark = pytest.mark.slow  # exports or trains

KINDS = {"t5": T5TokenizerFast, "bart": BartTokenizerFast, "gpt2": GPT2TokenizerFast}
ALL = [pytest.param(task, id=task.__name__) for model in TASKS.values() for task in model]


def tokenizer(model: str) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(ROOT / "miniatures" / model)


def texts(model: str, count: int = 40) -> list[str]:
    """Sources and targets, or documents, of the held-out part."""
    rng = random.Random(4)
    if model == "gpt2":
        return [document(rng, True) for _ in range(count)]
    return [text for task in TASKS[model] for _ in range(count) for text in task(rng, True)]


@pytest.mark.parametrize("task", ALL)
def test_no_question_of_the_test_is_in_training(task: tasks.Task) -> None:
    """The splits of every task are disjoint, in sources and, where one source has one target, in targets."""
    rng = random.Random(1)
    trained, tested = ({task(rng, held) for _ in range(1500)} for held in (False, True))
    assert not {pair.source for pair in trained} & {pair.source for pair in tested}
    if task is not tasks.fill:
        assert not {pair.target for pair in trained} & {pair.target for pair in tested}


def test_paragraphs_are_split_by_headline() -> None:
    """A held-out paragraph tells news of which no training paragraph tells; about a tenth of all news is held
    out.
    """
    draw = Draw(random.Random(2))
    assert all(
        held_out(draw.paragraph(held=held).headline) is held for held in (True, False) for _ in range(200)
    )
    assert 0.07 < sum(held_out(str(n)) for n in range(10_000)) / 10_000 < 0.13


def test_headlines_say_only_what_the_paragraph_says() -> None:
    """Every slot of a headline is in a sentence that is never left out, so that condensing has one right
    answer.
    """
    for name, kind in WORLD["kinds"].items():
        for slot in (part.name for part in parts(kind["headline"]) if isinstance(part, WorldSlot)):
            carriers = [
                all(
                    any(isinstance(p, WorldSlot) and p.name == slot for p in parts(say))
                    for say in stage["say"]
                )
                for stage in kind["stages"]
                if stage.get("must")
            ]
            assert any(carriers), f"{slot} of {name}"


def test_grammar_accepts_the_world() -> None:
    """Every sentence has exactly one reading, and every paragraph is whole, three to six sentences long."""
    draw = Draw(random.Random(3))
    for _ in range(300):
        assert len(readings(draw.sentence(held=True).text)) == 1
        paragraph = draw.paragraph(held=False)
        assert is_paragraph(paragraph.text), paragraph.text
        assert 3 <= len(sentences(paragraph.text)) <= 6


@pytest.mark.parametrize(
    "broken",
    [
        "Ada Bell lives in Norwick and works as baker.",
        "Ada Bell lives in Norwick and works as a baker",
        "Ada Bell forgot his keys at the zoo.",
        "Ada Bell lives in Paris and works as a baker.",
        "Ada Bell moved from Norwick to Norwick in May.",
        "Ada Bell bought 91 sacks of wool at the market of Norwick.",
        "Ada Bell bought 07 sacks of wool at the market of Norwick.",
        "",
    ],
)
def test_grammar_rejects_what_is_broken(broken: str) -> None:
    """A missing word or stop, a wrong pronoun, an unknown town, a repeated one, a number out of range."""
    assert not readings(broken)


def test_grammar_rejects_incoherent_paragraphs() -> None:
    """Sentences out of order, one left out, another name, another pronoun, or another kind of news."""
    lead, fact, reward = (
        "Near Norwick a team led by Ada Bell dug up a silver cup.",
        "The find is about 300 years old.",
        "For Bell it is the reward of a lifetime.",
    )
    assert is_paragraph(f"{lead} {fact} {reward}")
    assert is_paragraph(f"{lead} {fact} She could not sleep that night.")
    for text in (
        f"{fact} {lead} {reward}",
        f"{lead} {reward}",
        f"{lead} {fact} For Nash it is the reward of a lifetime.",
        f"{lead} {fact} He could not sleep that night.",
        f"{lead} {fact} All schools will be closed.",
        "",
    ):
        assert not is_paragraph(text), text


def test_gaps_hide_only_what_can_be_told() -> None:
    """Names, numbers and other facts stay; every gap is a mask or one short word, and what is left is in its
    order.
    """
    rng, draw = random.Random(5), Draw(random.Random(5))
    for _ in range(300):
        sentence = draw.sentence(held=False)
        words = sentence.text.split(" ")
        noised = tasks.masked(rng, sentence)
        assert "<mask>" in noised
        original = iter(words)
        assert all(word in original for word in noised.split(" ") if word != "<mask>"), noised
        facts = [word for word, told in zip(words, sentence.told, strict=True) if not told]
        assert [word for word in noised.split(" ") if word in facts and word != "a"] == [
            word for word in facts if word != "a"
        ]
        for gap in tasks.spans(rng, sentence):
            assert 0 < gap.stop - gap.start <= 4
            assert all(sentence.told[gap.start : gap.stop])


def test_a_second_mention_can_be_told() -> None:
    """A pronoun of somebody named before may be hidden, the name may not."""
    sentence = next(
        s
        for s in (Draw(random.Random(seed)).sentence(held=False) for seed in range(1000))
        if "forgot" in s.text
    )
    assert sentence == Sentence(
        sentence.text,
        (False, False, True, True, True, True, False, False, *[False] * (len(sentence.told) - 8)),
    )


def test_targets_are_right() -> None:
    """Sorted is sorted, gaps filled make the sentence, noise is always marked, and the original is restored
    whole.
    """
    rng = random.Random(6)
    for _ in range(200):
        source, target = tasks.sort_words(rng, False)
        assert sorted(source.removeprefix("sort: ").split()) == target.split()
        source, target = tasks.sort_numbers(rng, True)
        assert sorted(source.removeprefix("sort: ").split(), key=int) == target.split()
        source, target = tasks.fill(rng, True)
        for i, words in enumerate(re.split(r" ?<extra_id_\d+> ?", target)[1:-1]):
            source = source.replace(f"<extra_id_{i}>", words)
        assert readings(source), source
        source, target = tasks.restore_paragraph(rng, True)
        assert "<mask>" in source
        assert is_paragraph(target)
        source, target = tasks.condense(rng, True)
        assert "<mask>" not in source


def test_examples_depend_on_the_seed_alone() -> None:
    """Not on the number of processes that make them."""
    one, two = (
        make_corpus("bart", ROOT / "miniatures" / "bart", 2000, 1, workers=workers) for workers in (1, 2)
    )
    assert all(
        np.array_equal(a.ids, b.ids) and np.array_equal(a.starts, b.starts)
        for a, b in zip(one, two, strict=True)
    )
    assert (
        two[0].padded(np.array([0, 1999]), 1)[1, : two[0].lengths[1999]].tolist()
        == two[0].ids[two[0].starts[1999] :].tolist()
    )


@pytest.mark.parametrize("model", KINDS)
def test_tokenizers_round_trip(model: str) -> None:
    """transformers loads the right class; its ids are those of tokenizer.json; nothing the world says is lost
    or unknown.
    """
    theirs, plain = tokenizer(model), Tokenizer.from_file(str(ROOT / "miniatures" / model / "tokenizer.json"))
    assert isinstance(theirs, KINDS[model])
    assert len(theirs) == SHAPES[model]["vocab_size"] == plain.get_vocab_size()
    assert theirs.model_max_length == LENGTHS[model]
    for text in [*texts(model), "naïve café ½, two  blanks\nand a line", "Ｗｉｄｅ"]:
        assert theirs(text)["input_ids"] == plain.encode(text).ids
    for text in texts(model):
        ids = theirs(text)["input_ids"]
        assert len(ids) <= LENGTHS[model]
        assert model == "gpt2" or theirs.unk_token_id not in ids
        if "<" not in text:
            assert theirs.decode(ids, skip_special_tokens=True) == text


def test_special_tokens_are_where_their_relatives_have_them() -> None:
    """T5: pad 0, </s> 1, <unk> 2, sentinels counted from the end. BART: <s> 0, <pad> 1, </s> 2, <unk> 3,
    <mask> last. GPT-2: the last.
    """
    t5, bart, gpt2 = (tokenizer(model) for model in KINDS)
    names = ["<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_99>"]
    assert t5.convert_tokens_to_ids(names) == [0, 1, 2, len(t5) - 1, len(t5) - 100]
    assert t5("The <extra_id_0> lamp")["input_ids"][-1] == 1
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert bart.convert_tokens_to_ids(names) == [0, 1, 2, 3, len(bart) - 1]
    ids = bart("The <mask> lamp")["input_ids"]
    assert (ids[0], ids[-1], ids.count(len(bart) - 1)) == (0, 2, 1)
    assert ids == bart("The<mask> lamp")["input_ids"]
    assert gpt2.convert_tokens_to_ids("<|endoftext|>") == len(gpt2) - 1 == gpt2.eos_token_id
    assert len(gpt2("Norwick")["input_ids"]) >= 1 < len(gpt2("Zyxw Ωμ")["input_ids"])


def test_padding_carries_no_loss() -> None:
    """A wider batch has the same loss."""
    torch.manual_seed(0)
    source, target = torch.tensor([[5, 6, 7, 1]]), torch.tensor([[8, 9, 1]])
    model = new_model("t5").eval()
    wider = pair_loss(model, torch.nn.functional.pad(source, (0, 3)), torch.nn.functional.pad(target, (0, 2)))
    assert torch.allclose(pair_loss(model, source, target), wider, atol=1e-5)


@pytest.mark.parametrize("model", KINDS)
def test_a_few_steps_of_training(model: str, tmp_path: Path) -> None:
    """The loss is a number and falls; the folder has fp16 weights of at most 10 MB and a generation config of
    its kind.
    """
    source = Stream if model == "gpt2" else Pairs
    material = source.make(model, ROOT / "miniatures" / model, 1000, 1, "cpu")
    if isinstance(material, Stream):
        material.length = 32
    with (tmp_path / "log").open("w") as log:
        trained = train(model, Course(1, 8, 4, 2e-3, 60.0, "cpu"), material, tmp_path, log)
    assert all(torch.isfinite(parameter).all() for parameter in trained.parameters())
    first = new_model(model)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        before, after = (
            material.loss(m.eval(), 8, generator.manual_seed(2)).item() for m in (first, trained)
        )
    assert after < before
    save_weights(trained, model, tmp_path)
    assert (tmp_path / "model.safetensors").stat().st_size <= 10e6
    written = json.loads((tmp_path / "generation_config.json").read_text("utf-8"))
    assert {name: written[name] for name in GENERATION[model]} == GENERATION[model]


@pytest.mark.parametrize("name", ["t5", "bart", "gpt2"])
def test_checkpoints_reach_their_goals(name: str) -> None:
    """The weights in this repository, in plain transformers, on questions that are in no training text; at
    most 10 MB with the tokenizer.
    """
    folder = ROOT / "miniatures" / name
    assert sum(path.stat().st_size for path in folder.iterdir()) < 10e6
    for row in figures(Student(name, folder), 20):
        (what, value), goal = next(iter(row.items())), row.get("wanted", 0.0)
        assert value >= goal, f"{what} is {value}"
