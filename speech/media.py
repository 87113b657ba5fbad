"""Decode any uploaded file to mono float32 at 16 kHz with PyAV (FFmpeg's libraries). WAV files in that format
already are read by Python's own reader: threads that compete for the GIL at each of FFmpeg's frames are many
times as slow (docs/benchmarks/audio-api.md).
"""

from __future__ import annotations

import time
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from .tracks import CONTAINERS, RATE, BadMedia, Warn, check_length, decoded

__all__ = ["CONTAINERS", "RATE", "BadMedia", "blocks", "decode"]
UNKNOWN = 0x7FFF0000  # bytes: a WAV file of an unknown length claims more
BLOCK = 4 * RATE


def silent(_: str) -> None:
    """Ignore a warning about damage."""


def decode(path: Path, *, max_seconds: float, time_limit: float) -> NDArray[np.float32]:
    """Decode the whole of a short file to float32 [samples]. Raises what `blocks` raises."""
    return np.concatenate(list(blocks(path, max_seconds=max_seconds, time_limit=time_limit)))


def blocks(
    path: Path, *, max_seconds: float, time_limit: float, track: int | None = None, warn: Warn = silent
) -> Iterator[NDArray[np.float32]]:
    """Decode the audio track that a player would play, or number `track` (from 1), a few seconds at a time.
    `warn` is called for damage that ends the audio early.

    Yields:
        float32 [samples], channels mixed, resampled to 16 kHz; pauses of the file's time line are silence.

    Raises:
        BadMedia: not a media file, no audio stream, no samples, NaN, too long, or more than `time_limit`
        seconds of decoding.
    """
    waiting: list[NDArray[np.float32]] = []
    samples, given, spent, chunks = 0, 0, 0.0, _sound(path, track, warn)
    while True:
        started = time.monotonic()
        chunk = next(chunks, None)
        spent += time.monotonic() - started
        if spent > time_limit:
            raise BadMedia(
                f"decoding took longer than {time_limit:g} s; send a simpler format such as 16 kHz WAV or "
                "FLAC"
            )
        if chunk is not None and len(chunk):  # a damaged packet gives none
            waiting.append(chunk)
            samples += len(chunk)
        if samples > max_seconds * RATE:
            raise BadMedia(f"the recording is longer than {max_seconds:g} s; cut it")
        if waiting and (chunk is None or samples - given >= BLOCK):
            yield np.concatenate(waiting)
            waiting, given = [], samples
        if chunk is None:
            break
    if not samples:
        raise BadMedia(
            "the file contains no audio samples that can be decoded; send a recording such as wav, mp3, m4a, "
            "ogg, flac or webm"
        )


def _sound(path: Path, track: int | None, warn: Warn) -> Iterator[NDArray[np.float32]]:
    """Yield chunks from FFmpeg, and turn its errors into sentences."""
    try:
        for chunk in _chunks(path, track, warn):
            if not np.isfinite(chunk).all():
                raise BadMedia("the samples contain NaN or infinite values; export the file again")
            yield chunk
    except (FFmpegError, ValueError, OverflowError, IndexError) as error:
        if isinstance(error, BadMedia):
            raise
        # The full text names a path of this machine.
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise BadMedia(
            f"the file cannot be decoded ({reason}); send a complete audio file such as wav, mp3, m4a, ogg, "
            "flac or webm"
        ) from error


def _chunks(path: Path, track: int | None, warn: Warn) -> Iterator[NDArray[np.float32]]:
    """Yield what can be read directly, or else decoded."""
    file, given = _plain_wav(path) if track in (None, 1) else None, 0
    for chunk in decoded(path, track, warn) if file is None else _samples(file):
        given += len(chunk)
        yield chunk
    there, claimed = path.stat().st_size, _claimed(path)
    if there < claimed < UNKNOWN:  # FFmpeg takes what is there for the whole
        check_length(given, given / RATE * claimed / there, warn)


def _claimed(path: Path) -> int:
    """Return a file's size by the header of a WAV file; 0 for others."""
    with path.open("rb") as file:
        head = file.read(8)
    return int.from_bytes(head[4:], "little") + 8 if head.startswith(b"RIFF") else 0


def _samples(file: wave.Wave_read) -> Iterator[NDArray[np.float32]]:
    with file:
        while data := file.readframes(BLOCK):
            yield np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float32) / np.float32(32768)


def _plain_wav(path: Path) -> wave.Wave_read | None:
    """Open a WAV file that needs no conversion, at its first sample; None for all others, including damaged
    ones.
    """
    try:
        file = wave.open(str(path), "rb")  # noqa: SIM115  # its reader closes it
    except (wave.Error, EOFError, RuntimeError):  # the last where a chunk ends after the file
        return None
    form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
    # A recorder that was killed leaves a length of 0, which FFmpeg reads to the end.
    claimed = _claimed(path)  # Python reads no further, FFmpeg does
    if form == (1, 2, RATE) and claimed >= path.stat().st_size and file.getnframes():
        return file
    file.close()
    return None
