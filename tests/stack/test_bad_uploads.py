"""Broken uploads: always a 4xx in OpenAI's shape that names the field, never a 5xx, never a dead process."""

from __future__ import annotations

import random
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from .clients import RECORDINGS, wav
from .conftest import Stack

SEED = 20261121
CONTAINERS = ("demo.flac", "cocina.mp3", "museo.ogg", "letter.m4a", "order.wav")


def broken_files() -> Iterator[tuple[str, bytes]]:
    """Files that hold no usable sound."""
    rng = random.Random(SEED)
    yield "empty.wav", b""
    yield "text.txt", b"this is not sound\n" * 100
    yield "header-only.wav", wav(np.zeros(0, np.int16))
    yield "huge-header.wav", wav(np.zeros(0, np.int16), claim=2**32 - 1)
    yield "nan.wav", wav(np.full(16000, np.nan, np.float32))
    yield "infinite.wav", wav(np.full(16000, np.inf, np.float32))
    yield "no-channels.wav", wav(np.zeros(100, np.int16), channels=0)
    yield "five-hertz.wav", wav(np.zeros(60000, np.int16), rate=5)  # more than three hours in 120 kB
    yield "playlist.txt", f"ffconcat version 1.0\nfile {RECORDINGS / 'order.wav'}\n".encode()
    yield "playlist.m3u8", f"#EXTM3U\n#EXTINF:1,\n{RECORDINGS / 'order.wav'}\n".encode()
    yield "png.mp3", b"\x89PNG\r\n\x1a\n" + rng.randbytes(2000)
    for name in CONTAINERS:
        whole = (RECORDINGS / name).read_bytes()
        for cut in (1, 4, 12, 16, 24, 30):
            yield f"{cut}-bytes-of-{name}", whole[:cut]
        for i in range(4):
            yield f"{i}-headless-{name}", rng.randbytes(len(whole[:4000]))
    yield "zeros.wav", bytes(3000)
    for i in range(15):
        yield f"{i}-noise.bin", rng.randbytes(rng.randint(1, 5000))
    for i in range(5):
        yield f"{i}-letters.wav", bytes(rng.choice(b"abcdefgh \n") for _ in range(rng.randint(1, 3000)))


def test_broken_files_are_refused(stack: Stack) -> None:
    """Files without sound: 400, param=file, a sentence."""
    count = 0
    with httpx.Client(base_url=stack.url, timeout=60) as client:
        for name, content in broken_files():
            answer = client.post(
                "/v1/audio/transcriptions", files={"file": (name, content)}, data={"model": "mini-whisper"}
            )
            assert 400 <= answer.status_code < 500, f"{name}: {answer.status_code} {answer.text}"
            error = answer.json()["error"]
            assert error["param"] == "file", f"{name}: {error}"
            assert len(error["message"]) > 20
            assert "/tmp" not in error["message"]
            count += 1
    assert count >= 80


def test_damaged_files_never_break_the_server(stack: Stack) -> None:
    """Files with flipped or missing bytes may decode in part: words or a 4xx, never a 5xx."""
    rng = random.Random(SEED)
    for i in range(20):
        content = bytearray((RECORDINGS / CONTAINERS[i % 5]).read_bytes())
        if i % 2:
            del content[rng.randrange(100, len(content)) :]
        for _ in range(20):
            content[rng.randrange(len(content))] = rng.randrange(256)
        answer = stack.transcribe(bytes(content), model="mini-whisper", language="en")
        assert answer.status_code < 500, f"{i}: {answer.text}"
        assert "text" in answer.json() or answer.json()["error"]["param"] == "file"


FIELDS = [
    ({"model": "nothing"}, 404, "model"),
    ({}, 400, "model"),
    ({"model": ["mini-whisper", "mini-whisper"]}, 400, "model"),
    ({"audio_track": "2"}, 400, "audio_track"),
    ({"prompt": "x" * 100_000}, 400, "prompt"),
]


@pytest.mark.parametrize(("fields", "status", "param"), FIELDS)
def test_bad_fields_are_named(stack: Stack, fields: dict[str, str], status: int, param: str) -> None:
    """By the form (all of its rules: tests/unit/gateway/test_audio_form.py), the deployment and the model."""
    data = {"model": "mini-whisper", **fields} if fields else {}
    answer = stack.transcribe((RECORDINGS / "order.wav").read_bytes(), **data)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] == param


def test_broken_forms(stack: Stack) -> None:
    """No form, no file, two files, no closing boundary, no boundary."""
    url, sound = f"{stack.url}/v1/audio/transcriptions", (RECORDINGS / "order.wav").read_bytes()
    whole = httpx.Request("POST", url, files={"file": sound}, data={"model": "mini-whisper"})
    body, kind = whole.read(), whole.headers["content-type"]
    answers = [
        httpx.post(url, json={"model": "mini-whisper"}),
        httpx.post(url, files={"model": (None, "mini-whisper")}),
        httpx.post(url, files=[("file", sound), ("file", sound), ("model", (None, "mini-whisper"))]),
        httpx.post(url, content=body[:-20], headers={"content-type": kind}),
        httpx.post(url, content=body, headers={"content-type": "multipart/form-data"}),
        httpx.post(
            url, content=b"--x\r\nbroken", headers={"content-type": "multipart/form-data; boundary=x"}
        ),
        httpx.post(url, content=b""),
    ]
    for i, answer in enumerate(answers):
        assert answer.status_code == 400, f"{i}: {answer.status_code} {answer.text}"
        assert answer.json()["error"]["param"] == "file"


def test_a_body_without_a_length_is_taken(stack: Stack) -> None:
    whole = httpx.Request(
        "POST",
        stack.url,
        files={"file": (RECORDINGS / "order.wav").read_bytes()},
        data={"model": "mini-whisper"},
    )
    url, headers = f"{stack.url}/v1/audio/transcriptions", {"content-type": whole.headers["content-type"]}
    answer = httpx.post(url, content=iter([whole.read()]), headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text


def test_too_large_is_413(stack: Stack) -> None:
    """A body above the limit is refused in OpenAI's shape, whether its length is announced or not."""

    def chunks() -> Iterator[bytes]:
        for _ in range(112):
            yield bytes(1_000_000)

    url, headers = f"{stack.url}/v1/audio/transcriptions", {"content-type": "multipart/form-data; boundary=x"}
    for content in (bytes(116_000_000), chunks()):
        try:
            answer = httpx.post(url, content=content, headers=headers, timeout=60)
        except httpx.WriteError:
            continue  # nginx closed the connection early, as HTTP allows
        assert answer.status_code in (400, 413)
        assert answer.json()["error"]["message"]
