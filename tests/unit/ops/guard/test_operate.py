"""What a guard says of itself, and who may ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import orjson

from conch.http_client import Lost
from ops.guard.journal import KEPT, Journal
from ops.guard.metrics import GuardMetrics
from ops.guard.operate import Operator
from ops.guard.proxy.http_front import HttpFront
from ops.guard.proxy.relay import Life, Relay
from ops.guard.proxy.service import Service
from ops.guard.supervise.failures import Failures
from ops.guard.supervise.keeper import Keeper
from tests.fakes.http_server import Handler, answering

from .test_http import serving

STATISTICS = {
    "model_stats": [
        {"name": "a", "inference_stats": {"queue": {"count": 3, "ns": 2_000_000}}},
        {"name": "b", "inference_stats": {"queue": {"count": "1", "ns": "500000"}}},
        {"name": "never asked", "inference_stats": {"queue": {}}},
    ]
}


class Server:
    """A tritonserver's HTTP listener; without statistics it is lost."""

    def __init__(self, statistics: dict[str, Any] | None, status: int = 200) -> None:
        self.statistics, self.status = statistics, status

    async def request(self, method: str, path: str, _headers: dict[str, str]) -> Server:
        assert (method, path) == ("GET", "/v2/models/stats")
        if self.statistics is None:
            raise Lost("gone")
        return self

    async def body(self) -> bytes:
        return orjson.dumps(self.statistics)


def operator(key: str = "", metrics: str = "") -> Operator:
    relay = Relay([], GuardMetrics())
    unused: Any = None
    return Operator(
        Keeper(relay, unused, unused, unused, None, Journal("triton-0"), Failures(Path("/nonexistent"))),
        key,
        metrics,
    )


async def test_status_follows_the_server() -> None:
    found = operator()
    relay = found.keeper.relay
    status = await found.status()
    assert (status["state"], status["queue"], status["success_seconds_ago"]) == ("starting", None, None)
    relay.begin(Life(Server(STATISTICS), None))  # type: ignore[arg-type]
    found.keeper.answered()
    status = await found.status()
    assert (status["state"], status["in_flight"]) == ("serving", 0)
    assert status["queue"] == {"requests": 4, "seconds": 0.0025}
    assert status["success_seconds_ago"] < 5
    relay.stopping = True
    assert (await found.status())["state"] == "draining"
    relay.begin(Life(Server(None), None))  # type: ignore[arg-type]
    assert (await found.status())["queue"] is None
    relay.begin(Life(Server({"error": "Server exiting"}, 400), None))  # type: ignore[arg-type]
    assert (await found.status())["queue"] is None


def test_a_journal_forgets_the_oldest() -> None:
    journal = Journal("triton-0")
    for n in range(KEPT + 5):
        journal.note("event", n=n)
    assert len(journal.events) == KEPT
    assert journal.events[0]["n"] == 5


async def test_operations_need_the_key() -> None:
    """Over HTTP: nothing without it, and each path for its method; a socket of this user alone has no key. A
    restart is what SIGHUP does.
    """
    found = operator("k")
    unused: Any = None
    front = HttpFront(Service(found.keeper.relay, unused, lambda: None), found)
    async with serving(front) as address, httpx.AsyncClient(base_url=f"http://{address}") as client:
        key = {"x-conch-inner": "k"}
        assert (await client.get("/guard/status")).status_code == 403
        for other in ("j", "kk", ""):
            refused = await client.post("/guard/restart", headers={"x-conch-inner": other})
            assert refused.status_code == 403
        assert not found.keeper.restart_asked.is_set()
        assert (await client.get("/guard/status", headers=key)).json()["state"] == "starting"
        assert (await client.post("/guard/status", headers=key)).status_code == 405
        assert (await client.get("/guard/restart", headers=key)).status_code == 405
        assert (await client.post("/guard/restart", headers=key)).status_code == 202
    assert found.keeper.restart_asked.is_set()
    assert found.keeper.journal.events[-1]["event"] == "restart asked for"
    assert operator().allowed({})


async def test_tritons_own_metrics_are_passed_on() -> None:
    """But for those of inferences, which the guard has; nothing while no server runs or answers."""
    page = (
        '# HELP nv_inference_count Number of inferences\nnv_inference_count{model="m"} 3\n'
        "# HELP nv_gpu_utilization GPU utilization rate\n# TYPE nv_gpu_utilization gauge\n"
        'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.5\nnv_trt_llm_kv_cache_block_metrics{model="m"} 7\n'
    )

    class Page(Handler):
        def do_GET(self) -> None:  # noqa: N802
            assert self.path == "/metrics"
            self.send(200, "text/plain", page)

    with answering(Page) as gone:
        closed = gone.url.removeprefix("http://")
    with answering(Page) as server:
        found = operator(metrics=server.url.removeprefix("http://"))
        assert await found.of_triton() == b""
        found.keeper.relay.begin(Life(Server(STATISTICS), None))  # type: ignore[arg-type]
        assert (await found.of_triton()).decode().splitlines() == page.splitlines()[2:]
        for other in (closed, ""):
            lost = operator(metrics=other)
            lost.keeper.relay.begin(Life(Server(STATISTICS), None))  # type: ignore[arg-type]
            assert await lost.of_triton() == b""
