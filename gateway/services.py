"""What routes need, made once for each application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from math import ceil
from typing import Annotated, Any

from fastapi import Depends
from fastapi.requests import HTTPConnection

from conch.deployment import Pool
from conch.errors import ApiError
from speech.transcriber import Transcriber

from .admission import Admission
from .aliases import meant
from .console.history import History
from .console.state import Overview
from .metrics import GatewayMetrics, ask_each, gathered
from .retrieval.service import Retrieval
from .settings import Settings
from .tracing import Traces
from .triton import Triton

LIVE_RETRY = 10  # seconds: live sessions last


@dataclass
class Services:
    """Settings, pools, Triton, places, console, databases, API keys, all gateways' addresses, metrics,
    traces.
    """

    settings: Settings
    pools: dict[str, Pool]
    triton: Triton
    transcriber: Transcriber
    recordings: Admission
    generations: Admission
    embeddings: Admission
    overview: Overview
    history: History
    retrieval: Retrieval | None = None
    keys: tuple[bytes, ...] = ()
    admin_keys: tuple[bytes, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    siblings: tuple[str, ...] = ()
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    traces: Traces = field(default_factory=Traces)
    live: int = 0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    readiness: dict[str, tuple[float, bool]] = field(default_factory=dict)

    def pool(self, model: str, capability: str = "") -> Pool:
        """Return the pool that serves a model, by its name or an alias.

        Raises:
            ApiError: 404 for an unknown model, 400 for one that cannot do this.
        """
        model = meant(model, self.pools, self.aliases)
        if model not in self.pools:
            near = get_close_matches(model[:80], self.pools, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            message = (
                f"model {model[:80]!r} is not served here; this deployment has: {', '.join(self.pools)}{hint}"
            )
            raise ApiError(404, message, param="model", code="model_not_found")
        pool = self.pools[model]
        if capability and capability not in pool.abilities:
            able = [name for name, other in self.pools.items() if capability in other.abilities]
            message = (
                f"model {model!r} (family {pool.family}) does not support {capability}; models here that do: "
                f"{', '.join(able) or 'none'}"
            )
            raise ApiError(400, message, param="model", code="unsupported_model")
        return pool

    def measure(self) -> None:
        """Connect the gauges of places and live connections to their current values."""
        kinds = {
            "transcription": self.recordings,
            "completion": self.generations,
            "embedding": self.embeddings,
        }
        self.metrics.planned.set(self.settings.gateways)
        for model, pool in self.pools.items():
            self.metrics.begin(model, len(pool.instances))
            for kind in kinds.keys() & set(pool.capabilities):
                admission = kinds[kind]
                self.metrics.places.labels(model, kind).set(admission.places(pool))
                taken = self.metrics.taken.labels(model, kind)
                taken.set_function(partial(admission.inside.__getitem__, model))
        self.metrics.sessions.set_function(lambda: self.live)

    async def scraped(self) -> str:
        """Return Prometheus text of every gateway of this deployment."""
        return (await gathered(self.siblings)).decode() if self.siblings else self.metrics.text()

    async def recent(self) -> list[dict[str, Any]]:
        """Return the console's points of the last 15 minutes, of every gateway of this deployment."""
        told = await ask_each(self.siblings, "/metrics/own/history")
        return self.history.points(text for _, text in told or [("", self.history.text())])

    @contextmanager
    def sessions(self) -> Iterator[None]:
        """Take a place for one live connection.

        Raises:
            ApiError: 503 if all are taken.
        """
        if self.live >= ceil(self.settings.realtime_sessions / self.settings.gateways):
            message = f"at capacity ({self.live} live sessions at this gateway); retry in {LIVE_RETRY} s"
            raise ApiError(503, message, code="overloaded", retry_after=LIVE_RETRY)
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1

    async def ready(self) -> dict[str, bool]:
        """Tell for each model whether a tiny real inference succeeds. Success is cached for a moment; a
        failure is returned only to requests that arrived before the check started.
        """
        came = time.monotonic()
        async with self.asking:  # many who ask at once make one inference
            began = time.monotonic()
            due = [model for model in self.pools if not self._known(model, came)]
            results = await asyncio.gather(*(self.triton.ready(self.pools[model]) for model in due))
            ended = time.monotonic()
            self.readiness |= {
                model: (ended if result else began, result)
                for model, result in zip(due, results, strict=True)
            }
        return {model: result for model, (_, result) in self.readiness.items()}

    def _known(self, model: str, came: float) -> bool:
        known, result = self.readiness.get(model, (float("-inf"), False))
        return known >= came or (result and came - known <= self.settings.ready_seconds)


async def services_of(connection: HTTPConnection) -> Services:
    """Return the services of the application that serves a request or a WebSocket. It is async because
    FastAPI runs other functions in a thread.
    """
    found: Services = connection.state.services
    return found


ServicesDep = Annotated[Services, Depends(services_of)]
