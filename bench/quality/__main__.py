"""`make evaluate-real`: how well real weights transcribe real speech here, compared with faster-whisper on
the same weights.

Prints, for each recording and mode, the word error rate, deleted words, utterances lost, requests and CPU
seconds; then pairs of utterances, and what precision costs. Exit status 1 if a goal is missed, 2 where
there is no engine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from faster_whisper import WhisperModel
from numpy.typing import NDArray

from conch.whisper import text_prefix
from speech.cutters import PauseCutter, TurnCutter
from speech.options import Options
from speech.transcript import Transcript
from speech.vad import TurnDetection
from speech.windows import Window

from .direct import Direct
from .exact import exact_bundle
from .peer import peer_folder
from .recordings import Recording, Utterance, clicks, conditions, jfk, join, more, music, pink, utterances
from .reference import Transformers, apart, openai_model, openai_words
from .scores import Score, lost, score

PLAIN = Options(task="transcribe", language="en", prompt="", temperature=0.0, timestamps=False)
MODES = {
    "json": PLAIN,
    "verbose_json": replace(PLAIN, timestamps=True),
    "words": replace(PLAIN, timestamps=True, words=True),
    "conditioned": replace(PLAIN, previous_text=True),
    "beam 5": replace(PLAIN, beam_width=5),
}
PEERS = {
    "greedy": {"beam_size": 1, "condition_on_previous_text": False},
    "VAD, beam 5": {"beam_size": 5, "vad_filter": True},
}
MARGIN, MOST_DELETED = 0.3, 0.5  # points above the peer's best rate; percent of words
APART = 0.08  # seconds between a word's times here and openai/whisper's, at the median

Sound = NDArray[np.float32]


@dataclass
class Report:
    """Lines as they are measured, and the goals that were missed."""

    missed: list[str] = field(default_factory=list)

    def line(self, *parts: object) -> None:
        """Print one."""
        print(*parts, flush=True)

    def goal(self, what: str, *, met: bool) -> None:
        """Record one."""
        if not met:
            self.missed.append(what)
            self.line("MISSED", what)


def recordings(spoken: list[Utterance], order: int = 0) -> Iterator[tuple[str, Recording]]:
    """Yield name and recording: pauses from none to long, noise, music, telephone. `order` determines
    utterances, pauses and noise.
    """
    spoken, harder = random.Random(3 + order).sample(spoken, len(spoken)), conditions(7 + order)
    kinds = [
        ("clean", (0.2, 3)),
        ("noise at 20 dB", (0.2, 3)),
        ("noise at 12 dB", (0.05, 0.2)),
        ("clean", (8, 20)),
        ("music at 15 dB", (0.2, 3)),
        ("telephone", (0.2, 3)),
    ]
    for seed, (name, pauses) in enumerate(kinds, 1 + len(kinds) * order):
        clean = join(spoken, pauses, seed)
        yield f"{name}, pauses {pauses[0]}-{pauses[1]} s", replace(clean, wave=harder[name](clean.wave))


def text_of(mode: str, found: Transcript) -> str:
    """Return what a client of the mode reads."""
    if mode == "words":
        return " ".join(word.text for word in found.words)
    return " ".join(segment.text for segment in found.segments) if mode == "verbose_json" else found.text


def long_recordings(
    report: Report, direct: Direct, peer: WhisperModel, spoken: list[Utterance], orders: int
) -> None:
    """Measure the table of recordings and modes; goals are judged over all orders of the utterances."""
    theirs, ours = defaultdict[tuple[str, str], Score](Score), defaultdict[tuple[str, str], Score](Score)
    for name, recording in (found for order in range(orders) for found in recordings(spoken, order)):
        report.line(f"\n{name}: {len(recording.wave) / 16000:.0f} s")
        for mode, chosen in PEERS.items():
            started = time.process_time()
            segments = peer.transcribe(recording.wave, language="en", **chosen)[0]
            found = score(recording.text, " ".join(segment.text for segment in segments))
            report.line(f"  faster-whisper {mode:14} {found}  {time.process_time() - started:6.1f} CPU s")
            for kind in (name, "all"):
                theirs[kind, mode] += found
        for mode, options in MODES.items():
            started, direct.asked = time.process_time(), 0
            text = text_of(mode, direct.transcript(recording.wave, options, PauseCutter()))
            found, gone = score(recording.text, text), lost([one.text for one in recording.utterances], text)
            report.line(
                f"  conch {mode:23} {found}  {time.process_time() - started:6.1f} CPU s  {direct.asked} "
                f"requests, {len(gone)} utterances lost"
            )
            for kind in (name, "all"):
                ours[kind, mode] += found
    for kind in dict.fromkeys(kind for kind, _ in ours):
        report.line(f"\n{kind}, {orders} x: {theirs[kind, next(iter(PEERS))].words} words")
        for mode in PEERS:
            report.line(f"  faster-whisper {mode:14} {theirs[kind, mode]}")
        best = min(theirs[kind, mode].rate for mode in PEERS)
        for mode in MODES:
            own = ours[kind, mode]
            report.line(f"  conch {mode:23} {own}")
            wrong = f"{kind}, {mode}: {own.rate:.2f} % against {best:.2f} %"
            report.goal(wrong, met=own.rate <= best + MARGIN)
            report.goal(f"{kind}, {mode}: {own.lost:.2f} % deleted", met=own.lost <= MOST_DELETED)


def pairs(report: Report, direct: Direct, spoken: list[Utterance], count: int = 42) -> None:
    """Check two utterances two seconds apart: none is lost in any format, and offsets are right."""
    rng, short = np.random.default_rng(5), [one for one in spoken if len(one.wave) < 13 * 16_000]
    gone, offsets = 0, []
    for seed in range(count):
        recording = join([short[i] for i in rng.choice(len(short), 2, replace=False)], (2, 2), seed)
        found = direct.transcript(recording.wave, MODES["words"], PauseCutter())
        texts = [text_of(mode, found) for mode in ("json", "verbose_json", "words")]
        gone += any(lost([one.text for one in recording.utterances], text) for text in texts)
        begins = np.array([segment.start for segment in found.segments])
        offsets += [float(np.abs(begins - start).min()) for start in recording.starts]
    report.line(
        f"\n{count} pairs 2 s apart: {gone} with an utterance lost; beginnings off by "
        f"{np.median(offsets):.2f} s at the median, {max(offsets):.2f} s at most"
    )
    report.goal(f"pairs: {gone} lose an utterance", met=not gone)
    report.goal(f"pairs: a beginning is off by {max(offsets):.2f} s", met=max(offsets) <= 0.3)


def hour(report: Report, direct: Direct, spoken: list[Utterance], seconds: float = 3600) -> None:
    """Measure one file that repeats all utterances, each time in another order. The peer is measured on the
    shorter recordings only.
    """
    rng, parts = random.Random(8), list[Utterance]()
    while sum(len(one.wave) / 16_000 + 1.6 for one in parts) < seconds:
        parts += rng.sample(spoken, len(spoken))
    recording = join(parts, (0.2, 3), 8)
    started, direct.asked = time.process_time(), 0
    found = direct.transcript(recording.wave, MODES["words"], PauseCutter())
    rate, gone = score(recording.text, found.text), lost([one.text for one in parts], found.text)
    report.line(
        f"\none file of {len(recording.wave) / 16_000:.0f} s: {rate}, {time.process_time() - started:.0f} "
        f"CPU s, {direct.asked} requests, {len(gone)} utterances lost"
    )
    for what, times in (("segment", found.segments), ("word", found.words)):
        begins = np.array([one.start for one in times] or [np.inf])
        offsets = [float(np.abs(begins - start).min()) for start in recording.starts]
        late = sum(at > 0.3 for at in offsets)
        report.line(
            f"  a {what} begins {np.median(offsets):.2f} s from an utterance's beginning at the median, over "
            f"0.3 s in {late} of {len(offsets)}"
        )
    report.goal(f"one file: {len(gone)} utterances lost", met=not gone)
    report.goal(f"one file: {rate.lost:.2f} % deleted", met=rate.lost <= MOST_DELETED)


def no_speech(report: Report, direct: Direct) -> None:
    """Check that silence, noise, music and clicks of any length produce no words, and cost at most five times
    a clip of speech.
    """
    started = time.process_time()
    direct.transcript(jfk().wave, PLAIN, PauseCutter())
    speech = time.process_time() - started
    sounds = {
        "silence": np.zeros(400_000),
        "pink noise": 0.1 * pink(400_000, 3),
        "music": 0.2 * music(400_000, 3),
        "clicks": clicks(20),
    }
    sounds |= {f"a second of {name}": wave[:16_000] for name, wave in sounds.items()}
    for name, wave in sounds.items():
        direct.asked, started = 0, time.process_time()
        text = direct.transcript(wave.astype(np.float32), replace(PLAIN, language=None), PauseCutter()).text
        spent = time.process_time() - started
        report.line(f"{name}: {text!r}, {direct.asked} requests, {spent:.2f} CPU s; jfk.flac {speech:.2f}")
        report.goal(f"{name} gives words", met=not text)
        report.goal(f"{name} takes {spent:.1f} CPU s, speech {speech:.1f}", met=spent <= 5 * speech)


def live(report: Report, direct: Direct) -> None:
    """Check turns as a live session detects them, each with its words: every word of a real speaker, clean
    and in noise, and no other turn.
    """
    whole = jfk()
    noisy = conditions(7)["noise at 12 dB"](whole.wave)
    for name, wave in {"jfk.flac": whole.wave, "jfk.flac at 12 dB": noisy}.items():
        cutter, texts, spent = TurnCutter(TurnDetection(silence=0.5)), list[str](), list[float]()
        silence = 1e-4 * np.random.default_rng(1).standard_normal(16_000).astype(np.float32)
        found = [*cutter.feed(np.concatenate([wave, silence])), *cutter.finish()]
        turns = [turn for turn in found if turn.speech]
        for turn in turns:
            started = time.monotonic()
            texts.append(direct.transcript(turn.wave, PLAIN, TurnOver(turn)).text)
            spent.append(time.monotonic() - started)
        rate = score(whole.text, " ".join(texts))
        report.line(
            f"{name}, live: {rate}, {len(turns)} turns, the words of one after {max(spent):.2f} s at most"
        )
        for turn, text in zip(turns, texts, strict=True):
            report.line(f"  {turn.start:.2f} to {turn.start + turn.seconds:.2f} s: {text}")
        report.goal(f"{name}, live: {rate.rate:.1f} % of the words are wrong", met=rate.rate <= 10)
        report.goal(f"{name}, live: a turn has no words", met=all(texts))


@dataclass
class TurnOver:
    """Cuts nothing: returns the one turn."""

    turn: Window

    def feed(self, block: Sound) -> Iterator[Window]:
        """Return nothing yet."""
        yield from ()

    def finish(self) -> Iterator[Window]:
        """Return the turn."""
        yield self.turn


def precisions(report: Report, bundle: Path, exact: Path, spoken: list[Utterance]) -> None:
    """Measure what int8 weights and the processor's own precision cost compared with 32 bits."""
    recording = dict(recordings(spoken))["noise at 20 dB, pauses 0.2-3 s"]
    modes, rates = ("json", "conditioned"), {}
    for folder, precision in ((bundle, None), (exact, "f32")):
        direct = Direct(folder, precision)
        for mode in modes:
            found = score(recording.text, direct.transcript(recording.wave, MODES[mode], PauseCutter()).text)
            rates[precision, mode] = found.rate
            report.line(f"{'weights in 32 bits' if precision else 'as served'}, {mode}: {found}")
        direct.close()
    for mode in modes:
        cost = rates[None, mode] - rates["f32", mode]
        report.goal(f"precision costs {cost:.2f} points, {mode}", met=cost <= MARGIN)


