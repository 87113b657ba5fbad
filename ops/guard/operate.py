"""What an operator sees of an instance and may ask of it: GET /guard/status, POST /guard/restart.

nginx leads here from its internal listener alone. Where that is a port (in Docker), the key that the builder
wrote into deployment.json is asked for; where it is a socket, its folder is this user's alone.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from .http_client import HttpClient, Lost
from .keeper import Keeper

KEY = "x-conch-inner"
STATISTICS_SECONDS = 1.0
OWN = re.compile(rb"(?:# (?:HELP|TYPE) )?nv_(?!inference_)")


class Operator:
    """The instance's keeper as others may see it."""

    def __init__(self, keeper: Keeper, inner_key: str, metrics: str = "") -> None:
        self.keeper, self.inner_key = keeper, inner_key
        self.triton = HttpClient(metrics) if metrics else None

    def allowed(self, headers: Mapping[str, str]) -> bool:
        """Whether a request brings the deployment's inner key, compared in constant time."""
        return hmac.compare_digest(headers.get(KEY, "").encode(), self.inner_key.encode())

    def restart(self) -> None:
        """As SIGHUP does: drain, end the server, start the next with the bundle as it is then."""
        self.keeper.journal.note("restart asked for")
        self.keeper.restart_asked.set()

    async def status(self) -> dict[str, Any]:
        """State, counts and events. `queue`: Triton's own statistics, all models of the running server
        together: requests, and the seconds that they waited; null while it does not answer them, as when
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
        """Triton's own, of all models; None while the server does not answer them."""
        with suppress(Lost, TimeoutError):
            async with asyncio.timeout(STATISTICS_SECONDS):
                if life := self.keeper.relay.life:
                    answer = await life.http.request("GET", "/v2/models/stats", {})
                    body = await answer.body()
                    found: dict[str, Any] | None = orjson.loads(body) if answer.status == 200 else None
                    return found
        return None

    async def of_triton(self) -> bytes:
        """Read Triton's own metrics (nv_gpu_…, nv_trt_llm_…) without nv_inference_…, which the guard's page
        has as conch_triton_…; nothing while it does not answer, or where it has no port for them.
        """
        with suppress(Lost, TimeoutError, OSError):
            async with asyncio.timeout(STATISTICS_SECONDS):
                if self.triton and self.keeper.relay.life:
                    answer = await self.triton.request("GET", "/metrics", {})
                    body = await answer.body()
                    return b"".join(filter(OWN.match, bytes(body).splitlines(keepends=True)))
        return b""


def queued(statistics: Mapping[str, Any]) -> dict[str, float]:
    """Triton's statistics extension, reduced to what waited in its queues
    (https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md).
    """
    rows = [model["inference_stats"]["queue"] for model in statistics["model_stats"]]
    return {
        "requests": sum(int(row.get("count", 0)) for row in rows),
        "seconds": sum(int(row.get("ns", 0)) for row in rows) / 1e9,
    }
