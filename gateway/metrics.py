"""Prometheus metrics of one gateway and of the others: a scrape reaches any of them through nginx and must
get all. `model` is a MODEL_ID, empty where a request named none; docs/metrics.md lists them.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace

import httpx
import structlog
from opentelemetry.trace import get_current_span
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from conch.errors import ApiError

log = structlog.get_logger()
disable_created_metrics()  # type: ignore[no-untyped-call]
# Seconds: up to a recording of hours; up to a long queue; of one token.
REQUESTS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3600)
FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
SPEAKERS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 20)
OUTCOMES = ("answered", "refused", "unavailable", "left", "failed")  # of questions
TOKENS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class GatewayMetrics:
    """Metrics of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answers_and_work()
        self._capacity()

    def _answers_and_work(self) -> None:
        """Register what clients see, counts and durations of answers, and what models did."""
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        text = "HTTP requests by route and status"
        self.requests = counter("conch_gateway_requests_total", text, ["path", "status", "model"])
        text = "Time to the complete answer"
        self.latency = histogram("conch_gateway_request_seconds", text, ["path", "model"], buckets=REQUESTS)
        text = "Time to the first words of a streamed answer"
        self.first = histogram("conch_gateway_first_token_seconds", text, ["model"], buckets=FIRST)
        text = "Time between two tokens of a streamed text, its mean"
        self.between = histogram("conch_gateway_token_seconds", text, ["model"], buckets=TOKENS)
        text = "Time in Triton for one recording"
        self.speech = histogram("conch_gateway_transcription_seconds", text, ["model"], buckets=REQUESTS)
        text = "Time to tell the speakers of one recording apart, next to its transcription"
        self.diarization = histogram("conch_gateway_diarization_seconds", text, ["model"], buckets=REQUESTS)
        text = "Speakers that one recording was found to have"
        self.speakers = histogram("conch_gateway_recording_speakers", text, ["model"], buckets=SPEAKERS)
        self.audio = counter("conch_gateway_audio_seconds_total", "Seconds of sound transcribed", ["model"])
        text = "Tokens of texts that were read and written, as answers count them (usage)"
        self.tokens = counter("conch_gateway_tokens_total", text, ["model", "kind"])
        self.pictures = counter("conch_gateway_pictures_total", "Pictures embedded", ["model"])
        text = "Time that a model takes for the question of a search, about its picture, by outcome"
        labels = ["model", "outcome"]
        self.questions = histogram("conch_gateway_question_seconds", text, labels, buckets=FIRST)

    def _capacity(self) -> None:
        """Register how much may run at once, and how much does."""
        gauge = partial(Gauge, registry=self.registry)
        text = "Requests that this gateway lets into a pool at once, by kind; one more is a 503"
        self.places = gauge("conch_gateway_places", text, ["model", "kind"])
        self.taken = gauge("conch_gateway_places_taken", "Places that are taken", ["model", "kind"])
        text = "Instances that the deployment has for a model, whether they answer or not"
        self.instances = gauge("conch_gateway_instances", text, ["model"])
        text = "Gateways that the deployment has, whether they answer or not"
        self.planned = gauge("conch_gateway_planned", text)
        self.sessions = gauge("conch_gateway_realtime_sessions", "Live connections")

    def begin(self, model: str, instances: int) -> None:
        """Show a model's counters from zero: a rate needs a sample before the first request."""
        self.instances.labels(model).set(instances)
        for one in (self.first, self.between, self.speech, self.audio, self.pictures):
            one.labels(model)
        for outcome in OUTCOMES:
            self.questions.labels(model, outcome)
        self.text_usage(model, 0)

    @contextmanager
    def question(self, model: str) -> Iterator[None]:
        """Time one question and record its outcome: 4xx as refused, another error as unavailable, a
        disconnected client as left.
        """
        started, outcome = time.monotonic(), "failed"
        try:
            yield
            outcome = "answered"
        except ApiError as error:
            outcome = "refused" if error.status < 500 else "unavailable"
            raise
        except asyncio.CancelledError:
            outcome = "left"
            raise
        finally:
            seconds = time.monotonic() - started
            self.questions.labels(model, outcome).observe(seconds)
            log.info("question", model=model, outcome=outcome, seconds=round(seconds, 4))

    def text_usage(self, model: str, read: int, written: int = 0) -> None:
        """Count the tokens of one request."""
        self.tokens.labels(model, "read").inc(read)
        self.tokens.labels(model, "written").inc(written)

    def text(self) -> str:
        """Return its own metrics in Prometheus' format."""
        return generate_latest(self.registry).decode()


class StreamTimer:
    """Times when the pieces of one streamed answer were sent."""

    def __init__(self, metrics: GatewayMetrics, model: str) -> None:
        self.metrics, self.model, self.started = metrics, model, time.monotonic()
        self.first: float | None = None

    def piece(self) -> None:
        """Record a piece that a client can show."""
        if self.first is None:
            self.first = time.monotonic()
            self.metrics.first.labels(self.model).observe(self.first - self.started)
            get_current_span().add_event("first words")

    def ended(self, tokens: int) -> None:
        """Record that the answer is complete, with its number of tokens over all choices."""
        if self.first is not None and tokens > 1:
            seconds = time.monotonic() - self.first
            self.metrics.between.labels(self.model).observe(seconds / (tokens - 1))


async def gathered(gateways: Sequence[str]) -> bytes:
    """Return the metrics of every gateway ("host:port", where a host may stand for several; or "unix:/path"),
    each with a label `gateway`.
    """
    families: dict[str, Metric] = {}
    for name, text in await ask_each(gateways, "/metrics/own"):
        for family in text_string_to_metric_families(text):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                merged.add_sample(sample.name, {**sample.labels, "gateway": name}, sample.value)
    return generate_latest(SimpleNamespace(collect=families.values))


async def ask_each(gateways: Sequence[str], path: str) -> list[tuple[str, str]]:
    """Return name and answer of every gateway; the answer is empty if it does not answer."""
    addresses = [address for gateway in gateways for address in await _each(gateway)]
    return await asyncio.gather(*[_ask(address, path) for address in addresses])


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


async def _ask(address: str, path: str) -> tuple[str, str]:
    """Return a gateway's name for the label, and its answer; empty if it does not answer."""
    socket_path = address.removeprefix("unix:") if address.startswith("unix:") else None
    url = "http://gateway" if socket_path else f"http://{address}"
    name = socket_path.rsplit("/", 1)[1] if socket_path else address
    with suppress(httpx.HTTPError):
        async with httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(verify=False, uds=socket_path),  # it is plain HTTP
            base_url=url,
            timeout=2,
        ) as client:
            return name, (await client.get(path)).text
    return name, ""
