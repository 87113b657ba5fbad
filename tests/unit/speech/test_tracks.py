"""Which track of a file is decoded, how its channels become one, and where its sound lies in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
from av.audio.frame import AudioFrame
from av.stream import Disposition
from numpy.typing import NDArray

from speech.channels import Mixer
from speech.media import BadMedia, blocks
from speech.tracks import timed

Floats = NDArray[np.float32]
RATE = 16_000


def tone(seconds: float, hertz: float = 440.0, rate: int = RATE) -> Floats:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def sound(path: Path, **options: Any) -> Floats:
    return np.concatenate(list(blocks(path, max_seconds=100, time_limit=100, **options)))


def levels(found: Floats) -> list[int]:
    """Of each half second, in hundredths."""
    parts = np.array_split(found, max(1, round(len(found) / RATE * 2)))
    return [round(100 * float(np.sqrt((part**2).mean()))) for part in parts]


def pitch(found: Floats) -> float:
    return float(np.abs(np.fft.rfft(found)).argmax() * RATE / len(found))


def written(
    path: Path,
    tracks: Sequence[Floats],
    codec: str = "pcm_s16le",
    rate: int = RATE,
    dispositions: Sequence[Disposition] = (),
    stamp: Callable[[int], int] = lambda sample: sample,
) -> Path:
    """A file with a track for each of `tracks` (float32 [channels, samples]); `stamp` gives the time of a
    frame, in samples, by its first sample.
    """
    layouts = {1: "mono", 2: "stereo", 6: "5.1"}
    with av.open(str(path), "w") as file:
        streams = []
        for number, track in enumerate(tracks):
            stream = file.add_stream(codec, rate=rate)
            stream.layout = layouts[len(track)]
            if dispositions:
                stream.disposition = dispositions[number]
            streams.append(stream)
        for stream, track in zip(streams, tracks, strict=True):
            form = stream.codec_context.format.name if stream.codec_context.format else "s16"
            size = stream.codec_context.frame_size or 960
            for at in range(0, track.shape[1], size):
                frame = AudioFrame.from_ndarray(
                    np.ascontiguousarray(track[:, at : at + size]), format="fltp", layout=layouts[len(track)]
                )
                frame.sample_rate = rate
                resampler = av.AudioResampler(format=form, layout=layouts[len(track)], rate=rate)
                for made in resampler.resample(frame):
                    made.pts, made.time_base = stamp(at), Fraction(1, rate)
                    file.mux(stream.encode(made))
            file.mux(stream.encode(None))
    return path


def test_inverted_channels_are_not_silence(tmp_path: Path) -> None:
    """In any part of the file."""
    voice = tone(3)
    right = np.concatenate([voice[:RATE], -voice[RATE : 2 * RATE], voice[2 * RATE :]])
    found = sound(written(tmp_path / "a.wav", [np.stack([voice, right])]))
    assert levels(found) == pytest.approx([30, 30, 21, 21, 30, 30], abs=1)
    assert np.abs(np.diff(found)).max() < 0.1  # no click where the choice changes; the tone has 0.073


def test_one_voice_among_many_microphones(tmp_path: Path) -> None:
    """Sixty channels, which no layout of FFmpeg's has, and the fourth of six, which it would take for the
    loudspeaker of low tones.
    """
    for count in (60, 6):
        many = np.zeros((count, 2 * RATE), "<i2")
        many[3] = tone(2) * 32767
        path = tmp_path / f"{count}.wav"
        body = many.T.tobytes()
        head = b"RIFF" + (36 + len(body)).to_bytes(4, "little") + b"WAVEfmt \x10\0\0\0\x01\0"
        numbers = ((count, 2), (RATE, 4), (RATE * count * 2, 4), (count * 2, 2), (16, 2))
        head += b"".join(value.to_bytes(size, "little") for value, size in numbers)
        path.write_bytes(head + b"data" + len(body).to_bytes(4, "little") + body)
        assert levels(sound(path)) == [21] * 4


def test_an_ordinary_mix_is_the_sum() -> None:
    """Two voices on two channels, and a channel that is silent: nothing is chosen. The level is FFmpeg's."""
    left, right = tone(1), tone(1, 700)
    for pair in (np.stack([left, right]), np.stack([left, 0 * left])):
        np.testing.assert_allclose(Mixer(["FL", "FR"], RATE).mixed(pair), pair.sum(0) * 0.5**0.5, atol=1e-6)


