"""scripts/ask and manifests with pictures against a server made here, which looks at their colour."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from scripts.clients import ask, prompts
from scripts.clients.manifests import BadManifest
from tests.fakes.http_server import Handler, Recorder, answering


class Looker(Handler):
    """Both protocols: says the colour of the first pixel of each picture."""

    def answer(self, raw: bytes) -> None:
        body = json.loads(raw)
        gateway = self.path == "/v1/chat/completions"
        if gateway:
            *parts, words = body["messages"][0]["content"]
            assert words["type"] == "text"
            urls = [part["image_url"]["url"] for part in parts]
        else:
            urls = body.get("image_urls", [])
        text = " ".join(map(colour, urls)) or "nothing"
        if body.get("stream"):
            self.begin_events()
            for word in text.split():
                piece = {"choices": [{"index": 0, "delta": {"content": word}}]}
                self.event(piece if gateway else {"text_output": word, "num_output_tokens": 1})
            if gateway:
                self.wfile.write(b"data: [DONE]\n\n")
            return
        whole: dict[str, Any] = {"text_output": text, "num_output_tokens": 1}
        if gateway:
            message = {"index": 0, "message": {"role": "assistant", "content": text}}
            whole = {"choices": [message], "usage": {"completion_tokens": 1}}
        self.send(200, "application/json", json.dumps(whole))


def colour(url: str) -> str:
    head, data = url.split(",", 1)
    assert head == "data:image/png;base64"
    red, _, blue = Image.open(BytesIO(base64.b64decode(data))).getpixel((0, 0))  # type: ignore[misc]
    return "red" if red > blue else "blue"


@pytest.fixture
def looker() -> Iterator[Recorder]:
    with answering(Looker) as server:
        yield server


@pytest.fixture(params=["--url", "--triton"])
def server(request: pytest.FixtureRequest, looker: Recorder) -> list[str]:
    return [str(request.param), looker.url]


@pytest.fixture
def pictures(tmp_path: Path) -> list[str]:
    for name in ("red", "blue"):
        Image.new("RGB", (4, 4), name).save(tmp_path / f"{name}.png")
    return [str(tmp_path / f"{name}.png") for name in ("red", "blue")]


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_ask(
    server: list[str], pictures: list[str], stream: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One picture, two, and none at all."""
    assert ask.main([pictures[0], "which colour?", *server, *stream]) == 0
    assert capsys.readouterr().out == "red\n"
    assert ask.main([*pictures, "which colours?", *server, *stream]) == 0
    assert capsys.readouterr().out.replace(" ", "") == "redblue\n"


def test_ask_about_no_picture(server: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is none, or is not there, is named before anything is sent."""
    (tmp_path / "notes.txt").write_text("hello")
    for name, says in (("notes.txt", "is not a picture"), ("gone.png", "No such file")):
        assert ask.main([str(tmp_path / name), "what?", *server]) == 1
        assert says in capsys.readouterr().err


def test_a_manifest_with_pictures(
    server: list[str], pictures: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exact answers are counted; the page shows the pictures, what was wrong first."""
    rows = [
        {"question": "<colour>?", "answer": "red", "image": "red.png"},
        {"prompt": "wrong?", "answer": "green", "image": ["blue.png"]},
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report, answers = tmp_path / "report.html", tmp_path / "answers.jsonl"
    assert prompts.main([str(path), *server, "--report", str(report), "--output", str(answers)]) == 0
    assert "50.00 % of 2" in capsys.readouterr().out
    page = report.read_text("utf-8")
    assert page.count("<img") == 2
    assert page.count('<tr class="wrong">') == 1
    assert page.index("wrong?") < page.index("&lt;colour&gt;?")
    written = [json.loads(line) for line in answers.read_text("utf-8").splitlines()]
    assert [row["answer"] for row in written] == ["red", "blue"]
    assert written[0]["image"] == [pictures[0]]


@pytest.mark.parametrize(
    ("image", "says"),
    [("gone.png", "does not exist"), (3, "image must be"), (["red.png", 4], "image must be")],
)
def test_pictures_that_are_none(pictures: list[str], tmp_path: Path, image: Any, says: str) -> None:
    """The line is named."""
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"prompt": "what?", "image": image}) + "\n")
    with pytest.raises(BadManifest, match=f"line 1: .*{says}"):
        prompts.read(path)