def ids(report: Report, exact: Path, weights: Path, spoken: list[Utterance], most: int = 12) -> None:
    """Check that ids of short clips in 32 bits are transformers': greedy with timestamps, greedy and five
    beams without.
    """
    direct = Direct(exact, "f32")
    direct.whisper.lengths = direct.whisper.lengths[-1:]
    theirs = Transformers(weights, direct.whisper)
    for name, timestamps, beams in (("greedy, times", True, 1), ("greedy", False, 1), ("beam 5", False, 5)):
        prefix, other = text_prefix("transcribe", "en", timestamps=timestamps), 0
        for one in spoken[:most]:
            arrays = {"WAV": one.wave[None], "TEXT_PREFIX": np.array([[prefix.encode()]], object)}
            arrays |= {"BEAM_WIDTH": np.array([[beams]], np.int32)} if beams > 1 else {}
            ours = [int(token) for token in direct.transcribe(arrays, {"TOKENS"})["TOKENS"].ravel()]
            wanted = theirs.ids(one.wave, prefix, beams)
            if ours != wanted:
                other += 1
                texts = [direct.whisper.vocabulary.text(tokens) for tokens in (ours, wanted)]
                report.line(f"  {texts[0]!r}, transformers: {texts[1]!r}")
        report.line(
            f"ids, {name}: {len(spoken[:most]) - other} of {len(spoken[:most])} clips as transformers'"
        )
        report.goal(f"ids, {name}: {other} clips differ", met=not other)
    direct.close()


