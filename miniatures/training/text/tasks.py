"""What the miniatures T5 and BART are asked: pairs of a source and the one right target, drawn at random for
either split.

T5's tasks have a prefix, but for filling gaps, which is marked by sentinels as in its pre-training. BART has
two and no prefix: a text with <mask> is restored, a text without is condensed to its headline. Only words
that can be told from the others are ever hidden.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from miniatures.training.speech.sentences import LEXICON, held_out
from miniatures.training.speech.sentences import draw as draw_speech

from .world import Draw, Sentence

TABLES = ("things", "foods", "animals", "places", "switches", "openings", "jobs", "colours")
NOUNS = sorted({row[0] for table in TABLES for row in LEXICON[table]})
HIDDEN_SHARE = 0.3
CHUNK = 1000


class Pair(NamedTuple):
    """What a model reads and what it is to write."""

    source: str
    target: str


class TaskSpan(NamedTuple):
    """Words start..stop of a sentence."""

    start: int
    stop: int


Task = Callable[[random.Random, bool], Pair]


def spans(rng: random.Random, sentence: Sentence) -> list[TaskSpan]:
    """Gaps of one to four words that can be told, apart from each other, over at most about a third of the
    sentence; at least one.
    """
    told, count = sentence.told, len(sentence.told)
    room, taken, out = max(1, round(HIDDEN_SHARE * count * rng.random())), [not known for known in told], []
    for start in rng.sample(range(count), count):
        stop = start
        wanted = min(room, rng.choice((1, 1, 2, 2, 3, 4)))
        while stop < count and stop - start < wanted and not taken[stop]:
            stop += 1
        if stop > start:
            out.append(TaskSpan(start, stop))
            taken[max(start - 1, 0) : stop + 1] = [True] * len(taken[max(start - 1, 0) : stop + 1])
            room -= stop - start
        if room < 1:
            break
    return sorted(out)


def replace(words: Sequence[str], gaps: Sequence[TaskSpan], marks: Sequence[str]) -> list[str]:
    """The words with each gap replaced by its mark."""
    out, at = [], 0
    for gap, mark in zip(gaps, marks, strict=True):
        out += [*words[at : gap.start], mark]
        at = gap.stop
    return out + list(words[at:])


def masked(rng: random.Random, sentence: Sentence) -> str:
    """Text infilling as in the BART paper (section 2.2): one <mask> for each gap; now and then another short
    word is just deleted.
    """
    words, gaps = sentence.text.split(" "), spans(rng, sentence)
    hidden = {i for gap in gaps for i in range(gap.start - 1, gap.stop + 1)}
    deletable = [
        i
        for i, known in enumerate(sentence.told)
        if known and i not in hidden and words[i].isalpha() and len(words[i]) <= 4
    ]
    marks = ["<mask>"] * len(gaps)
    if deletable and rng.random() < 0.2:
        gaps = sorted([*gaps, (gone := TaskSpan(i := rng.choice(deletable), i + 1))])
        marks.insert(gaps.index(gone), "")
    return " ".join(word for word in replace(words, gaps, marks) if word)


def restore(rng: random.Random, held: bool) -> Pair:
    """A single sentence with gaps."""
    sentence = Draw(rng).sentence(held=held)
    return Pair(masked(rng, sentence), sentence.text)


def restore_paragraph(rng: random.Random, held: bool) -> Pair:
    """A paragraph with gaps in some sentences, half of the time with its sentences in disorder."""
    paragraph = Draw(rng).paragraph(held=held)
    chosen = set(rng.sample(range(len(paragraph.sentences)), rng.randint(1, len(paragraph.sentences))))
    sentences = [
        masked(rng, sentence) if i in chosen else sentence.text
        for i, sentence in enumerate(paragraph.sentences)
    ]
    if rng.random() < 0.5:
        rng.shuffle(sentences)
    return Pair(" ".join(sentences), paragraph.text)


def condense(rng: random.Random, held: bool) -> Pair:
    """A paragraph and its headline."""
    paragraph = Draw(rng).paragraph(held=held)
    return Pair(paragraph.text, paragraph.headline)


def summarize(rng: random.Random, held: bool) -> Pair:
    """The same after T5's prefix."""
    pair = condense(rng, held)
    return Pair("summarize: " + pair.source, pair.target)


def to_spanish(rng: random.Random, held: bool) -> Pair:
    """A sentence of the miniature Whisper's world."""
    sentence = draw_speech(rng, held_out=held)
    return Pair("translate English to Spanish: " + sentence.en, sentence.es)


def to_english(rng: random.Random, held: bool) -> Pair:
    """The other way round; the split goes by the English sentence in both."""
    sentence = draw_speech(rng, held_out=held)
    return Pair("translate Spanish to English: " + sentence.es, sentence.en)


def sort_words(rng: random.Random, held: bool) -> Pair:
    """Three to eight nouns in the order of the alphabet."""
    return _sort(rng, held, NOUNS)


def sort_numbers(rng: random.Random, held: bool) -> Pair:
    """Three to eight numbers below a hundred in rising order."""
    return _sort(rng, held, [str(n) for n in range(100)])


def _sort(rng: random.Random, held: bool, ordered: Sequence[str]) -> Pair:
    while True:
        places = rng.sample(range(len(ordered)), rng.randint(3, 8))
        target = " ".join(ordered[i] for i in sorted(places))
        if held_out(target) == held:
            return Pair("sort: " + " ".join(ordered[i] for i in places), target)


def fill(rng: random.Random, held: bool) -> Pair:
    """T5's pre-training: each gap of a sentence is a sentinel, the target lists sentinels and what belongs
    there.
    """
    sentence = Draw(rng).sentence(held=held)
    words, gaps = sentence.text.split(" "), spans(rng, sentence)
    marks = [f"<extra_id_{i}>" for i in range(len(gaps) + 1)]
    hidden = (" ".join(words[gap.start : gap.stop]) for gap in gaps)
    filled = [f"{mark} {one}" for mark, one in zip(marks, hidden, strict=False)]
    return Pair(" ".join(replace(words, gaps, marks[:-1])), " ".join([*filled, marks[-1]]))


def document(rng: random.Random, held: bool) -> str:
    """A text for GPT-2: a paragraph, or a single sentence."""
    draw = Draw(rng)
    return draw.sentence(held=held).text if rng.random() < 0.4 else draw.paragraph(held=held).text


# The tasks of a model with their shares of its training.
TASKS: dict[str, dict[Task, float]] = {
    "t5": {
        summarize: 0.25,
        to_spanish: 0.22,
        to_english: 0.15,
        sort_words: 0.16,
        sort_numbers: 0.12,
        fill: 0.10,
    },
    "bart": {restore: 0.2, restore_paragraph: 0.45, condense: 0.35},
}


def chunk(model: str, seed: int) -> Sequence[tuple[str, ...]]:
    """CHUNK training examples that depend on the seed alone: pairs, or for GPT-2 documents as
    tuples of one.
    """
    rng = random.Random(seed)
    if model == "gpt2":
        return [(document(rng, False),) for _ in range(CHUNK)]
    tasks = TASKS[model]
    return [task(rng, False) for task in rng.choices(list(tasks), list(tasks.values()), k=CHUNK)]
