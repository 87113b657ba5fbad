"""The console's numbers, its page, and who may do what."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from conch.deployment import Chat, Pool
from gateway.console.history import SECONDS, SLOTS, History, quantile
from gateway.console.page import FILES, POLICY
from gateway.triton import TritonAnswer

from .application import application

STATUS = {
    "state": "serving",
    "in_flight": 2,
    "starts": 3,
    "deaths": 1,
    "probe": {"time": 1.0, "seconds": 0.1, "trouble": None},
    "success_seconds_ago": 0.5,
    "queue": {"requests": 4, "seconds": 0.2},
    "events": [{"time": 1.0, "event": "started", "error": False}],
}


class Guards:
    """nginx's internal listener in front of the guards; a guard without a status does not answer."""

    def __init__(self, statuses: dict[str, Any]) -> None:
        self.statuses, self.asked = statuses, list[str]()

    async def ask(self, method: str, path: str, *, seconds: float) -> TritonAnswer:
        self.asked.append(f"{method} {path}")
        assert seconds < 5
        index = path.split("/")[2]
        if index not in self.statuses:
            return TritonAnswer(503, {}, b"")
        return TritonAnswer(202 if method == "POST" else 200, {}, json.dumps(self.statuses[index]).encode())

    async def close(self) -> None:
        """Nothing is open."""


@contextmanager
def gateway(folder: Path, guards: Guards, **files: str) -> Iterator[TestClient]:
    """The application with two instances; `files`: contents of the files with keys."""
    chat = Chat("{{ messages }}")
    pool = Pool("mini", "gpt2", (0, 1), capabilities=frozenset({"completion"}), chat=chat, target="torch")
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    paths = {f"{name}_keys_file": folder / name for name in files}
    with application(folder, pool, triton=guards, **paths) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_state_is_the_plan_and_what_guards_say(tmp_path: Path) -> None:
    """A guard that does not answer makes its instance unreachable; the first start is no restart."""
    with gateway(tmp_path, Guards({"0": STATUS})) as client:
        state = client.get("/console/api/state").json()
    assert (state["operate"], state["retrieval"]) == ("off", None)
    (model,) = state["models"]
    assert (model["id"], model["target"], model["precision"], model["chat"]) == ("mini", "torch", "", True)
    first, second = state["instances"]
    assert (first["state"], first["restarts"], first["deaths"], first["gpus"]) == ("serving", 2, 1, "0")
    assert (second["state"], second["cpus"], second["events"]) == ("unreachable", [1], [])


def test_a_gateway_says_how_many_there_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert counts those that say so."""
    monkeypatch.setenv("CONCH_GATEWAYS", "3")
    with gateway(tmp_path, Guards({})) as client:
        assert "\nconch_gateway_planned 3.0\n" in client.get("/metrics/own").text


def test_many_pages_ask_the_guards_once(tmp_path: Path) -> None:
    guards = Guards({"0": STATUS, "1": STATUS})
    with gateway(tmp_path, guards) as client:
        for _ in range(5):
            client.get("/console/api/state")
    assert len(guards.asked) <= 4


@pytest.mark.parametrize(
    ("key", "index", "status"),
    [("user", 0, 403), ("admin", 0, 202), ("admin", 1, 503), ("admin", 7, 404), ("nobody", 0, 401)],
)
def test_who_may_restart(tmp_path: Path, key: str, index: int, status: int) -> None:
    """Admin keys alone; they are API keys, too."""
    guards = Guards({"0": STATUS})
    with gateway(tmp_path, guards, api="user\n", admin="# staff\nadmin\n") as client:
        answer = client.post(f"/console/api/instances/{index}/restart", headers=bearer(key))
        assert answer.status_code == status, answer.text
        expected = {"user": "denied", "admin": "allowed"}.get(key)
        if expected:
            assert client.get("/console/api/state", headers=bearer(key)).json()["operate"] == expected
    restarted = [line for line in guards.asked if line.startswith("POST")]
    assert restarted == ([f"POST /instances/{index}/guard/restart"] if status in (202, 503) else [])


@pytest.mark.parametrize("files", [{}, {"admin": ""}, {"api": "user\n", "admin": "# none yet\n"}])
def test_without_an_admin_key_nobody_restarts(tmp_path: Path, files: dict[str, str]) -> None:
    """An empty file opens nothing, whatever is sent."""
    guards = Guards({"0": STATUS})
    with gateway(tmp_path, guards, **files) as client:
        answer = client.post("/console/api/instances/0/restart", headers=bearer("user"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "off")
    assert guards.asked == []


def test_an_open_deployment_asks_admins_for_their_key(tmp_path: Path) -> None:
    """Without API keys everybody may look, and still only admins restart."""
    with gateway(tmp_path, Guards({"0": STATUS}), admin="admin\n") as client:
        assert client.get("/console/api/state").json()["operate"] == "denied"
        assert client.post("/console/api/instances/0/restart").status_code == 403
        key = bearer("admin")
        assert client.post("/console/api/instances/0/restart", headers=key).status_code == 202


def test_files_of_the_page(tmp_path: Path) -> None:
    """Without a key, with the policy, and short when the browser has them already."""
    with gateway(tmp_path, Guards({}), api="user\n") as client:
        for name in ("/", *(f"/console/{name}" for name in FILES)):
            answer = client.get(name)
            assert answer.status_code == 200
            assert answer.headers["content-security-policy"] == POLICY
            again = client.get(name, headers={"if-none-match": f"W/{answer.headers['etag']}"})
            assert (again.status_code, again.content) == (304, b"")
            assert client.head(name).status_code == 200
        assert client.get("/console/state.py").status_code == 404
        assert client.get("/console/api/state").status_code == 401


def test_a_live_session_brings_its_key_as_a_subprotocol(tmp_path: Path) -> None:
    """As OpenAI's client for browsers; the header wins, and another key is refused."""
    with gateway(tmp_path, Guards({}), api="user\n") as client:

        def status(protocols: str, **more: str) -> int:
            return client.get("/auth", headers={"Sec-WebSocket-Protocol": protocols, **more}).status_code

        assert status("realtime, openai-insecure-api-key.user, openai-beta.realtime-v1") == 204
        assert status("openai-insecure-api-key.nobody") == 401
        assert status("realtime") == 401
        assert status("openai-insecure-api-key.user", Authorization="Bearer nobody") == 401


