"""`make evaluate-speakers`: evaluate diarization in conversations of voices that were not used for tuning,
compared with senko and sherpa-onnx on the same weights.

Two halves, since peers need other packages: this one makes recordings, diarizes them in this process and,
with --url, transcribes them through a running stack; `speaker_scores` runs the peers and prints the tables.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

from bench.performance.speech.cells import wav
from bench.performance.stage import own_memory
from serving.engine.openvino.encoder import OpenVinoEncoder
from speech.speakers.diarize import diarize
from speech.speakers.local import Chunk, windows
from speech.speakers.model import Count, Floats
from speech.speakers.tuning import TUNING as SPEAKER_TUNING
from speech.speakers.turns import Diarization

from . import conversations
from .conversations import JUDGED, TUNING, Conversation, Manner
from .scores import PLAIN
from .voices import RATE

MANNERS = (
    *[Manner("two speakers", 2, 3, 0.0)] * 3,
    *[Manner("two, often at once", 2, 5, 0.2)] * 3,
    *[Manner("four", 4, 10, 0.1)] * 3,
    *[Manner("six, often at once", 6, 10, 0.2)] * 3,
    *[Manner("three in noise", 3, 5, 0.1, "noise")] * 3,
    *[Manner("three on the telephone", 3, 5, 0.1, "telephone")] * 3,
    Manner("five for an hour", 5, 60, 0.1),
)
# The speakers, the file of what they say, and how many of its lines conversations have.
VOICES = {"judged": (JUDGED, "conversation.txt", 24), "tuning": (TUNING, "sentences.txt", 9)}


class InProcessVoices:
    """A `speech.speakers.model.VoiceModel` in this process."""

    def __init__(self, bundle: Path) -> None:
        engine = bundle / "engine"
        self.segmentation = OpenVinoEncoder(engine, {}, graph="segmentation")
        self.voice = OpenVinoEncoder(engine, {}, graph="voice")

    async def segment(self, rows: Floats) -> Floats:
        return self.segmentation.encode(wav=rows)

    async def embed(self, rows: Floats) -> Floats:
        return np.concatenate([self.voice.encode(wav=rows[at : at + 16]) for at in range(0, len(rows), 16)])


@dataclass(frozen=True)
class Found:
    """A system's result for a recording: turns (start, end, speaker), and its duration."""

    turns: list[tuple[float, float, str]]
    seconds: float


async def _batches(sound: NDArray[np.float32]) -> AsyncIterator[list[Chunk]]:
    source = windows(sound[at : at + 4 * RATE] for at in range(0, len(sound), 4 * RATE))
    while batch := list(islice(source, SPEAKER_TUNING.at_once)):
        yield batch


def ours(voices: InProcessVoices, sound: Floats) -> tuple[Diarization, Found]:
    """Diarize samples [n] with Conch."""
    began = time.monotonic()
    diarization = asyncio.run(diarize(voices, _batches(sound), Count()))
    turns = [(turn.start, turn.end, str(turn.speaker)) for turn in diarization.turns]
    return diarization, Found(turns, time.monotonic() - began)


def reference_url(weights: Path, voice: str) -> str:
    """Return a known speaker's reference, with words that no conversation has."""
    texts = conversations.texts("conversation.txt" if voice in JUDGED else "sentences.txt")
    parts = [np.load(conversations.place(weights, voice, text)).astype(np.float32) for text in texts[24:26]]
    return "data:audio/wav;base64," + base64.b64encode(wav(np.concatenate(parts)[: 9 * RATE])).decode()


def transcribed(url: str, path: Path, known: dict[str, str]) -> dict[str, Any]:
    """Return the words of each speaker, normalized, and how long a stack took."""
    fields = {
        "model": "whisper-1",
        "response_format": "verbose_json",
        "timestamp_granularities[]": ["segment", "word"],
        "diarize": "true",
        "language": "en",
        "known_speaker_names[]": list(known),
        "known_speaker_references[]": list(known.values()),
    }
    began = time.monotonic()
    with path.open("rb") as file:
        answer = httpx.post(f"{url}/v1/audio/transcriptions", data=fields, files={"file": file}, timeout=3600)
    segments = [
        {"text": PLAIN(segment["text"]), **{name: segment[name] for name in ("start", "end", "speaker")}}
        for segment in answer.raise_for_status().json()["segments"]
        if segment["text"]
    ]
    return {"segments": segments, "seconds": time.monotonic() - began}


def written(conversation: Conversation) -> dict[str, Any]:
    """Return the truth: turns with the normalized words of each."""
    return {
        "name": conversation.name,
        "seconds": len(conversation.wave) / RATE,
        "turns": [{**asdict(turn), "text": PLAIN(turn.text)} for turn in conversation.turns],
    }


def judge(weights: Path, bundle: Path, output: Path, url: str, names: str) -> None:
    """Synthesize the texts; write each recording, the truth and Conch's result."""
    speakers, file, most = VOICES[names]
    voices, texts = InProcessVoices(bundle), conversations.texts(file)
    conversations.speak(weights, speakers, texts[:26])  # also those of `reference_url`
    output.mkdir(parents=True, exist_ok=True)
    for seed, manner in enumerate(MANNERS, 101):
        conversation = conversations.converse(weights, manner, speakers, texts[:most], seed)
        path, kept = (output / f"{conversation.name}.{ending}" for ending in ("wav", "json"))
        path.write_bytes(wav(conversation.wave))
        diarization, found = ours(voices, conversation.wave)
        known = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
        row = {**known, **written(conversation), "set": manner.name, "conch": asdict(found)}
        first = manner not in MANNERS[: seed - 101]
        if url and first and manner.minutes <= 10:  # words take longer than turns
            row["words"] = transcribed(url, path, {})
            references = {name: reference_url(weights, name) for name in conversation.speakers}
            row["known"] = transcribed(url, path, references)
        kept.write_text(json.dumps(row), "utf-8")
        speed = f"{found.seconds / row['seconds']:.4f} of its length, {own_memory():.0f} MB at most"
        count = f"{len(conversation.speakers)} speakers, {len(diarization.voices)} found"
        print(f"{conversation.name}: {count}, {speed}", flush=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, default=Path("weights"))
    parser.add_argument("--bundle", type=Path, default=Path("engines/speakers/openvino"))
    parser.add_argument("--output", type=Path, default=Path(".conch/speakers"))
    parser.add_argument("--url", default="", help="of a stack that transcribes, for words by speaker")
    parser.add_argument("--voices", choices=VOICES, default="judged")
    given = parser.parse_args()
    judge(given.weights, given.bundle, given.output, given.url, given.voices)


if __name__ == "__main__":
    main()
