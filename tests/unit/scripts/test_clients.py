"""scripts/transcribe and scripts/dataset against a server made here, and what they read, count and write."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from miniatures.training.speech.clips import Clipper
from miniatures.training.speech.folder import write as write_folder
from miniatures.training.speech.recordings import encode
from scripts.clients import dataset, transcribe
from scripts.clients.manifests import BadManifest, ManifestRow, read, seconds
from scripts.clients.report import write
from scripts.clients.scores import Outcome, SpeechScores, score, table
from tests.fakes.http_server import Handler, Recorder, answering

DELTAS = ("Where is ", "the «niño»", "?")
TEXT = "".join(DELTAS)


class Double(Handler):
    """The gateway's contract for transcriptions; the model's name chooses how it behaves. Uploads are kept in
    `server.asked`.
    """

    def answer(self, body: bytes) -> None:
        if b"broken" in body:
            error = {"error": {"message": "broken: send a better one", "type": "invalid_request_error"}}
            self.send(400, "application/json", json.dumps(error))
        elif b"page" in body:
            self.send(502, "text/html", "<html>Bad Gateway</html>")
        elif b'name="stream"' in body:
            self._stream(body)
        else:
            self.send(200, "text/plain", TEXT + "\n")

    def _stream(self, body: bytes) -> None:
        self.begin_events()
        for delta in DELTAS:
            self.event({"type": "transcript.text.delta", "delta": delta})
            time.sleep(0.02)
        if b"midway" in body:
            self.event({"error": {"message": "the instance died; send it again"}}, "error")
        elif b"cut" not in body:
            self.event(
                {"type": "transcript.text.done", "text": TEXT, "usage": {"type": "duration", "seconds": 1}}
            )


@pytest.fixture
def double() -> Iterator[Recorder]:
    with answering(Double) as server:
        yield server


@pytest.fixture
def url(double: Recorder) -> str:
    return double.url


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """One second of a tone."""
    path = tmp_path / "tone.wav"
    encode(0.1 * np.sin(np.arange(16_000) / 10).astype(np.float32), path, 16_000, 1, "pcm_s16le")
    return path


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_prints_the_words(
    url: str, recording: Path, capsys: pytest.CaptureFixture[str], stream: list[str]
) -> None:
    """The transcript and nothing else is on standard output, streamed or not."""
    assert transcribe.main([str(recording), "--url", url, *stream]) == 0
    assert capsys.readouterr() == (TEXT + "\n", "")


def test_sends_what_was_asked(double: Recorder, url: str, recording: Path) -> None:
    """Options arrive as OpenAI's form fields, the key as a bearer token, the file with its name; what was not
    asked for is not sent.
    """
    asked = {"model": "m", "language": "es", "prompt": "Señor López"}
    options = [part for name, value in asked.items() for part in (f"--{name}", value)]
    options += ["--translate", "--format", "srt", "--api-key", "secret"]
    assert transcribe.main([str(recording), "--url", url + "/v1/", *options]) == 0
    path, headers, body = double.asked[0]
    assert path == "/v1/audio/translations"
    assert headers["Authorization"] == "Bearer secret"
    for name, value in {**asked, "response_format": "srt"}.items():
        assert f'name="{name}"\r\n\r\n{value}\r\n'.encode() in body
    assert b'filename="tone.wav"' in body
    assert recording.read_bytes() in body
    assert b'name="stream"' not in body


def test_stream_asks_for_json(double: Recorder, url: str, recording: Path) -> None:
    """A streamed request names the one format that events have."""
    assert transcribe.main([str(recording), "--url", url, "--stream"]) == 0
    body = double.asked[0][2]
    assert b'name="stream"\r\n\r\ntrue\r\n' in body
    assert b'name="response_format"\r\n\r\njson\r\n' in body


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--model", "broken"], "broken: send a better one"),
        (["--model", "page"], "502 Bad Gateway"),
        (["--model", "midway", "--stream"], "the instance died; send it again"),
        (["--model", "cut", "--stream"], f"the stream ended after {len(TEXT)} characters"),
        (["--model", "broken", "--stream"], "broken: send a better one"),
        (["--url", "http://127.0.0.1:9", "--model", "a"], "start Conch (make serve)"),
        (["--url", "127.0.0.1", "--model", "a"], "no answer from 127.0.0.1"),
        (["--triton", "127.0.0.1:9"], "start Conch or correct --triton"),
        (["--triton", "127.0.0.1:9", "--stream"], "start Conch or correct --triton"),
        (["--triton", "127.0.0.1:9", "--format", "vtt"], "Triton returns plain text only"),
    ],
)
def test_says_what_went_wrong(
    url: str, recording: Path, capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    """A failed request is one sentence on standard error, in the server's words where it had any, and exit
    status 1.
    """
    where = [] if {"--url", "--triton"} & set(options) else ["--url", url]
    assert transcribe.main([str(recording), *where, *options]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"conch: {recording}: ")
    assert complaint in error
    assert error.count("\n") == 1


def test_other_files_go_on(url: str, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there costs the others nothing."""
    assert transcribe.main(["missing.wav", str(recording), "--url", url]) == 1
    assert capsys.readouterr() == (
        TEXT + "\n",
        "conch: missing.wav: the file cannot be read (No such file or directory); name an audio file\n",
    )


