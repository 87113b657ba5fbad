"""What every route answers: methods, paths that were meant, and bodies that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from conch.deployment import Pool

from .application import FakeTriton, application

FORM = "application/x-www-form-urlencoded"  # what curl -d says without a header


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[TestClient]:
    able = frozenset({"transcription"})
    speech = [
        Pool(name, "whisper", (0,), capabilities=able, languages=known, built=1_700_000_000)
        for name, known in {"a": ("en", "de"), "b.en": ("en",)}.items()
    ]
    with application(tmp_path, *speech, triton=FakeTriton(), model_aliases="mine=b.en") as client:
        yield client


@pytest.mark.parametrize("path", ["/v1/models", "/health/live", "/v1/models/a"])
def test_head_is_get_without_a_body(gateway: TestClient, path: str) -> None:
    answer = gateway.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == gateway.get(path).headers["content-length"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("PUT", "/v1/files", 405, "GET, HEAD, OPTIONS, POST"),
        ("OPTIONS", "/v1/models", 204, "GET, HEAD, OPTIONS"),
        ("GET", "/v1/chat/completions", 405, "OPTIONS, POST"),
        ("DELETE", "/v1/files/x", 404, None),
    ],
)
def test_methods(gateway: TestClient, method: str, path: str, status: int, allow: str | None) -> None:
    answer = gateway.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allow)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/audio/transcriptions", "did you mean /v1/audio/transcriptions?"),
        ("/v1/v1/models", "did you mean /v1/models?"),
        ("/v1/models/", "did you mean /v1/models?"),
        ("/openai/deployments/x/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/audio/speech", "no text to speech"),
        ("/v1/responses/resp_1", "keeps no responses"),
        ("/v1/frobnicate", "not found"),
    ],
)
def test_a_path_that_is_not_here_says_what_was_meant(gateway: TestClient, path: str, said: str) -> None:
    answer = gateway.post(path)
    assert answer.status_code == 404
    assert said in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        ('{"model": "ä"}'.encode("latin-1"), {}, 400, "encode it as UTF-8"),
        (b"{", {}, 400, "is not valid JSON"),
        (b"[" * 100_000, {}, 400, "JSON"),
        (b"null", {}, 400, "the body must be a JSON object"),
        (b"", {}, 400, "the body is missing"),
        (b'{"model": "a"}', {"content-type": "text/plain"}, 400, "Content-Type: application/json"),
        (b'{"model": "a"}', {"content-type": FORM}, 400, "Content-Type: application/json"),
        (b"\x1f\x8b", {"content-encoding": "gzip"}, 415, "send it uncompressed"),
    ],
)
def test_bodies_that_cannot_be_read(
    gateway: TestClient, body: bytes, headers: dict[str, str], status: int, said: str
) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        answer = gateway.post(path, content=body, headers={"content-type": "application/json", **headers})
        error = answer.json()["error"]
        assert (answer.status_code, set(error)) == (status, {"message", "type", "param", "code"})
        assert said in error["message"]
        assert error["code"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        *[("whisper-1", "a"), ("gpt-4o-transcribe", "a"), ("gpt-4o-mini-transcribe-2025-12-15", "a")],
        *[("gpt-transcribe", "a"), ("gpt-4o-transcribe-diarize", "a"), ("gpt-live-transcribe", "a")],
        *[("gpt-realtime-whisper", "a"), ("mine", "b.en"), ("b.en", "b.en")],
    ],
)
def test_names_of_openais_models_mean_the_first_one(gateway: TestClient, name: str, found: str) -> None:
    row = gateway.get(f"/v1/models/{name}").json()
    assert (row["id"], row["created"]) == (found, 1_700_000_000)


def test_a_name_that_nobody_has(gateway: TestClient) -> None:
    error = gateway.get("/v1/models/b-en").json()["error"]
    assert error["code"] == "model_not_found"
    assert "did you mean 'b.en'?" in error["message"]
    assert gateway.get("/v1/models/text-embedding-3-small").status_code == 404


def test_an_english_model_refuses_by_the_clients_field(gateway: TestClient) -> None:
    def ask(path: str, **fields: str) -> dict[str, Any]:
        answer = gateway.post(path, data={"model": "b.en", **fields}, files={"file": ("a.wav", b"RIFF")})
        assert answer.status_code == 400
        return dict(answer.json()["error"])

    refused = ask("/v1/audio/transcriptions", language="de")
    assert (refused["param"], "understands English only" in refused["message"]) == ("language", True)
    refused = ask("/v1/audio/translations")
    assert (refused["param"], "models here that do: a" in refused["message"]) == ("model", True)