def word_times(report: Report, bundle: Path, weights: Path, spoken: list[Utterance], most: int = 12) -> None:
    """Compare word times with openai/whisper's, in a recording of a minute with pauses."""
    recording = join(random.Random(3).sample(spoken, min(most, len(spoken))), (0.2, 3), 1)
    heads = json.loads((weights / "generation_config.json").read_text("utf-8"))["alignment_heads"]
    theirs = openai_words(openai_model(weights, heads), recording.wave)
    direct = Direct(bundle)
    ours = direct.transcript(recording.wave, MODES["words"], PauseCutter()).words
    direct.close()
    off = np.array(list(apart(ours, theirs)))
    report.line(
        f"words: {len(off) // 2} that both have, of {len(theirs)} by openai/whisper; {np.median(off):.3f} s "
        f"apart at the median, {np.quantile(off, 0.95):.2f} s at the 95th percentile"
    )
    report.goal(f"words are {np.median(off):.3f} s from openai/whisper's", met=np.median(off) <= APART)


PARTS = ("long", "pairs", "silence", "precision", "ids", "words", "live", "hour")


def command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.quality", description=__doc__)
    parser.add_argument("--model-id", default="base")
    parser.add_argument("--engines", type=Path, default=Path("engines"))
    parser.add_argument("--weights", type=Path, default=Path("weights"))
    parser.add_argument("--more", type=Path, help="a folder of NAME.wav and NAME.txt, added to the voices")
    parser.add_argument("--sentences", type=int, help="how many of the sentences the voices say; all of 70")
    parser.add_argument("--orders", type=int, default=1, help="orders of the sentences in long recordings")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--hour", action="store_true", help="an hour in one file as well")
    given = parser.parse_args()
    if not (given.engines / given.model_id / "openvino" / "manifest.json").exists():
        parser.error(
            f"{given.model_id} is not built in {given.engines}; make evaluate-real MODEL_ID={given.model_id} "
            "builds it first"
        )
    return given


