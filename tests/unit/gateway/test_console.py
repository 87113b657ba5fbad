"""The console's numbers, its page, and who may do what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from conch.deployment import Chat, Deployment, Instance, Pool
from gateway.app import create_app
from gateway.console.history import History, counters, increase, quantile, sample
from gateway.console.page import FILES, POLICY
from gateway.metrics import Metrics
from gateway.settings import Settings

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
    """nginx's internal listener with the guards behind it; a guard without a status does not answer."""

    def __init__(self, statuses: dict[str, Any]) -> None:
        self.statuses, self.asked = statuses, list[str]()
        transport = httpx.MockTransport(self.answer)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://nginx")

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(f"{request.method} {request.url.path}")
        index = request.url.path.split("/")[2]
        if index not in self.statuses:
            return httpx.Response(503)
        return httpx.Response(202 if request.method == "POST" else 200, json=self.statuses[index])

    async def close(self) -> None:
        await self.http.aclose()


@contextmanager
def gateway(folder: Path, guards: Guards, **files: str) -> Iterator[TestClient]:
    """The application with two instances; `files`: contents of the files with keys."""
    instances = tuple(Instance(i, "mini", "gpt2", "x", (i,), "a:1", "a:2", gpus=str(i)) for i in range(2))
    chat = Chat("{{ messages }}")
    pool = Pool("mini", "gpt2", (0, 1), capabilities=frozenset({"completion"}), chat=chat, target="torch")
    Deployment(instances, (pool,)).save(folder / "deployment.json")
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    paths = {f"{name}_keys_file": folder / name for name in files}
    settings = Settings(deployment=folder / "deployment.json", **paths)  # type: ignore[arg-type]
    with TestClient(create_app(settings, triton=guards)) as client:  # type: ignore[arg-type]
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


def counted(*rows: tuple[str, int, float]) -> str:
    """Metrics of a gateway after requests of (path, status, seconds)."""
    metrics = Metrics()
    for path, status, seconds in rows:
        metrics.requests.labels(path, status, "m").inc()
        metrics.latency.labels(path, "m").observe(seconds)
    return metrics.text()


def test_a_point_is_the_difference_of_two_samples() -> None:
    """Probes and the page's own requests are no inference."""
    speech = ("/v1/audio/transcriptions", 200, 0.3)
    before = counters(counted(speech))
    rows = [speech, speech, ("/v1/audio/translations", 400, 0.1), ("/health/ready", 200, 9.0)]
    rows += [("/console/api/state", 200, 9.0), ("/v1/chat/completions", 200, 2.0)]
    grown = increase(before, counters(counted(*rows)))
    found = sample(grown, "speech", 2.0)
    assert (found["rate"], found["failures"]) == (1.0, 0.5)
    assert found["mean"] == pytest.approx(0.2)
    assert sample(grown, "text", 2.0)["mean"] == pytest.approx(2.0)
    assert sample({}, "text", 2.0) == {"rate": 0.0, "failures": 0.0, "mean": None, "p95": None}


def test_a_gateway_that_starts_anew_counts_from_zero() -> None:
    old = {("a", "requests", "text", ""): 100.0, ("b", "requests", "text", ""): 50.0}
    new = {("a", "requests", "text", ""): 3.0, ("b", "requests", "text", ""): 51.0}
    assert increase(old, new)["requests", "text", ""] == 4.0


def test_quantiles_are_those_of_prometheus() -> None:
    """Linear inside a bucket; beyond the last bound, that bound; none without a request."""
    buckets = [(0.1, 0.0), (0.5, 10.0), (1.0, 20.0), (float("inf"), 20.0)]
    assert quantile(buckets, 0.5) == pytest.approx(0.5)
    assert quantile(buckets, 0.95) == pytest.approx(0.95)
    assert quantile([(1.0, 0.0), (float("inf"), 5.0)], 0.5) == 1.0
    assert quantile([(1.0, 0.0), (float("inf"), 0.0)], 0.5) is None
    assert quantile([], 0.5) is None


def test_history_samples_until_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.console.history.SECONDS", 0.01)
    texts = iter([counted(), counted(("/v1/completions", 200, 0.2))] + [counted()] * 10_000)

    async def check() -> History:
        history = History()

        async def scraped() -> str:
            return next(texts)

        task = asyncio.create_task(history.run(scraped))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return history

    points = asyncio.run(check()).points
    assert points[0]["text"]["rate"] > 0
    assert points[0]["speech"]["rate"] == 0
    assert len(points) > 1
