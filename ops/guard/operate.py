"""What an operator can see of an instance and do to it: GET /guard/status, POST /guard/restart.

nginx routes here from its internal listener only. Where that is a port (in Docker), the key that the builder
wrote into deployment.json is required; where it is a socket, its folder is accessible to this user only.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from conch.http_client import HttpClient, Lost

from .metrics import TRITON_SECONDS, of_triton
from .supervise.keeper import Keeper

KEY = "x-conch-inner"


class Operator:
    """The instance's keeper, for operators."""

    def __init__(self, keeper: Keeper, inner_key: str, metrics: str = "") -> None:
        self.keeper, self.inner_key = keeper, inner_key
        self.triton = HttpClient(metrics) if metrics else None

    def allowed(self, headers: Mapping[str, str]) -> bool:
        """Tell whether a request has the deployment's inner key, compared in constant time."""
        return hmac.compare_digest(headers.get(KEY, "").encode(), self.inner_key.encode())

    def restart(self) -> None:
        """Restart as SIGHUP does: drain, end the server, start the next with the current bundle."""
        self.keeper.journal.note("restart asked for")
        self.keeper.restart_asked.set()

    async def status(self) -> dict[str, Any]:
        """Return state, counts and events. `queue` is from Triton's own statistics, over all models of the
        running server: requests, and the seconds that they waited; null while Triton does not answer, as when
        it unloads its models.
        """
        keeper, relay = self.keeper, self.keeper.relay
        succeeded = time.monotonic() - keeper.last_good if keeper.last_good else None
        return {
            "state": keeper.state,
            "in_flight": relay.in_flight,
            "starts": keeper.starts,
            "deaths": keeper.deaths,
            "probe": keeper.probed,
            "failure": keeper.kept.told or None,
            "success_seconds_ago": succeeded,
            "queue": queued(found) if (found := await self.statistics()) else None,
            "events": list(keeper.journal.events),
        }

    async def statistics(self) -> dict[str, Any] | None:
        """Return Triton's own statistics of all models; None while the server does not answer."""
        with suppress(Lost, TimeoutError):
            async with asyncio.timeout(TRITON_SECONDS):
                if life := self.keeper.relay.life:
                    answer = await life.http.request("GET", "/v2/models/stats", {})
                    body = await answer.body()
                    found: dict[str, Any] | None = orjson.loads(body) if answer.status == 200 else None
                    return found
        return None

    async def of_triton(self) -> bytes:
        """Return Triton's own metrics (nv_gpu_…, nv_trt_llm_…); empty while it does not serve."""
        return b"".join(await of_triton(self.triton if self.keeper.relay.life else None))


def queued(statistics: Mapping[str, Any]) -> dict[str, float]:
    """Reduce Triton's statistics extension to what waited in its queues
    (https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md).
    """
    rows = [model["inference_stats"]["queue"] for model in statistics["model_stats"]]
    return {
        "requests": sum(int(row.get("count", 0)) for row in rows),
        "seconds": sum(int(row.get("ns", 0)) for row in rows) / 1e9,
    }