def test_a_declared_surround_layout_keeps_the_centre_in_front(tmp_path: Path) -> None:
    """ITU-R BS.775."""
    six = np.zeros((6, RATE), np.float32)
    six[0], six[2] = tone(1, 700), tone(1)
    found = np.abs(np.fft.rfft(Mixer(["FL", "FR", "FC", "LFE", "BL", "BR"], RATE).mixed(six)))
    assert found[440] / found[700] == pytest.approx(1 / 0.7071, rel=0.01)


@pytest.mark.parametrize(
    ("dispositions", "expected"),
    [
        ((Disposition(0), Disposition.default), 700),
        ((Disposition.default, Disposition(0)), 440),
        ((Disposition(0), Disposition(0)), 440),
        ((Disposition.comment, Disposition(0)), 700),
        ((Disposition.visual_impaired, Disposition(0)), 700),
    ],
)
def test_the_track_that_a_player_takes(
    tmp_path: Path, dispositions: Sequence[Disposition], expected: int
) -> None:
    path = written(tmp_path / "a.mkv", [tone(1)[None], tone(1, 700)[None]], "flac", dispositions=dispositions)
    assert pitch(sound(path)) == pytest.approx(expected, abs=2)
    assert pitch(sound(path, track=2)) == pytest.approx(700, abs=2)
    with pytest.raises(BadMedia, match="audio_track must be 1 to 2"):
        sound(path, track=3)


@pytest.mark.parametrize("codec", [b"A_XYZQ", b"A_ALAC"])
def test_a_track_that_cannot_be_decoded_is_passed_over(tmp_path: Path, codec: bytes) -> None:
    """A codec that nobody knows, and one whose packets are all damaged."""
    path = written(tmp_path / "a.mkv", [tone(1)[None], tone(1, 700)[None]], "flac")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"\x86\x86A_FLAC", b"\x86\x86" + codec, 1))
    assert path.read_bytes() != data
    assert pitch(sound(path)) == pytest.approx(700, abs=2)


def test_the_form_may_change_inside_a_file(tmp_path: Path) -> None:
    """MP3: channels and rate of any frame; Ogg: one logical stream after the other (RFC 3533)."""
    first = written(tmp_path / "1.mp3", [np.stack([tone(1, rate=44_100)] * 2)], "libmp3lame", 44_100)
    second = written(tmp_path / "2.mp3", [tone(1, rate=32_000)[None]], "libmp3lame", 32_000)
    (tmp_path / "both.mp3").write_bytes(first.read_bytes() + second.read_bytes())
    assert len(sound(tmp_path / "both.mp3")) == pytest.approx(2 * RATE, rel=0.1)
    parts = [
        written(tmp_path / "1.ogg", [np.stack([tone(1, rate=48_000)] * 2)], "libopus", 48_000),
        written(tmp_path / "2.ogg", [tone(1, rate=48_000)[None]], "libopus", 48_000),
        written(tmp_path / "3.ogg", [tone(1, rate=44_100)[None]], "flac", 44_100),
    ]
    (tmp_path / "all.ogg").write_bytes(b"".join(part.read_bytes() for part in parts))
    found = sound(tmp_path / "all.ogg")
    assert len(found) == pytest.approx(3 * RATE, rel=0.03)
    assert min(levels(found)) >= 19


def test_pauses_of_the_time_line_are_silence(tmp_path: Path) -> None:
    """Packets that were never sent, and a track that begins after the pictures do."""
    path = written(
        tmp_path / "a.mkv", [tone(2)[None]], "pcm_s16le", stamp=lambda at: at + 5 * RATE * (at >= RATE)
    )
    assert levels(sound(path)) == pytest.approx([21, 21] + [0] * 10 + [21, 21], abs=5)