def test_triton_takes_one_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More than 30 s is refused before anything is sent, with the way that would work."""
    encode(np.zeros(31 * 16_000, np.float32), tmp_path / "long.wav", 16_000, 1, "pcm_s16le")
    assert transcribe.main([str(tmp_path / "long.wav"), "--triton", "127.0.0.1:9"]) == 1
    assert (
        "it lasts 31.0 s, Triton's whisper_bls takes 30 s; send it to the gateway" in capsys.readouterr().err
    )


# --- data sets ------------------------------------------------------------------------------------


def jsonl(folder: Path) -> Path:
    """Three rows, one for each name of the recording's key."""
    rows = [
        {"audio_filepath": "a.wav", "text": "uno", "language": "es", "duration": 1.5},
        {"audio": "b.wav", "text": "two"},
        {"path": str(folder / "a.wav"), "text": "three", "language": None, "duration": None},
    ]
    path = folder / "manifest.jsonl"
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n", "utf-8")
    return path


def kaldi(folder: Path) -> Path:
    """A data folder with languages; one path is the folder's own, one is absolute."""
    (folder / "wav.scp").write_text(f"utt1 a.wav\nutt2  {folder}/b.wav\n", "utf-8")
    (folder / "text").write_text("utt2 two  words\nutt1 uno\n", "utf-8")
    (folder / "utt2lang").write_text("utt1 es\n", "utf-8")
    return folder


@pytest.fixture
def sounds(tmp_path: Path, recording: Path) -> Path:
    """A folder with a.wav and b.wav."""
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("a.wav", "b.wav"):
        (folder / name).write_bytes(recording.read_bytes())
    return folder


def test_jsonl(sounds: Path) -> None:
    """Paths count from the manifest's folder; language and duration are optional."""
    found = read(jsonl(sounds))
    assert found[0] == ManifestRow("a.wav", sounds / "a.wav", "uno", "es", 1.5)
    assert found[1] == ManifestRow("b.wav", sounds / "b.wav", "two")
    assert found[2] == ManifestRow(str(sounds / "a.wav"), sounds / "a.wav", "three")
    assert [seconds(utterance) for utterance in found] == pytest.approx([1.5, 1.0, 1.0])


def test_kaldi(sounds: Path) -> None:
    """wav.scp orders, text and utt2lang are looked up."""
    assert read(kaldi(sounds)) == [
        ManifestRow("utt1", sounds / "a.wav", "uno", "es"),
        ManifestRow("utt2", sounds / "b.wav", "two  words"),
    ]


