"""One trace for a request: the gateway's spans, Triton's own and the engine's, told to a collector."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.fakes.collector import Collector, Span, collector
from tests.ports import first_port

from .clients import RECORDINGS
from .conftest import Stack, portable, started, until

PORT = first_port("traces")
CLIENT = "00000000000000ff"  # the client's span
STEPS = ["engine queue", "engine encode", "engine first token", "engine tokens"]


@dataclass(frozen=True)
class Traced:
    stack: Stack
    told: Collector

    def trace(self, number: int, *services: str) -> list[Span]:
        """What there is of a trace, when all services have sent theirs and every span's parent has come."""

        def all_of_it() -> list[Span]:
            spans = self.told.of(f"{number:032x}")
            missing = {span.parent for span in spans} - {span.id for span in spans}
            whole = set(services) <= {span.service for span in spans} and missing == {CLIENT}
            return spans if whole else []

        return until(f"spans of {services}", all_of_it, 30)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """Speech and text, an instance each. Nothing is sampled: only what brings a traceparent is traced."""
    with collector() as told:
        environment = portable(tmp_path_factory.mktemp("traces"), PORT, "mini-whisper,mini-t5", 2)
        with started({**environment, "CONCH_TRACES_URL": told.url, "CONCH_TRACES_SAMPLED": "0"}) as stack:
            yield Traced(stack, told)


def parent(number: int, flag: int = 1) -> dict[str, str]:
    return {"traceparent": f"00-{number:032x}-{CLIENT}-{flag:02x}", "x-request-id": f"trace-{number}"}


def above(spans: list[Span], one: Span) -> list[str]:
    """The names from a span up to the client's own."""
    by_id = {span.id: span for span in spans}
    names = [one.name]
    while one.parent in by_id:
        one = by_id[one.parent]
        names.append(one.name)
    assert one.parent == CLIENT
    return names


def check(spans: list[Span], route: str, model: str) -> None:
    """Every span hangs on nginx's, that on the client's; the engine's steps follow one another, inside of the
    gateway's.
    """
    (nginx,) = [span for span in spans if span.name == "nginx"]
    (request,) = [span for span in spans if span.service == "conch-gateway" and span.name == f"POST {route}"]
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["conch.model"] == model
    assert (nginx.parent, request.parent, nginx.events) == (CLIENT, nginx.id, ("handed on",))
    assert nginx.begin <= request.begin + 5_000_000  # milliseconds, and the time of its loop's last turn
    assert request.end <= nginx.end
    assert all(above(spans, span)[-2:] == [request.name, "nginx"] for span in spans if span != nginx)
    steps = [span for span in spans if span.service == "conch-engine"]
    assert sorted({span.name for span in steps}) == sorted(STEPS)
    for step in steps:
        assert above(spans, step)[-3].startswith("kserve ")  # the gateway's call, above Triton's spans
        assert request.begin <= step.begin <= step.end <= request.end + 50_000_000
    one = {span.name: span for span in steps if span.parent == steps[0].parent}
    assert [one[name].end for name in STEPS[:-1]] == [one[name].begin for name in STEPS[1:]]
    assert one["engine tokens"].attributes["conch.tokens"] >= 1


def test_a_recording(traced: Traced) -> None:
    sound = (RECORDINGS / "order.wav").read_bytes()
    answer = traced.stack.transcribe(sound, model="mini-whisper", headers=parent(1))
    assert answer.status_code == 200
    spans = traced.trace(1, "conch-gateway", "triton-0", "conch-engine")
    check(spans, "/v1/audio/transcriptions", "mini-whisper")
    assert {"InferRequest", "whisper_bls"} <= {span.name for span in spans if span.service == "triton-0"}


@pytest.mark.parametrize(("number", "stream"), [(2, False), (3, True)], ids=["whole", "streamed"])
def test_a_text(traced: Traced, number: int, stream: bool) -> None:
    body = {"model": "mini-t5", "prompt": "sort: lamp kitchen boat", "max_tokens": 20, "stream": stream}
    url = f"{traced.stack.url}/v1/completions"
    answer = httpx.post(url, json=body, headers=parent(number), timeout=60)
    assert answer.status_code == 200
    spans = traced.trace(number, "conch-gateway", "triton-1", "conch-engine")
    check(spans, "/v1/completions", "mini-t5")
    (request,) = [span for span in spans if span.name.startswith("POST")]
    assert request.events == (("first words",) if stream else ())


def test_what_nobody_records_is_not_traced(traced: Traced) -> None:
    """A traceparent that says so, none at all, and probes; logs have an id only where there is a trace."""
    body = {"model": "mini-t5", "prompt": "sort: lamp", "max_tokens": 5}
    url = f"{traced.stack.url}/v1/completions"
    for headers in (parent(4, flag=0), {"x-request-id": "trace-none"}, parent(5)):
        assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 200
    kserve = f"{traced.stack.kserve}/models/mini-t5/v2/models/tensorrt_llm_bls/generate"
    text = {"text_input": "sort: lamp", "max_tokens": 5}
    for number, flag in ((6, 0), (7, 1)):
        assert httpx.post(kserve, json=text, headers=parent(number, flag), timeout=60).status_code == 200
    traced.trace(5, "conch-gateway", "triton-1", "conch-engine")
    traced.trace(7, "triton-1", "conch-engine")
    assert {span.trace for span in traced.told.spans} <= {f"{n:032x}" for n in (1, 2, 3, 5, 7)}
    assert traced.told.refused == []
    logs = [traced.stack.log(f"gateway-{i}") for i in range(2)]
    lines = [json.loads(line) for log in logs for line in log.splitlines() if line.startswith("{")]
    ids = {line["request_id"]: line.get("trace_id") for line in lines if line["event"] == "request"}
    assert ids["trace-5"] == f"{5:032x}"
    assert (ids["trace-4"], ids["trace-none"]) == (None, None)
    assert "sort: lamp" not in "".join(logs)
