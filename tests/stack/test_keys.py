"""With API keys and a request rate: which listeners ask, and what counts as one client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
import websockets

from tests.ports import first_port

from .conftest import Stack, portable, started

PORT = first_port("keys")
KEY, OTHER = "first-key", "second-key"
BURST = 5


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A request every 20 s for each key, and five more at once."""
    home: Path = tmp_path_factory.mktemp("keys")
    (home / "keys").write_text(f"{KEY}\n{OTHER}\n", "utf-8")
    environment = {
        **portable(home, PORT, "mini-whisper", 1),
        "API_KEYS_FILE": str(home / "keys"),
        "RATE_LIMIT": "3r/m",
        "RATE_BURST": str(BURST),
    }
    with started(environment) as stack:
        yield stack


def connect(stack: Stack, key: str) -> int:
    """The status of a live session that brings its key as a page does; 101 where it says hello."""

    async def attempt() -> int:
        url = f"{stack.url.replace('http', 'ws')}/v1/realtime?intent=transcription"
        protocols = [websockets.Subprotocol(name) for name in ("realtime", f"openai-insecure-api-key.{key}")]
        try:
            async with websockets.connect(url, subprotocols=protocols) as socket:
                assert socket.subprotocol == "realtime"
                assert json.loads(await socket.recv())["type"] == "session.created"
                return 101
        except websockets.InvalidStatus as refused:
            return refused.response.status_code

    return asyncio.run(attempt())


def test_a_key_is_one_client_however_it_comes(keyed: Stack) -> None:
    """Sessions and requests of a key share its budget; another key has its own; a wrong one is refused."""
    assert connect(keyed, "no-key") == 401
    statuses = [connect(keyed, KEY) for _ in range(3)]
    right = {"authorization": f"Bearer {KEY}"}
    answers = [httpx.get(f"{keyed.url}/v1/models", headers=right) for _ in range(6)]
    statuses += [answer.status_code for answer in answers]
    assert statuses[: 1 + BURST] == [101, 101, 101, 200, 200, 200]
    assert set(statuses[1 + BURST :]) == {429}
    assert answers[-1].json()["error"]["code"] == "rate_limit_exceeded"
    assert int(answers[-1].headers["retry-after"]) >= 1
    without = [httpx.get(url) for url in (f"{keyed.url}/v1/models", f"{keyed.url}/v2", f"{keyed.kserve}/v2")]
    assert [answer.status_code for answer in without] == [401, 401, 401]
    assert without[0].headers["x-request-id"]
    assert connect(keyed, KEY) == 429
    assert connect(keyed, OTHER) == 101


def test_files_of_the_console_are_free(keyed: Stack) -> None:
    """The page is a dozen files at once; what it asks for counts."""
    with httpx.Client(base_url=keyed.url) as client:
        assert {client.get("/").status_code for _ in range(3 * BURST)} == {200}
        assert {client.get("/console/main.js").status_code for _ in range(3 * BURST)} == {200}
        assert client.get("/console/api/state").status_code == 401


def test_a_client_secret_opens_live_sessions_alone(keyed: Stack) -> None:
    """Whatever its bearer says of the address that it asks for."""
    url, right = f"{keyed.url}/v1/realtime/client_secrets", {"authorization": f"Bearer {OTHER}"}
    assert httpx.post(url, json={}, headers={"authorization": "Bearer ek_a.b"}).status_code == 401
    secret = httpx.post(url, json={"session": {"type": "transcription"}}, headers=right).json()["value"]
    assert connect(keyed, secret) == 101
    odd = {"authorization": "Bearer ek_x.é".encode()}
    assert httpx.get(f"{keyed.url}/v1/realtime", headers=odd).status_code == 401
    wrong = {"authorization": f"Bearer {secret}", "x-conch-uri": "/v1/realtime"}
    assert httpx.get(f"{keyed.url}/v1/models", headers=wrong).status_code == 401
    assert httpx.get(f"{keyed.kserve}/v2/models/stats", headers=wrong).status_code == 401
    with grpc.insecure_channel(keyed.grpc) as channel:
        for metadata, code in ((wrong, "UNAUTHENTICATED"), (right, "OK")):
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive").future(
                b"", metadata=[*metadata.items()]
            )
            assert call.code().name == code