def test_folder(sounds: Path) -> None:
    """A .txt names the recording next to it, in subfolders too; a recording without text is none of the data
    set.
    """
    (sounds / "deep").mkdir()
    (sounds / "b.wav").rename(sounds / "deep" / "b.wav")
    (sounds / "deep" / "b.txt").write_text("two\n", "utf-8")
    assert read(sounds) == [ManifestRow("deep/b.wav", sounds / "deep" / "b.wav", "two")]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("m.jsonl", "nonsense", "line 1 is not a JSON object"),
        ("m.jsonl", "[1]", "line 1 is not a JSON object"),
        (
            "m.jsonl",
            '{"audio": "a.wav", "text": ""}\n{"text": "x"}',
            "line 2: no recording is named; give audio_filepath, audio or path",
        ),
        ("m.jsonl", '{"audio": "a.wav"}', "line 1: the key text is missing"),
        ("m.jsonl", '{"audio": "a.wav", "text": "", "duration": "long"}', "line 1: duration is not a number"),
        (
            "m.jsonl",
            '{"audio": "a.wav", "text": ""}\n{"audio": "nowhere.wav", "text": ""}',
            "1 of 2 recordings do not exist",
        ),
        ("m.jsonl", "", "contains no utterances"),
        ("m.jsonl", b"\xff\xfe\x00", "cannot be read as UTF-8 text"),
        ("wav.scp", "utt1 a.wav\n", "has no line for utt1; add one"),
        ("wav.scp", "utt1 sph2pipe x.sph |\n", "utt1 is a command"),
        ("segments", "utt1 rec1 0 1\n", "segments cuts recordings into utterances"),
        ("c.txt", "words", "c.txt there is no recording; exactly one file"),
        ("other.md", "", "or recordings, each with a .txt of the same name"),
    ],
)
def test_unusable_data_set(
    sounds: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | bytes, complaint: str
) -> None:
    """What cannot be used is refused before a request is sent, with its place."""
    (sounds / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    if name == "segments":
        kaldi(sounds)
    path = sounds / name if name.endswith("jsonl") else sounds
    with pytest.raises(BadManifest, match="."):
        read(path)
    assert dataset.main([str(path)]) == 1
    assert complaint in capsys.readouterr().err


def test_two_recordings_of_one_name(sounds: Path) -> None:
    """It is not guessed which of them a text belongs to."""
    (sounds / "a.txt").write_text("one", "utf-8")
    (sounds / "a.mp3").write_bytes(b"")
    with pytest.raises(BadManifest, match=r"^next to \S+a\.txt there is a\.mp3 and a\.wav"):
        read(sounds)


def outcome(reference: str, text: str, latency: float = 1.0, **more: object) -> Outcome:
    return Outcome(
        ManifestRow(reference[:5] or "none", Path("x.wav"), reference), 10.0, text, latency, **more
    )  # type: ignore[arg-type]


@pytest.fixture
def scores() -> SpeechScores:
    """Two right answers, one of them after normalisation; four kinds of trouble."""
    outcomes = [
        outcome("Hugo has ten keys.", "hugo has 10 keys", 1.0),
        outcome("all is well", "all is well", 2.0),
        outcome("the red cat", "the bad cat", 3.0),
        outcome("a red cat now", "red cat", 4.0),
        outcome("", "hello", 5.0),
        outcome("never heard", "", error="queue is full; send it again"),
    ]
    return score(outcomes, 5.0, "english", cer=True)


def test_counts(scores: SpeechScores) -> None:
    """Errors are counted by kind after normalisation; failed requests enter no rate."""
    assert scores.substitutions == {("red", "bad"): 1}
    assert scores.deletions == {"a": 1, "now": 1}
    assert scores.insertions == {"hello": 1}
    assert scores.words == 4 + 3 + 3 + 4
    assert scores.wer == pytest.approx(4 / 14)
    assert scores.rtfx == pytest.approx(10.0)
    assert scores.latency == pytest.approx({50: 3.0, 90: 4.6, 99: 4.96})
    assert [comparison.wer for comparison in scores.comparisons] == pytest.approx([0, 0, 1 / 3, 0.5, 1])
    assert dict(table(scores))["utterances"] == "5 answered, 1 failed"
    assert "first words" not in dict(table(scores))


def test_normalizers() -> None:
    """Without one every comma counts; the multilingual one keeps accents and numbers as they are."""
    pair = [outcome("¡Señor, diez!", "señor diez")]
    assert score(pair, 1.0, "none").wer == 1.0
    assert score(pair, 1.0, "multilingual").wer == 0.0
    assert score([outcome("ten", "10")], 1.0, "multilingual").wer == 1.0
    assert score([outcome("ten", "10")], 1.0, "english").wer == 0.0


def test_report_files(scores: SpeechScores, tmp_path: Path) -> None:
    """Four files with the same figures; the page needs no other file."""
    write(tmp_path / "new" / "report", {"data set": "x"}, scores)
    folder = tmp_path / "new" / "report"
    data = json.loads((folder / "report.json").read_text("utf-8"))
    assert data["figures"]["wer"] == scores.wer
    assert data["figures"]["failed"] == 1
    assert data["errors"]["substitutions"] == [["red → bad", 1]]
    assert [row["error"] for row in data["utterances"] if row["error"]] == ["queue is full; send it again"]
    errors = (folder / "errors.txt").read_text("utf-8")
    assert "DELETIONS: 2\n     1  a\n     1  now\n" in errors
    assert "reference   the red cat\nhypothesis  the bad cat" in errors
    page = (folder / "report.html").read_text("utf-8")
    assert "the <del>red</del> <ins>bad</ins> cat" in page
    assert 'src="data:image/png;base64,' in page
    assert "http" not in page
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")


def test_report_escapes(tmp_path: Path) -> None:
    """What data sets and servers say is text on the page, never markup."""
    write(
        tmp_path,
        {"data set": "a & b"},
        score([outcome("<b>one</b>", "<script>"), outcome("x", "", error="<i>")], 1.0, "none"),
    )
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "a &amp; b" in page
    assert "<del>&lt;b&gt;one&lt;/b&gt;</del> <ins>&lt;script&gt;</ins>" in page
    assert "<i>" not in page


def test_nothing_answered(tmp_path: Path) -> None:
    """A run in which all failed still has a report."""
    scores = score([outcome("never heard", "", error="no")], 1.0, "none", cer=True)
    write(tmp_path, {"data set": "x"}, scores)
    assert dict(table(scores))["WER"].startswith("none")
    assert json.loads((tmp_path / "report.json").read_text())["figures"]["wer"] is None


def test_dataset_counts_failures(
    double: Recorder, url: str, sounds: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Streamed from several tasks; a failed request is listed, the others count, the data set's language
    wins, exit status 1.
    """
    rows = [{"path": "a.wav" if i % 2 else "b.wav", "text": TEXT, "language": "es"} for i in range(20)]
    (sounds / "broken.wav").write_bytes((sounds / "a.wav").read_bytes())
    rows.insert(7, {"path": "broken.wav", "text": "x"})
    (sounds / "m.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    report = tmp_path / "report"
    options = ["--url", url, "--language", "en", "--stream", "--num-tasks", "4", "--compute-cer"]
    options += ["--report", str(report)]
    assert dataset.main([str(sounds / "m.jsonl"), *options]) == 1
    out, err = capsys.readouterr()
    assert "utterances   20 answered, 1 failed" in out
    assert "first words" in out
    assert "CER          0.00 %" in out
    assert err == "conch: broken.wav: broken: send a better one\n"
    figures = json.loads((report / "report.json").read_text())["figures"]
    assert figures["wer"] == 0
    assert figures["first"]["50"] < figures["latency"]["50"] - 0.02
    languages = [b'name="language"\r\n\r\nes' in body for _, _, body in double.asked]
    assert sum(languages) == 20


@pytest.mark.slow  # encodes in all containers
def test_made_folder(clipper: Clipper, tmp_path: Path) -> None:
    """Made recordings are a data set in two of the three forms, in all containers."""
    write_folder(clipper, tmp_path, 8)
    plain, listed = read(tmp_path), read(tmp_path / "manifest.jsonl")
    assert [(u.name, u.text) for u in plain] == [(u.name, u.text) for u in listed]
    assert {u.path.suffix for u in plain} == {".wav", ".flac", ".mp3", ".ogg"}
    assert {u.language for u in listed} == {"en", "es"}
    assert [seconds(u) for u in plain] == pytest.approx([u.duration for u in listed], abs=0.1)
