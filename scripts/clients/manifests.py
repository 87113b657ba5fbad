"""Read data sets: a JSONL manifest, a Kaldi-style folder, or a folder with a .txt next to each recording.

Formats: NVIDIA NeMo's manifests (https://docs.nvidia.com/nemo-framework, "Preparing Custom ASR Data"),
Kaldi's data folders (https://kaldi-asr.org/doc/data_prep.html).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
from av.error import FFmpegError

from speech.media import CONTAINERS, RATE, BadMedia, decode

AUDIO_KEYS = ("audio_filepath", "audio", "path")


class BadManifest(ValueError):
    """The data set cannot be used; the message names the place and what to change."""


@dataclass(frozen=True)
class ManifestRow:
    """A recording and its reference text. `language` is empty and `duration` (seconds) 0 where the data set
    does not give them.
    """

    name: str
    path: Path
    text: str
    language: str = ""
    duration: float = 0.0


def read(path: Path) -> list[ManifestRow]:
    """Return all utterances of a data set in order.

    Raises:
        BadManifest: no data set of the three kinds, a line that cannot be read, or recordings that are not
        there.
    """
    if not path.exists():
        raise BadManifest(f"{path} does not exist; name a JSONL manifest or a folder")
    kind = _jsonl if path.is_file() else _kaldi if (path / "wav.scp").exists() else _folder
    utterances = list(kind(path))
    if not utterances:
        raise BadManifest(
            f"{path} contains no utterances; put a wav.scp with a text, or recordings, each with a "
            ".txt of the same name, into it"
        )
    missing = [utterance.path for utterance in utterances if not utterance.path.is_file()]
    if missing:
        raise BadManifest(
            f"{len(missing)} of {len(utterances)} recordings do not exist, the first is {missing[0]}; "
            f"correct the paths in {path}"
        )
    return utterances


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON objects of a file, one per line, with line numbers; empty lines are skipped.

    Raises:
        BadManifest: the file cannot be read, or a line is not an object.
    """
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise BadManifest(
                    f"{path}, line {number} is not a JSON object ({error}); write one object a line"
                ) from error
            if not isinstance(row, dict):
                raise BadManifest(f"{path}, line {number} is not a JSON object; write one object a line")
            yield number, row


def _jsonl(path: Path) -> Iterator[ManifestRow]:
    return (_utterance(path, number, row) for number, row in objects(path))


def _utterance(path: Path, number: int, row: dict[str, Any]) -> ManifestRow:
    try:
        audio = next(str(row[key]) for key in AUDIO_KEYS if key in row)
        return ManifestRow(
            audio,
            path.parent / audio,
            str(row["text"]),
            row.get("language") or "",
            float(row.get("duration") or 0),
        )
    except StopIteration:
        raise BadManifest(
            f"{path}, line {number}: no recording is named; give {', '.join(AUDIO_KEYS[:-1])} or "
            f"{AUDIO_KEYS[-1]}"
        ) from None
    except KeyError:
        raise BadManifest(
            f"{path}, line {number}: the key text is missing; add the words of the recording"
        ) from None
    except (ValueError, TypeError) as error:
        raise BadManifest(
            f"{path}, line {number}: duration is not a number ({error}); give seconds, or omit it"
        ) from error


def _kaldi(folder: Path) -> Iterator[ManifestRow]:
    if (folder / "segments").exists():
        raise BadManifest(
            f"{folder}/segments cuts recordings into utterances, which is not supported; write a wav file "
            "for each of them"
        )
    # The second: yuekaizhang/Triton-ASR-Client's data sets.
    spoken = folder / "text" if (folder / "text").exists() else folder / "trans.txt"
    texts, languages = _table(spoken), _table(folder / "utt2lang")
    for name, audio in _table(folder / "wav.scp").items():
        if audio.endswith("|"):
            raise BadManifest(
                f"{folder}/wav.scp: {name} is a command ({audio}), and none are run here; write its sound "
                "into a file"
            )
        if name not in texts:
            raise BadManifest(f"{spoken} has no line for {name}; add one")
        # Kaldi counts paths from where its recipe runs; here that may be the folder itself.
        path = folder / audio if (folder / audio).exists() else Path(audio)
        yield ManifestRow(name, path, texts[name], languages.get(name, ""))


def _table(path: Path) -> dict[str, str]:
    """Read a table: the first word is the key, the rest of the line the value. A missing file is an empty
    table.
    """
    rows = [line.split(maxsplit=1) for line in (_lines(path) if path.exists() else []) if line.strip()]
    return {key: (value[0].strip() if value else "") for key, *value in rows}


def _folder(folder: Path) -> Iterator[ManifestRow]:
    texts = sorted(folder.rglob("*.txt"))
    by_stem: dict[Path, list[Path]] = {}
    for path in sorted(path for parent in {text.parent for text in texts} for path in parent.iterdir()):
        by_stem.setdefault(path.with_suffix(""), []).append(path)
    for text in texts:
        sounds = [path for path in by_stem[text.with_suffix("")] if path != text]
        if len(sounds) != 1:
            there = " and ".join(path.name for path in sounds) or "no recording"
            raise BadManifest(f"next to {text} there is {there}; exactly one file of that name is needed")
        yield ManifestRow(str(sounds[0].relative_to(folder)), sounds[0], text.read_text("utf-8").strip())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadManifest(
            f"{path} cannot be read as UTF-8 text ({error}); name a JSONL file or a folder"
        ) from error


def seconds(utterance: ManifestRow) -> float:
    """Return a recording's length in seconds from the data set, otherwise from its container, otherwise by
    decoding it; 0 if it is not a recording.
    """
    if utterance.duration:
        return utterance.duration
    try:
        with av.open(
            str(utterance.path), metadata_errors="ignore", container_options=CONTAINERS
        ) as container:
            if container.duration:
                return container.duration / av.time_base
        return len(decode(utterance.path, max_seconds=math.inf, time_limit=math.inf)) / RATE
    except (FFmpegError, BadMedia):
        return 0.0
