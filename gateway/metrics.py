"""Prometheus metrics of one gateway, and of its siblings: a scrape comes through nginx to any of them and
must find them all.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import httpx
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families


class Metrics:
    """Metrics of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "conch_requests_total", "HTTP requests", ["path", "status"], registry=self.registry
        )
        self.latency = Histogram("conch_request_seconds", "Time to answer", ["path"], registry=self.registry)
        self.audio = Counter(
            "conch_audio_seconds_total", "Seconds of sound transcribed", ["model"], registry=self.registry
        )
        self.speech = Histogram(
            "conch_transcription_seconds",
            "Time in Triton for one recording",
            ["model"],
            registry=self.registry,
        )

    @contextmanager
    def transcription(self, model: str, seconds: Callable[[], float]) -> Iterator[None]:
        """Times one recording and counts its length, known at the end."""
        with self.speech.labels(model).time():
            yield
        self.audio.labels(model).inc(seconds())

    def text(self) -> str:
        """Own metrics in the format that Prometheus reads."""
        return generate_latest(self.registry).decode()


async def gathered(gateways: Sequence[str]) -> bytes:
    """The metrics of every gateway ("host:port", a host may stand for several; or "unix:/path"), each with a
    label `gateway`.
    """
    found = await asyncio.gather(*[_ask(address) for gateway in gateways for address in await _each(gateway)])
    families: dict[str, Metric] = {}
    for name, text in found:
        for family in text_string_to_metric_families(text):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                merged.add_sample(sample.name, {**sample.labels, "gateway": name}, sample.value)
    registry = CollectorRegistry()
    registry.register(_Collected(list(families.values())))
    return generate_latest(registry)


class _Collected:
    """What a registry asks for its metrics."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self.families = families

    def collect(self) -> Sequence[Metric]:
        """Prometheus'."""
        return self.families


async def _each(gateway: str) -> list[str]:
    if gateway.startswith("unix:"):
        return [gateway]
    host, port = gateway.rsplit(":", 1)
    with suppress(OSError):
        rows = await asyncio.get_running_loop().getaddrinfo(
            host, port, family=socket.AF_INET, type=socket.SOCK_STREAM
        )
        return sorted({f"{row[4][0]}:{port}" for row in rows})
    return []


async def _ask(address: str) -> tuple[str, str]:
    """A gateway's name in the label, and its metrics; nothing of one that does not answer."""
    path = address.removeprefix("unix:") if address.startswith("unix:") else None
    url = "http://gateway" if path else f"http://{address}"
    name = path.rsplit("/", 1)[1] if path else address
    with suppress(httpx.HTTPError):
        async with httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=path), base_url=url, timeout=2
        ) as client:
            return name, (await client.get("/metrics/own")).text
    return name, ""