@pytest.mark.parametrize(
    ("stamps", "pauses"),
    [
        ([0, 1, 2, 3], [0, 0, 0, 0]),
        ([0, 1, 6, 7], [0, 0, 4, 0]),
        ([2, 3, 4], [2, 0, 0]),
        ([0, 1, 60, 3, 4], [0, 0, 0, 0, 0]),  # one that jumps and comes back
        ([0, 1, 0, 1, 5, 6], [0, 0, 0, 0, 3, 0]),  # a line that begins again
        ([0, 1, 20, 21, 25, 26], [0, 0, 0, 0, 3, 0]),  # longer than can be, as between two broadcasts
        ([None, None, None], [0, 0, 0]),
        ([0, 1.1, 2.2, 3.3], [0, 0, 0.3, 0]),  # packets that were lost
        ([0, 1.001, 2.002, 3.003], [0, 0, 0, 0]),
    ],
)
def test_only_stamps_that_can_be_move_sound(stamps: list[float | None], pauses: list[float]) -> None:
    frames: list[Any] = [SimpleNamespace(samples=RATE, sample_rate=RATE, time=stamp) for stamp in stamps]
    found = [round(pause / RATE, 2) for _, pause in timed(frames, 0.0, 10.0)]
    assert found == pytest.approx(pauses, abs=0.11)


def test_sound_around_damage_is_kept(tmp_path: Path) -> None:
    """A file that was cut, and one with foreign bytes in its midst: what a player plays of it."""
    for name, codec in {"a.flac": "flac", "a.mkv": "pcm_s16le", "a.m4a": "aac"}.items():
        path = written(tmp_path / name, [tone(4)[None]], codec)
        whole = path.read_bytes()
        if name != "a.m4a":
            path.write_bytes(whole[: len(whole) * 3 // 4])
            assert len(sound(path)) > 2 * RATE, name
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + b"\xff" * 3000 + whole[middle + 3000 :])
        assert len(sound(path)) > 1.5 * RATE, name


def test_a_chained_file_that_was_cut_in_its_last_stream(tmp_path: Path) -> None:
    """The sound of its first stream comes, and where it ends is told."""
    first = written(tmp_path / "a.ogg", [tone(2)[None]], "libopus", 48_000).read_bytes()
    second = written(tmp_path / "b.ogg", [tone(2, 880)[None]], "libopus", 48_000).read_bytes()
    for size in (28, 60, 300):
        (tmp_path / "c.ogg").write_bytes(first + second[:size])
        told: list[str] = []
        assert len(sound(tmp_path / "c.ogg", warn=told.append)) >= 0.6 * RATE
    assert told


@pytest.mark.parametrize("form", ["flac", "webm", "mp3"])
def test_a_file_that_was_cut_is_named(tmp_path: Path, form: str) -> None:
    """Where it declares its length, which an MP3 file does not."""
    path = tmp_path / f"a.{form}"
    codec = {"webm": "libopus", "mp3": "libmp3lame"}.get(form, form)
    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=48_000, layout="mono")
        assert isinstance(stream, av.AudioStream)
        frame = AudioFrame.from_ndarray(tone(4, rate=48_000)[None], format="fltp", layout="mono")
        frame.sample_rate = 48_000
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    told = list[str]()
    whole = sound(path, warn=told.append)
    assert abs(len(whole) / RATE - 4) < 0.2 and not told
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    cut = sound(path, warn=told.append)
    ends = f"its sound ends at {len(cut) / RATE:.1f} s, of 4.0 s that the file declares"
    assert told == ([] if form == "mp3" else [ends])


def test_packets_without_sound_cost_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of damaged packets is looked at once, not once for each of them."""
    empty = np.zeros(0, np.float32)
    monkeypatch.setattr("speech.media._sound", lambda *_: iter([tone(1), *[empty] * 200_000, tone(1)]))
    began = time.process_time()
    assert len(sound(tmp_path / "a.mka")) == 2 * RATE
    assert time.process_time() - began < 5  # hours, before
