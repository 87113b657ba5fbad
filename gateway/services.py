"""What the routes need, made once for each application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated

from fastapi import Depends
from fastapi.requests import HTTPConnection
from prometheus_client import CollectorRegistry, Counter, Histogram

from .admission import Admission
from .errors import ApiError
from .settings import Settings
from .speech import Transcriber
from .triton import Pool, Triton


class Metrics:
    """Prometheus metrics of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("conch_requests_total", "HTTP requests", ["path", "status"], registry=self.registry)
        self.latency = Histogram("conch_request_seconds", "Time to answer", ["path"], registry=self.registry)
        self.audio = Counter("conch_audio_seconds_total", "Seconds of sound transcribed", ["model"], registry=self.registry)
        self.speech = Histogram("conch_transcription_seconds", "Time in Triton for one recording", ["model"], registry=self.registry)

    @contextmanager
    def transcription(self, model: str, seconds: Callable[[], float]) -> Iterator[None]:
        """Times one recording and counts its length, known at the end."""
        with self.speech.labels(model).time():
            yield
        self.audio.labels(model).inc(seconds())


@dataclass
class Services:
    """Settings, pools, Triton, places, API keys, metrics."""

    settings: Settings
    pools: dict[str, Pool]
    triton: Triton
    transcriber: Transcriber
    recordings: Admission
    generations: Admission
    keys: tuple[bytes, ...] = ()
    metrics: Metrics = field(default_factory=Metrics)
    live: int = 0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    readiness: dict[str, tuple[float, bool]] = field(default_factory=dict)

    def pool(self, model: str, capability: str) -> Pool:
        """The pool that serves a model.

        Raises:
            ApiError: 404 for an unknown model, 400 for one that cannot do this.
        """
        if model not in self.pools:
            message = f"model {model!r} is not served here; this deployment has: {', '.join(self.pools)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        if capability not in self.pools[model].capabilities:
            able = ", ".join(name for name, pool in self.pools.items() if capability in pool.capabilities) or "none"
            message = f"model {model!r} is of family {self.pools[model].family}, which does no {capability}; models here that do: {able}"
            raise ApiError(400, message, param="model", code="unsupported_model")
        return self.pools[model]

    @contextmanager
    def sessions(self) -> Iterator[None]:
        """A place for one live connection.

        Raises:
            ApiError: 503 if all are taken.
        """
        if self.live >= ceil(self.settings.realtime_sessions / self.settings.gateways):
            message = f"{self.live} live sessions are open, as many as this deployment takes; try again later"
            raise ApiError(503, message, code="overloaded", retry_after=10)
        self.live += 1
        try:
            yield
        finally:
            self.live -= 1

    async def ready(self) -> dict[str, bool]:
        """For each model whether a tiny real inference succeeds; results are kept for a moment."""
        async with self.asking:  # many who ask at once make one inference
            due = [model for model in self.pools if time.monotonic() - self.readiness.get(model, (float("-inf"), False))[0] > self.settings.ready_seconds]
            results = await asyncio.gather(*(self.triton.ready(self.pools[model]) for model in due))
            self.readiness |= {model: (time.monotonic(), result) for model, result in zip(due, results, strict=True)}
        return {model: result for model, (_, result) in self.readiness.items()}


def services(connection: HTTPConnection) -> Services:
    """The services of the application that serves a request or a WebSocket."""
    found: Services = connection.state.services
    return found


ServicesDep = Annotated[Services, Depends(services)]
