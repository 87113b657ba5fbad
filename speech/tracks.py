"""Decode the audio track that a player would play, at the file's own times, with PyAV (FFmpeg)."""

from __future__ import annotations

import io
import mmap
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Disposition

from .channels import Floats, Mixer, planes

RATE = 16_000
SILENCE = np.zeros(4 * RATE, np.float32)
MOST = 400_000  # samples of all channels that are mixed at once: 1.6 MB
RATES = (4_000, 768_000)  # a few bytes may claim a rate of 1 Hz; at 16 kHz they would be gigabytes
# Playlists (concat, HLS, DASH) would make FFmpeg open other files: only containers that hold their own sound,
# and only local files.
CONTAINERS = {
    "format_whitelist": (
        "wav,w64,aiff,au,caf,mp3,flac,ogg,aac,ac3,eac3,amr,wv,mov,mp4,matroska,webm,avi,asf,flv,mpeg,mpegts"
    ),
    "protocol_whitelist": "file",
}
# A player takes these only where there is nothing else.
SECONDARY = (
    Disposition.comment
    | Disposition.karaoke
    | Disposition.hearing_impaired
    | Disposition.visual_impaired
    | Disposition.clean_effects
    | Disposition.descriptions
)
# Seconds. A pause in the time line is one that frames leave out and that adds up; shorter ones are rounding.
OMITTED, PAUSE = 0.03, 0.2
# As ffmpeg's own (-dts_delta_threshold, -dts_error_threshold): longer ones are discontinuities of a
# broadcast, which a player skips, or wrong stamps.
DISCONTINUITY, WRONG = 10.0, 30 * 3600.0
LACKING = 0.5  # seconds that must be missing for a warning
# Containers that declare the length of their sound, where FFmpeg neither estimates nor shortens it.
DECLARING = {"aiff", "au", "caf", "flac", "mov", "mp4", "m4a", "matroska", "webm"}
BREAKS = 0x0200  # AVFMT_TS_DISCONT: a format whose stamps may jump
OGG, BEGINS = b"OggS", 0x02
Warn = Callable[[str], None]


class BadMedia(ValueError):
    """The file has no usable audio; the message gives the reason, `field` the request's field."""

    field = "file"


class BadTrack(BadMedia):
    """The file has no such track."""

    field = "audio_track"


def decoded(path: Path, track: int | None, warn: Warn) -> Iterator[Floats]:
    """Decode the track of each logical stream of a file to float32 [samples] at 16 kHz, mono, with an
    occasional empty block. `track` is the number of an audio track, from 1; None chooses. `warn` is called
    for damage that ends the audio early.

    Raises:
        BadMedia: no audio track, or no such track.
        FFmpegError: no media file, or damage before the first sample.
    """
    given = 0
    for source in _links(path):
        try:
            for piece in _one(source, track, warn):
                given += len(piece)
                yield piece
        except (FFmpegError, BadMedia) as error:
            if not given:
                raise
            why = getattr(error, "strerror", None) or str(error)
            warn(f"its sound ends at {given / RATE:.1f} s, where another stream cannot be used: {why}")
            return


def _one(source: Callable[[], Any], track: int | None, warn: Warn) -> Iterator[Floats]:
    """Decode the first of the tracks, best first, that yields samples."""
    number, count, failed = 0, 1, None
    while number < count:
        with av.open(source(), mode="r", metadata_errors="ignore", container_options=CONTAINERS) as container:
            choices = _ranked(container, track)
            count, given = len(choices), 0
            if number >= count:  # of a damaged file, streams are found as it is read
                break
            try:
                for piece in _sound(container, choices[number]):
                    given += len(piece)
                    yield piece
            except (FFmpegError, IndexError) as error:  # PyAV's, where streams appear later
                failed = error
                if given:
                    why = getattr(error, "strerror", None) or "its streams change"
                    warn(f"its sound ends at {given / RATE:.1f} s with an error of the file: {why}")
            else:
                check_length(given, _declared(container, choices[number]), warn)
        if given:
            return
        number += 1
    if failed:
        raise failed


def check_length(given: int, declared: float, warn: Warn) -> None:
    """Warn of a sound that has `given` samples where its file declares more seconds."""
    ends = given / RATE
    if ends + LACKING < declared:
        warn(f"its sound ends at {ends:.1f} s, of {declared:.1f} s that the file declares")


def _declared(container: InputContainer, stream: AudioStream) -> float:
    """Return the length that the file declares, in seconds; 0 where it is unknown, estimated (mp3) or that of
    a film's pictures.
    """
    if not set(container.format.name.split(",")) & DECLARING:
        return 0.0
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return (container.duration or 0) / av.time_base if len(container.streams) == 1 else 0.0


def _ranked(container: InputContainer, track: int | None) -> list[AudioStream]:
    streams = list(container.streams.audio)
    if not streams:
        raise BadMedia("the file has no audio stream; send one that has")
    if track is not None:
        if track > len(streams):
            raise BadTrack(
                f"the file has {len(streams)} audio tracks; audio_track must be 1 to {len(streams)}"
            )
        streams = [streams[track - 1]]
    if not (found := [stream for stream in streams if stream.codec_context]):
        raise BadMedia(
            "the sound is in a codec that cannot be decoded; send wav, mp3, m4a, ogg, flac or webm"
        )
    return sorted(
        found,
        key=lambda s: (bool(s.disposition & SECONDARY), not s.disposition & Disposition.default, s.index),
    )


