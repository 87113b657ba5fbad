"""Sound as FFmpeg gives it, also where Python reads the file itself."""

from __future__ import annotations

import random
import wave
from pathlib import Path

import numpy as np
import pytest

from speech import media
from speech.media import BadMedia, blocks, silent
from speech.tracks import decoded

SOUND = np.random.default_rng(3).integers(-32768, 32768, 5 * 16_000 + 7).astype("<i2")


def written(path: Path, rate: int = 16_000, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(SOUND[: len(SOUND) // channels * channels].tobytes())
    return path


def decoded_by_us(path: Path) -> np.ndarray:
    return np.concatenate(list(blocks(path, max_seconds=100, time_limit=100)))


def by_ffmpeg(path: Path) -> np.ndarray:
    return np.concatenate(list(decoded(path, None, silent)))


@pytest.mark.parametrize("damage", ["none", "cut", "odd", "no size", "a chunk before"])
def test_wav_as_ffmpeg_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """Without FFmpeg; whole, cut short, and as programs write it that do not know its size yet."""
    path = written(tmp_path / "a.wav")
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[-30_000:]
    elif damage == "odd":
        del data[-30_001:]
    elif damage == "no size":
        data[4:8] = data[40:44] = b"\xff\xff\xff\xff"
    elif damage == "a chunk before":
        data[12:12] = b"LIST\x04\x00\x00\x00abcd"
        data[4:8] = (len(data) - 8).to_bytes(4, "little")
    path.write_bytes(data)
    expected = by_ffmpeg(path)
    monkeypatch.setattr(media, "decoded", None)
    told = list[str]()
    ours = np.concatenate(list(blocks(path, max_seconds=60, time_limit=60, warn=told.append)))
    assert bool(told) == (damage in ("cut", "odd")), told
    assert len(expected) > 30_000
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, expected)


def test_a_size_that_is_too_small_loses_nothing(tmp_path: Path) -> None:
    """What lies after the size that the file claims is read as well."""
    path = written(tmp_path / "a.wav")
    data = bytearray(path.read_bytes())
    data[4:8] = (1000).to_bytes(4, "little")
    path.write_bytes(data)
    np.testing.assert_array_equal(decoded_by_us(path), by_ffmpeg(path))
    assert len(decoded_by_us(path)) == len(SOUND)


@pytest.mark.parametrize(("rate", "channels"), [(8_000, 1), (44_100, 1), (16_000, 2)])
def test_other_wav_is_decoded(tmp_path: Path, rate: int, channels: int) -> None:
    """Resampled, and its channels averaged."""
    path = written(tmp_path / "a.wav", rate, channels)
    seconds = len(SOUND) / channels / rate
    assert len(decoded_by_us(path)) == pytest.approx(seconds * 16_000, abs=32)
    np.testing.assert_array_equal(decoded_by_us(path), by_ffmpeg(path))


@pytest.mark.parametrize("data", [b"", b"RIFF", b"RIFF\x24\x00\x00\x00WAVEfmt ", b"<svg/>", bytes(3000)])
def test_what_is_no_sound_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(data)
    with pytest.raises(BadMedia):
        decoded_by_us(path)


def test_damaged_headers_are_read_or_refused(tmp_path: Path) -> None:
    """Bytes at random in the first ones: nothing but sound or a reason comes out."""
    rng, whole, path = (
        random.Random(1),
        written(tmp_path / "whole.wav").read_bytes()[:3000],
        tmp_path / "a.wav",
    )
    readable = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 2, 4, 8])):
            data[rng.randrange(60)] = rng.randrange(256)
        path.write_bytes(data)
        try:
            readable += len(decoded_by_us(path)) > 0
        except BadMedia as error:
            assert str(error)
    assert 0 < readable < 300
