"""What rules of speech/tuning.py pay: each switched off alone, on recordings that were not used to choose any
(other voices and texts, Spanish, German).

`python -m bench.quality.ablation transcribe` writes what was transcribed, rule by rule, and `table` the words
wrong and the utterances at whose beginning no segment begins. Interrupted, `transcribe` goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from speech.cutters import PauseCutter
from speech.options import Options
from speech.tuning import TUNING

from .recordings import Recording, Utterance, conditions, join, kept

HERE = Path(__file__).parent
EVERY = 10**6
# Each rule, and the values that switch it off.
RULES: dict[str, Mapping[str, Any]] = {
    "none": {},
    "speech goes on at a lower probability": {"speech_goes_on": TUNING.speech_begins},
    "holes in speech": {"hole_chunks": 0},
    "digital silence": {"loudness_floor": 0.0},
    "cuts at pauses": {"pause_chunks": EVERY},
    "long silences are shortened": {"kept_chunks": EVERY},
    "windows in turn": {"stretch": 0.0},
    "temperatures": {"temperatures": (0.0,)},
    "halves of what loops": {"splittable": inf},
    "no speech": {"no_speech_limit": 2.0},
    "windows that move on by little": {"least_seek": 0.0},
    "sentences are repeated": {"repeated_sentence": 0.0},
    "sentences that are cut": {"cut_sentence": 0.0},
    "speech without words": {"lost_speech": inf},
    "words that are close": {"close_words": 0.0},
    "slivers": {"sliver": 0.0},
    "segments are cut at silence": {"cut_silence": inf},
    "and after sentences": {"sentence_silence": inf},
    "margins of a voice": {"voice_margin": 0.0},
    "times of words": {"stray_voice": inf},
    "holes in a voice": {"hole_frames": EVERY},
    "closures": {"stop_frames": 1},
    "overlap": {"overlap_frames": 0},
    "pauses around an end": {"around_end": (0.0, 0.0)},
    "quietest sound around an end": {"quietest_around": (0.01, 0.01)},
    "edges": {"segment_edge": 0.0},
}
OPTIONS = Options(task="transcribe", language=None, prompt="", temperature=0.0, timestamps=True, words=True)
# Kind: language, condition, pauses in seconds.
KINDS = {
    "clean": ("en", "clean", (0.2, 3.0)),
    "noise at 12 dB, short pauses": ("en", "noise at 12 dB", (0.05, 0.2)),
    "long pauses": ("en", "clean", (8.0, 20.0)),
    "music at 15 dB": ("en", "music at 15 dB", (0.2, 3.0)),
    "telephone": ("en", "telephone", (0.2, 3.0)),
    "Spanish": ("es", "clean", (0.2, 3.0)),
    "German": ("de", "noise at 20 dB", (0.05, 1.0)),
}
TEXTS = {"en": "conversation.txt", "es": "spanish.txt", "de": "german.txt"}


def utterances(weights: Path, language: str) -> list[Utterance]:
    """Return the sentences of a language, each in the next voice; German has voices of other languages."""
    from .conversations import JUDGED, say

    voices = {"en": JUDGED, "es": ("ef_dora", "em_alex", "em_santa"), "de": ("ff_siwis", "am_michael")}
    cache, spoken = weights / "voices" / "ablation", []
    for i, text in enumerate((HERE / TEXTS[language]).read_text("utf-8").splitlines()):
        voice, accent = voices[language][i % len(voices[language])], {"en": "en-us"}.get(language, language)
        voiced = partial(say, weights, text, voice, 0.9 + i % 5 * 0.05, accent)
        spoken.append(Utterance(text, kept(cache / f"{language}-{i}.npy", voiced)))
    return spoken


def recordings(weights: Path, orders: range) -> Iterator[tuple[str, int, Recording]]:
    """Yield kind, order, and recording."""
    spoken = {language: utterances(weights, language) for language in TEXTS}
    for order in orders:
        for number, (kind, (language, condition, pauses)) in enumerate(KINDS.items()):
            parts = random.Random(31 + order).sample(spoken[language], len(spoken[language]))
            clean = join(parts, pauses, 1000 + order * len(KINDS) + number)
            yield kind, order, replace(clean, wave=conditions(50 + order)[condition](clean.wave))


def _run(given: argparse.Namespace, names: list[str]) -> None:
    """Transcribe everything with each of these rules off, in this process."""
    from .direct import Direct

    every = list(recordings(given.weights, given.orders))
    direct = Direct(given.engines / given.model_id / given.target)
    for name in names:
        for field, value in RULES[name].items():
            object.__setattr__(TUNING, field, value)

        def transcribed(one: tuple[str, int, Recording]) -> dict[str, Any]:
            kind, order, recording = one
            options = replace(OPTIONS, language=KINDS[kind][0])
            found = direct.transcript(recording.wave, options, PauseCutter())
            starts = [segment.start for segment in found.segments]
            return {"kind": kind, "order": order, "text": found.text, "starts": starts}

        direct.asked = 0
        with ThreadPoolExecutor(given.at_once) as pool:
            rows = list(pool.map(transcribed, every))
        path = given.out / f"{name}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"requests": direct.asked, "rows": rows}), "utf-8")
        partial.replace(path)
        print(name, direct.asked, flush=True)
        for field in RULES[name]:
            object.__setattr__(TUNING, field, getattr(type(TUNING)(), field))
    direct.close()


def transcribe(given: argparse.Namespace) -> None:
    """Transcribe with each rule off that has no file yet, in several processes."""
    given.out.mkdir(parents=True, exist_ok=True)
    names = [name for name in RULES if not (given.out / f"{name}.json").exists()]
    shares = [names[number :: given.processes] for number in range(given.processes)]
    with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
        for done in [pool.submit(_run, given, share) for share in shares if share]:
            done.result()


def table(given: argparse.Namespace) -> None:
    """Print, for each rule and kind, the percentage of words wrong and of utterances without a segment that
    begins within `--within` seconds of them, and how both differ from those with every rule.
    """
    from .scores import Score, score

    references = {(kind, order): one for kind, order, one in recordings(given.weights, given.orders)}
    print("| off | requests |", " | ".join((*KINDS, "all")), "|")
    print("|" + "---|" * (len(KINDS) + 3))
    base: dict[str, tuple[float, float]] = {}
    for name in RULES:
        if not (given.out / f"{name}.json").exists():
            continue
        found = json.loads((given.out / f"{name}.json").read_text("utf-8"))
        words, late = defaultdict[str, Score](Score), defaultdict[str, list[bool]](list)
        for row in found["rows"]:
            recording = references[row["kind"], row["order"]]
            begins = np.array(row["starts"] or [inf])
            own = score(recording.text, row["text"], language=KINDS[row["kind"]][0])
            for kind in (row["kind"], "all"):
                words[kind] += own
                late[kind] += [
                    bool(np.abs(begins - start).min() > given.within) for start in recording.starts
                ]
        rates = {kind: (words[kind].rate, 100 * float(np.mean(late[kind]))) for kind in words}
        base = base or rates
        cells = [
            f"{rates[kind][0]:.2f}, {rates[kind][1]:.1f}"
            if rates is base
            else f"{rates[kind][0] - base[kind][0]:+.2f}, {rates[kind][1] - base[kind][1]:+.1f}"
            for kind in (*KINDS, "all")
        ]
        print(f"| {name} | {found['requests']} |", " | ".join(cells), "|")


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality.ablation", description=__doc__)
    parser.add_argument("command", choices=("transcribe", "table"))
    parser.add_argument("--model-id", default="base")
    parser.add_argument("--target", default="openvino")
    parser.add_argument("--engines", type=Path, default=Path("engines"))
    parser.add_argument("--weights", type=Path, default=Path("weights"))
    parser.add_argument("--out", type=Path, default=Path("ablation"))
    parser.add_argument("--orders", type=int, default=7)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4, help="recordings of a process")
    parser.add_argument("--within", type=float, default=0.3, help="seconds")
    given = parser.parse_args()
    given.orders = range(given.orders)
    transcribe(given) if given.command == "transcribe" else table(given)


if __name__ == "__main__":
    main()