class Clock:
    """Unix time that stands until it is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_point_is_what_a_slot_has_counted() -> None:
    """Probes and the page's own requests do not count; the slot that runs is no point yet."""
    clock = Clock()
    history = History(clock)
    rows = [("/v1/audio/transcriptions", 200, 0.3), ("/v1/audio/translations", 400, 0.1)]
    rows += [
        ("/health/ready", 200, 9.0),
        ("/console/api/state", 200, 9.0),
        ("/v1/chat/completions", 200, 2.0),
        ("/v1/embeddings", 200, 0.1),
        ("/v1/vector_stores/{store}/search", 404, 0.1),
    ]
    for row in rows:
        history.note(*row)
    assert history.points([history.text()]) == []
    clock.now += SECONDS
    (point,) = history.points([history.text()])
    assert point["time"] == 1000 + SECONDS
    assert (point["speech"]["rate"], point["speech"]["failures"]) == (2 / SECONDS, 1 / SECONDS)
    assert point["speech"]["mean"] == pytest.approx(0.2)
    assert 0.1 < point["speech"]["p95"] <= 0.5
    assert point["text"]["mean"] == pytest.approx(2.0)
    assert (point["embeddings"]["rate"], point["search"]["failures"]) == (1 / SECONDS, 1 / SECONDS)


def test_gateways_are_added_slot_by_slot() -> None:
    """One that does not answer, or is of another version, says nothing; slots without a request are zeros."""
    clock = Clock()
    one, two = History(clock), History(clock)
    one.note("/v1/completions", 200, 0.2)
    clock.now += 2 * SECONDS
    for _ in range(3):
        two.note("/v1/completions", 503, 0.6)
    one.note("/v1/completions", 200, 0.2)
    clock.now += SECONDS
    fewer = two.text().replace("[0, ", "[")  # other bounds
    assert fewer != two.text()
    points = one.points([one.text(), "", two.text(), '{"detail": "Not Found"}', "[]", fewer])
    assert [point["text"]["rate"] * SECONDS for point in points] == [1, 0, 4]
    assert [point["text"]["failures"] * SECONDS for point in points] == [0, 0, 3]
    assert points[2]["text"]["mean"] == pytest.approx(0.5)
    assert points[1]["text"] == {"rate": 0.0, "failures": 0.0, "mean": None, "p95": None}


def test_history_is_as_long_as_its_minutes() -> None:
    clock = Clock()
    history = History(clock)
    for _ in range(SLOTS + 50):
        history.note("/v1/completions", 200, 0.2)
        clock.now += SECONDS
    points = history.points([history.text()])
    assert len(points) == SLOTS
    assert {point["text"]["rate"] * SECONDS for point in points} == {1.0}
    assert len(history.slots) <= SLOTS + 1


def test_history_is_that_of_every_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is asked, over the address that siblings are asked at."""
    monkeypatch.setattr("gateway.console.history.SECONDS", 0.2)
    with gateway(tmp_path, Guards({})) as client:
        assert client.post("/v1/completions", json={"model": "nobody", "prompt": "a"}).status_code == 404
        told = client.get("/metrics/own/history").text
        time.sleep(0.4)
        found = client.get("/console/api/history").json()
    assert sum(point["text"]["rate"] for point in found["points"]) > 0
    assert sum(point["text"]["failures"] for point in found["points"]) > 0
    assert History().points([told]) != []


def test_quantiles_are_those_of_prometheus() -> None:
    """Linear inside a bucket; beyond the last bound, that bound; none without a request."""
    buckets = [(0.1, 0.0), (0.5, 10.0), (1.0, 20.0), (float("inf"), 20.0)]
    assert quantile(buckets, 0.5) == pytest.approx(0.5)
    assert quantile(buckets, 0.95) == pytest.approx(0.95)
    assert quantile([(1.0, 0.0), (float("inf"), 5.0)], 0.5) == 1.0
    assert quantile([(1.0, 0.0), (float("inf"), 0.0)], 0.5) is None
    assert quantile([], 0.5) is None
