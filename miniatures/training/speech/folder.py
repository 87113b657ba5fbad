"""A data set of made speech for scripts/dataset: `python -m miniatures.training.speech.folder FOLDER
--count 240 --seed 77`.

Sentences that no training clip contained, 1.5 to 28 s, English and Spanish, in several containers; next to
each recording a .txt, and one manifest.jsonl that also knows language and duration.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from .clips import Clipper
from .corpus import LANGUAGES, make_corpus
from .recordings import Form, encode, record
from .voices import RATE

SECONDS = (1.5, 28.0)
FORMS = (
    Form("wav", "", 0, 16_000, 1, "pcm_s16le"),
    Form("flac", "", 0, 44_100, 2, "flac"),
    Form("mp3", "", 0, 44_100, 1, "mp3"),
    Form("ogg", "", 0, 16_000, 1, "libopus"),
)


def write(clipper: Clipper, folder: Path, count: int) -> None:
    """`count` recordings in turn of languages and containers; what they say depends on the clipper's corpus
    and generator alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(count):
        form, language = FORMS[i // len(LANGUAGES) % len(FORMS)], LANGUAGES[i % len(LANGUAGES)]
        clip, wave = record(clipper, clipper.rng.uniform(*SECONDS), language)
        path = folder / f"{i:04d}-{language}.{form.name}"
        encode(wave, path, form.rate, form.channels, form.codec)
        path.with_suffix(".txt").write_text(clip.text() + "\n", "utf-8")
        row = {"audio_filepath": path.name, "text": clip.text(), "language": language}
        rows.append({**row, "duration": round(len(wave) / RATE, 3)})
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "manifest.jsonl").write_text("".join(lines), "utf-8")


def main() -> None:
    """Speak and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--seed", type=int, default=77)
    arguments = parser.parse_args()
    corpus = make_corpus(2 * arguments.count, arguments.seed, held_out=True)
    write(Clipper(corpus, random.Random(arguments.seed)), arguments.folder, arguments.count)


if __name__ == "__main__":
    main()