def _sound(container: InputContainer, stream: AudioStream) -> Iterator[Floats]:
    """Yield a stream's samples. A resampler takes one sample format, which may change inside a stream."""
    form, converter = None, None
    longest = DISCONTINUITY if container.format.flags & BREAKS else WRONG
    start = None if container.start_time is None else container.start_time / av.time_base
    for frame, pause in timed(_frames(container, stream), start, longest):
        if frame is None:
            yield SILENCE[:0]
            continue
        own = (frame.format.name, frame.layout.name, frame.layout.nb_channels, frame.sample_rate)
        if converter and (own != form or pause):
            yield from converter.finish()
        if not converter or own != form or pause:
            form, converter = own, _Converter(frame)
        for at in range(0, pause, len(SILENCE)):
            yield SILENCE[: pause - at]
        yield from converter.feed(frame)
    if converter:
        yield from converter.finish()


class _Converter:
    """Converts audio of one format to 16 kHz mono, a second at a time."""

    def __init__(self, frame: AudioFrame) -> None:
        self.rate = frame.sample_rate
        if not RATES[0] <= self.rate <= RATES[1]:
            raise BadMedia(
                f"the file declares a sample rate of {self.rate} Hz; send {RATES[0]} to {RATES[1]}, best "
                "16000"
            )
        self.channels = frame.layout.nb_channels
        self.mixer = Mixer([channel.name for channel in frame.layout.channels], self.rate)
        self.resampler = av.AudioResampler(format="fltp", layout="mono", rate=RATE)
        self.waiting: list[Floats] = []
        self.samples = 0

    def feed(self, frame: AudioFrame) -> Iterator[Floats]:
        self.waiting.append(planes(frame))
        self.samples += frame.samples
        if self.samples >= min(self.rate, MOST // self.channels):
            yield from self._out()

    def _out(self) -> Iterator[Floats]:
        if not self.waiting:
            return
        mono = self.mixer.mixed(np.concatenate(self.waiting, 1))
        self.waiting, self.samples = [], 0
        if self.rate == RATE:
            yield mono
            return
        frame = AudioFrame.from_ndarray(np.ascontiguousarray(mono[None]), format="fltp", layout="mono")
        frame.sample_rate = self.rate
        yield from (given.to_ndarray()[0] for given in self.resampler.resample(frame))

    def finish(self) -> Iterator[Floats]:
        yield from self._out()
        yield from (given.to_ndarray()[0] for given in self.resampler.resample(None))


def timed(
    frames: Iterable[AudioFrame | None], start: float | None, longest: float
) -> Iterator[tuple[AudioFrame | None, int]]:
    """Yield frames with the silence before each, in samples at 16 kHz, so that times are those that a player
    shows. `start` is where the file's time line starts in seconds, if known; `longest` is the maximum
    plausible pause in seconds. None among the frames stands for packets that gave none.
    """
    shift = None if start is None else -start
    at, left = 0.0, None  # seconds: where the next frame begins, and the stamp that it should have
    for frame, after in pairwise(chain(frames, [None])):
        if frame is None:
            yield None, 0
            continue
        length, stamp, pause = frame.samples / frame.sample_rate, frame.time, 0.0
        if stamp is not None:
            shift = -stamp if shift is None else shift
            off = stamp + shift - at
            if off > PAUSE and (left is None or stamp - left > OMITTED):
                pause = off if off <= longest and _goes_on(stamp + length, after) else 0.0
            if (off > PAUSE and left is not None and stamp - left > OMITTED and not pause) or off < -PAUSE:
                shift -= off  # a wrong stamp, or a line that begins again: from here on as they follow
            left = stamp + length
        samples = round(pause * RATE)
        at += samples / RATE + length
        yield frame, samples


def _goes_on(end: float, after: AudioFrame | None) -> bool:
    """Tell whether the next frame's timestamp confirms the one before it."""
    return after is not None and after.time is not None and abs(after.time - end) < PAUSE


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame | None]:
    """Decode frames, skipping damaged packets as the ffmpeg command does: one in an hour should not fail the
    hour.
    """
    for packet in container.demux(stream):
        try:
            found: list[AudioFrame | None] = [f for f in packet.decode() if isinstance(f, AudioFrame)]
        except FFmpegError:
            found = []
        yield from found or [None]


def _links(path: Path) -> Iterator[Callable[[], Any]]:
    """Yield a function that opens each logical stream of a file: an Ogg file may have several, one after
    another (RFC 3533), of which FFmpeg follows only those of the same format.
    """
    begins = _ogg_begins(path)
    if len(begins) < 2:
        yield lambda: str(path)
        return
    for begin, end in pairwise([*begins, path.stat().st_size]):
        yield lambda begin=begin, end=end: _Part(path, begin, end)  # type: ignore[misc]


def _ogg_begins(path: Path) -> list[int]:
    """Return where logical streams of an Ogg file start: at the first page of a group of first pages."""
    with path.open("rb") as file:
        if file.read(4) != OGG:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found, at, opening = list[int](), 0, False
            while (at := data.find(OGG, at)) >= 0 and len(head := data[at : at + 27]) == 27:
                lacing = data[at + 27 : at + 27 + head[26]]
                if head[5] & BEGINS and not opening:
                    found.append(at)
                opening = bool(head[5] & BEGINS)
                at += 27 + len(lacing) + sum(lacing)
            return found


class _Part(io.RawIOBase):
    """A byte range of a file as a file object."""

    def __init__(self, path: Path, begin: int, end: int) -> None:
        self.file, self.begin, self.size, self.at = path.open("rb"), begin, end - begin, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        left = max(0, self.size - self.at)
        self.file.seek(self.begin + self.at)
        data = self.file.read(left if size < 0 else min(size, left))
        self.at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = max(0, offset + (0, self.at, self.size)[whence])
        return self.at

    def close(self) -> None:
        self.file.close()
        super().close()
