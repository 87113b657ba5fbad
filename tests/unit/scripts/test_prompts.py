"""scripts/prompts against a server made here, and what it reads, counts and writes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.clients import prompts
from scripts.clients.manifests import BadManifest
from scripts.clients.text_scores import Question, TextOutcome, figures, rouge, table
from tests.fakes.http_server import Handler, Recorder, answering

PIECES = ("El perro ", "come ", "pan.")
TEXT = "".join(PIECES)


class Double(Handler):
    """Both protocols; the prompt chooses how they behave. Requests are kept in `server.asked`."""

    def answer(self, raw: bytes) -> None:
        body = json.loads(raw)
        prompt = body.get("prompt", body.get("text_input"))
        gateway = self.path.startswith("/v1/")
        if prompt == "refused":
            error = {"error": {"message": "refused: ask another"} if gateway else "refused: ask another"}
            text = json.dumps(error)
            self.send(400, "application/json", text) if gateway or not body["stream"] else self.send(
                400, "text/event-stream", f"data: {text}\n\n"
            )
        elif prompt == "page":
            self.send(502, "text/html", "<html>Bad Gateway</html>")
        elif prompt == "else":
            self.send(200, "application/json", '{"hello": 1}')
        elif body.get("stream"):
            self._stream(prompt, gateway)
        else:
            self.send(200, "application/json", json.dumps(whole(gateway)))

    def _stream(self, prompt: str, gateway: bool) -> None:
        self.begin_events()
        for i, piece in enumerate(PIECES, 1):
            self.event(openai_chunk(piece) if gateway else {"text_output": piece, "num_output_tokens": i})
            time.sleep(0.02)
        if prompt == "midway":
            self.event(
                {
                    "error": {"message": "the instance died; send it again"}
                    if gateway
                    else "the instance died; send it again"
                }
            )
        elif gateway and prompt != "cut":
            self.event({"choices": [], "usage": {"completion_tokens": 3}})
            self.wfile.write(b"data: [DONE]\n\n")


def openai_chunk(piece: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": piece, "finish_reason": None}], "usage": None}


def whole(gateway: bool) -> dict[str, Any]:
    if gateway:
        return {
            "choices": [{"index": 0, "text": TEXT, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 2, "completion_tokens": 3},
        }
    return {"model_name": "ensemble", "text_output": TEXT, "num_output_tokens": 3}


@pytest.fixture
def double() -> Iterator[Recorder]:
    with answering(Double) as server:
        yield server


@pytest.fixture(params=["--url", "--triton"])
def server(request: pytest.FixtureRequest, double: Recorder) -> list[str]:
    return [str(request.param), double.url]


def file(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", "utf-8")
    return str(path)


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_counts_and_writes(
    server: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], stream: list[str]
) -> None:
    """Right and wrong answers, one without reference and a failure: figures on standard output, the failure
    on standard error, status 1.
    """
    rows = [
        {"prompt": "dog", "reference": TEXT, "id": "a"},
        {"text": "cat", "answer": "El gato come pan."},
        {"prompt": "refused"},
        {"prompt": "free"},
    ]
    answers = tmp_path / "answers.jsonl"
    assert (
        prompts.main([file(tmp_path, *rows), *server, *stream, "--num-tasks", "2", "--output", str(answers)])
        == 1
    )
    out, err = capsys.readouterr()
    assert "questions    3 answered, 1 failed" in out
    assert "exact        50.00 % of 2 with a reference" in out
    assert "ROUGE F      1 87.50 %, 2 66.67 %, L 87.50 %" in out  # of four words three, of three pairs one
    assert ": 9 tokens in" in out
    assert ("first words" in out) == bool(stream)
    assert err == "conch: 5: refused: ask another\n"  # the line's number stands for an id
    written = [json.loads(line) for line in answers.read_text("utf-8").splitlines()]
    assert [row["id"] for row in written] == ["a", "3", "5", "7"]
    assert written[0] | {"latency": 0, "first": 0} == {
        "id": "a",
        "prompt": "dog",
        "reference": TEXT,
        "answer": TEXT,
        "tokens": 3,
        "latency": 0,
        "first": 0,
        "error": "",
    }
    if stream:
        assert written[0]["first"] < written[0]["latency"] - 0.02


def test_json(server: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures for programs."""
    assert prompts.main([file(tmp_path, {"prompt": "dog", "reference": TEXT}), *server, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (
        found["answered"],
        found["failed"],
        found["exact"],
        found["rouge"]["rougeL"],
        found["tokens"],
    ) == (1, 0, 1.0, 1.0, 3)
    assert found["latency"].keys() == {"50", "95", "99"}


def test_sends_what_was_asked(double: Recorder, tmp_path: Path) -> None:
    """OpenAI's fields at the gateway; upstream's tensors at Triton, greedy being top_k of 1, the model named
    in a header.
    """
    questions, url = file(tmp_path, {"prompt": "hola"}), double.url
    options = ["--model", "m", "--max-tokens", "7", "--stop", "a", "--stop", "b", "--api-key", "secret"]
    assert prompts.main([questions, "--url", url + "/v1/", *options, "--temperature", "0.5"]) == 0
    assert prompts.main([questions, "--url", url, "--stream"]) == 0
    assert prompts.main([questions, "--triton", url, *options]) == 0
    assert (
        prompts.main(
            [questions, "--triton", url, "--facade", "tensorrt_llm_bls", "--stream", "--temperature", "0.5"]
        )
        == 0
    )
    asked = [(path, headers, json.loads(body)) for path, headers, body in double.asked]
    (path, headers, body), (_, _, streamed), (generate, with_model, tensors), (other, _, warm) = asked
    assert (path, headers["Authorization"]) == ("/v1/completions", "Bearer secret")
    assert body == {"model": "m", "prompt": "hola", "max_tokens": 7, "temperature": 0.5, "stop": ["a", "b"]}
    assert streamed["stream_options"] == {"include_usage": True}
    assert (generate, with_model["x-model-id"]) == ("/v2/models/ensemble/generate", "m")
    assert tensors == {
        "text_input": "hola",
        "max_tokens": 7,
        "stream": False,
        "top_k": 1,
        "stop_words": ["a", "b"],
    }
    assert other == "/v2/models/tensorrt_llm_bls/generate_stream"
    assert (warm["stream"], warm["temperature"], warm["top_p"]) == (True, 0.5, 1.0)


@pytest.mark.parametrize(
    ("prompt", "options", "complaint"),
    [
        ("page", [], "502 Bad Gateway"),
        ("else", [], "answered something else"),
        ("refused", ["--stream"], "refused: ask another"),
        ("midway", ["--stream"], "the instance died; send it again"),
    ],
)
def test_says_what_went_wrong(
    server: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    prompt: str,
    options: list[str],
    complaint: str,
) -> None:
    """One sentence for each failed request, in the server's words where it had any."""
    assert prompts.main([file(tmp_path, {"prompt": prompt, "id": "x"}), *server, *options]) == 1
    out, err = capsys.readouterr()
    assert err.startswith("conch: x: ")
    assert complaint in err
    assert err.count("\n") == 1
    assert out == "questions    0 answered, 1 failed\n"


def test_a_stream_cut_short_is_a_failure(
    double: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The gateway says when a stream is over."""
    url = double.url
    assert prompts.main([file(tmp_path, {"prompt": "cut"}), "--url", url, "--stream"]) == 1
    assert "the stream ended before its last event" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--url", "--triton"])
def test_nobody_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    """The sentence names the option that was wrong."""
    assert prompts.main([file(tmp_path, {"prompt": "x"}), option, "http://127.0.0.1:9"]) == 1
    assert f"start Conch (make serve) or name its address with {option}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("nonsense", "line 1 is not a JSON object"),
        ('{"prompt": "a"}\n[1]', "line 2 is not a JSON object; write one object a line"),
        ('{"query": "a"}', "line 1: no prompt is given; add the key prompt"),
        ('{"prompt": 3}', "line 1: no prompt is given"),
        ('{"prompt": "a", "reference": ["b"]}', "line 1: the reference is not a string"),
        ("\n", "contains no prompts"),
    ],
)
def test_unusable_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, complaint: str
) -> None:
    """What cannot be used is refused before a request is sent, with its place."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(content, "utf-8")
    with pytest.raises(BadManifest, match="."):
        prompts.read(path)
    assert prompts.main([str(path), "--url", "http://127.0.0.1:9"]) == 1
    assert complaint in capsys.readouterr().err
    assert prompts.main([str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl cannot be read" in capsys.readouterr().err


def test_figures() -> None:
    """Worked out by hand: ROUGE of accented words, blanks that do not matter, percentiles, and nothing to
    count.
    """
    assert rouge([("¿Dónde está el niño?", "dónde esta el niño")]) == pytest.approx(
        {"rouge1": 0.75, "rouge2": 1 / 3, "rougeL": 0.75}
    )
    assert rouge([("a b c d", "a c")])["rougeL"] == pytest.approx(2 * 1.0 * 0.5 / 1.5)
    question = Question("q", "?", "one  two\n")
    found = figures([TextOutcome(question, "one two", 2, float(i), 0.5) for i in range(1, 102)], 10.0)
    assert (found.exact, found.tokens_per_second) == (1.0, 20.2)
    assert found.latency == pytest.approx({50: 51, 95: 96, 99: 100})
    assert found.first == pytest.approx({50: 0.5, 95: 0.5, 99: 0.5})
    nothing = figures([TextOutcome(question, error="no")], 1.0)
    assert (nothing.exact, nothing.rouge, nothing.latency) == (None, {}, {})
    assert table(nothing) == [("questions", "0 answered, 1 failed")]