def parts(given: argparse.Namespace) -> set[str]:
    """Select what is measured: one part, or all but those that take an hour or a package of their own."""
    if given.only:
        return {given.only} | ({"hour"} if given.hour else set())
    return set(PARTS) - {"words"} - (set() if given.hour else {"hour"})


def main() -> int:
    given, report = command_line(), Report()
    wanted, weights = parts(given), given.weights
    spoken = [*utterances(weights.resolve(), given.sentences), *more(given.more)]
    bundle = given.engines / given.model_id / "openvino"
    layout = weights / f"{given.model_id}.huggingface"
    if wanted & {"precision", "ids"}:
        exact = exact_bundle(weights, given.model_id)
        if "precision" in wanted:
            precisions(report, bundle, exact, spoken)
        if "ids" in wanted:
            ids(report, exact, layout, spoken)
    if "words" in wanted:
        word_times(report, bundle, layout, spoken)
    direct = Direct(bundle)
    found = direct.transcript(jfk().wave, PLAIN, PauseCutter()).text
    report.line(f"{given.model_id}, {direct.graphs.precision}; jfk.flac: {found}")
    if "silence" in wanted:
        no_speech(report, direct)
    if "live" in wanted:
        live(report, direct)
    if "pairs" in wanted:
        pairs(report, direct, spoken)
    if "long" in wanted:
        peer = WhisperModel(str(peer_folder(weights, given.model_id)), compute_type="int8")
        long_recordings(report, direct, peer, spoken, given.orders)
    if "hour" in wanted:
        hour(report, direct, spoken)
    direct.close()
    end = f"{len(report.missed)} goals missed" if report.missed else "all goals met"
    report.line(f"\n{end}", *report.missed)
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
