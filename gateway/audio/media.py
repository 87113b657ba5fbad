"""Sound out of whatever file was uploaded: mono float32 at 16 kHz, by PyAV (FFmpeg's libraries), or for WAV
that is so already by Python's own reader: threads that fight for the interpreter's lock at each of FFmpeg's
frames are many times as slow (docs/benchmarks/audio-api.md).
"""

from __future__ import annotations

import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.error import FFmpegError, InvalidDataError
from numpy.typing import NDArray

RATE = 16_000
BLOCK = 4 * RATE
RATES = (4_000, 768_000)  # a few bytes may claim a rate of 1 Hz; at 16 kHz they would be gigabytes
# Playlists (concat, HLS, DASH) would make FFmpeg open other files: only containers that hold their own sound,
# and only local files.
CONTAINERS = {
    "format_whitelist": (
        "wav,w64,aiff,au,caf,mp3,flac,ogg,aac,ac3,eac3,amr,wv,mov,mp4,matroska,webm,avi,asf,flv,mpeg,mpegts"
    ),
    "protocol_whitelist": "file",
}


class BadMedia(ValueError):
    """The file holds no sound that can be used; the message says why."""


def decode(path: Path, *, max_seconds: float, time_limit: float) -> NDArray[np.float32]:
    """The whole of a short file: float32 [samples]. Raises what `blocks` raises."""
    return np.concatenate(list(blocks(path, max_seconds=max_seconds, time_limit=time_limit)))


def blocks(path: Path, *, max_seconds: float, time_limit: float) -> Iterator[NDArray[np.float32]]:
    """Decode the first audio stream of a file, a few seconds at a time.

    Yields:
        float32 [samples], channels averaged, resampled to 16 kHz.

    Raises:
        BadMedia: not a media file, no audio stream, no samples, NaN, too long, or more than `time_limit`
        seconds of decoding.
    """
    waiting: list[NDArray[np.float32]] = []
    samples, spent, chunks = 0, 0.0, _sound(path)
    while True:
        started = time.monotonic()
        chunk = next(chunks, None)
        spent += time.monotonic() - started
        if spent > time_limit:
            raise BadMedia(
                f"decoding took longer than {time_limit:g} s; send a simpler format such as 16 kHz WAV or "
                "FLAC"
            )
        if chunk is not None:
            waiting.append(chunk)
            samples += len(chunk)
        if samples > max_seconds * RATE:
            raise BadMedia(f"the recording is longer than {max_seconds:g} s; cut it")
        if waiting and (chunk is None or sum(map(len, waiting)) >= BLOCK):
            yield np.concatenate(waiting)
            waiting = []
        if chunk is None:
            break
    if not samples:
        raise BadMedia(
            "the file contains no audio samples that can be decoded; send a recording such as wav, mp3, m4a, "
            "ogg, flac or webm"
        )


def _sound(path: Path) -> Iterator[NDArray[np.float32]]:
    """Chunks as FFmpeg gives them; its errors as sentences."""
    try:
        for chunk in _chunks(path):
            if not np.isfinite(chunk).all():
                raise BadMedia("the samples contain NaN or infinite values; export the file again")
            yield chunk
    except (FFmpegError, ValueError, OverflowError) as error:
        if isinstance(error, BadMedia):
            raise
        reason = (
            getattr(error, "strerror", None) or type(error).__name__
        )  # the full text names a path of this machine
        raise BadMedia(
            f"the file cannot be decoded ({reason}); send a complete audio file such as wav, mp3, m4a, ogg, "
            "flac or webm"
        ) from error


def _chunks(path: Path) -> Iterator[NDArray[np.float32]]:
    """What can be read as it is, or else decoded."""
    file = _plain_wav(path)
    if file is None:
        yield from _decoded(path)
        return
    with file:
        while data := file.readframes(BLOCK):
            yield np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float32) / np.float32(32768)


def _plain_wav(path: Path) -> wave.Wave_read | None:
    """A WAV file that needs no conversion, at its first sample; None for all others, damaged ones too."""
    try:
        with path.open("rb") as whole:
            claimed = int.from_bytes(whole.read(8)[4:], "little") + 8  # Python reads no further, FFmpeg does
        file = wave.open(str(path), "rb")  # noqa: SIM115  # whoever reads it closes it
    except (wave.Error, EOFError, RuntimeError):  # the last where a chunk ends behind the file
        return None
    form = (file.getnchannels(), file.getsampwidth(), file.getframerate())
    if form == (1, 2, RATE) and claimed >= path.stat().st_size:
        return file
    file.close()
    return None


def _decoded(path: Path) -> Iterator[NDArray[np.float32]]:
    with av.open(str(path), mode="r", metadata_errors="ignore", container_options=CONTAINERS) as container:
        if not container.streams.audio:
            raise BadMedia("the file has no audio stream; send one that has")
        stream = container.streams.audio[0]
        resampler = av.AudioResampler(format="fltp", layout="mono", rate=RATE)
        for packet in container.demux(stream):
            for frame in _frames(packet):
                if not RATES[0] <= frame.sample_rate <= RATES[1]:
                    raise BadMedia(
                        f"the file declares a sample rate of {frame.sample_rate} Hz; send {RATES[0]} to "
                        f"{RATES[1]}, best 16000"
                    )
                # Timestamps of broken files would make the resampler invent or drop samples.
                frame.pts = None
                yield from _arrays(resampler.resample(frame))
        yield from _arrays(resampler.resample(None))


def _frames(packet: Any) -> list[AudioFrame]:
    """A damaged packet is left out, as by the ffmpeg command: one in an hour should not fail the hour."""
    try:
        return [frame for frame in packet.decode() if isinstance(frame, AudioFrame)]
    except InvalidDataError:
        return []


def _arrays(frames: list[AudioFrame]) -> Iterator[NDArray[np.float32]]:
    for frame in frames:
        yield frame.to_ndarray()[0].astype(np.float32, copy=False)
