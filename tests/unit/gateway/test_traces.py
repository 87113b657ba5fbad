"""The gateway's spans, told to a collector."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from conch.deployment import Pool
from gateway.tracing import taken
from tests.fakes.collector import Span, collector

from .application import application

EXEMPLAR = re.compile(r'# \{trace_id="(\w+)"\}')
TRACE, PARENT = "0" * 31 + "7", "00000000000000ff"


class Behind:
    """What nginx's internal listener would answer, in place of a client of it; the headers that came."""

    def __init__(self, status: int = 200) -> None:
        words = b'{"text_output": "a", "num_input_tokens": 1, "num_output_tokens": 1}'
        self.status, self.text = status, b"data: %s\n\n" % words if status == 200 else b"no"
        self.headers = list[Mapping[str, str]]()

    async def request(self, _method: str, _path: str, headers: Mapping[str, str], _body: Any) -> Behind:
        self.headers.append(headers)
        return self

    async def body(self) -> bytes:
        return self.text

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self.text

    def abort(self) -> None:
        """Nothing is open."""


def asked(
    folder: Path, headers: dict[str, str], sampled: float, behind: Behind, path: str = "/v1/completions"
) -> list[Span]:
    """The spans of one request."""
    pool = Pool("mini", "gpt2", (0,), capabilities=frozenset({"completion"}), positions=64)
    with collector() as told:
        settings: Any = {"traces_sampled": sampled, "traces_url": told.url}
        with application(folder, pool, triton=None, **settings) as client:
            client.app_state["services"].triton.http = behind
            body = {"model": "mini", "prompt": "secret words", "stream": True}
            client.request("POST" if path.startswith("/v1") else "GET", path, json=body, headers=headers)
            said = [
                client.get("/metrics/own", headers={"accept": kind}).text
                for kind in ("application/openmetrics-text; version=1.0.0", "text/plain")
            ]
        assert told.refused == []
        traces = {span.trace for span in told.spans}
        assert set(EXEMPLAR.findall(said[0])) == traces
        assert not EXEMPLAR.findall(said[1])
        return told.spans


def parent(flag: str) -> dict[str, str]:
    return {"traceparent": f"00-{TRACE}-{PARENT}-{flag}", "x-request-id": "mine"}


def test_a_request_and_its_call(tmp_path: Path) -> None:
    """Under the client's own span, and Triton receives the call's; no text in any of it."""
    behind = Behind()
    spans = asked(tmp_path, parent("01"), 0.0, behind)
    call, request = sorted(spans, key=lambda span: span.name == "POST /v1/completions")
    assert (request.trace, request.parent, call.parent) == (TRACE, PARENT, request.id)
    assert call.name == "kserve tensorrt_llm_bls_stream"
    assert behind.headers[0]["traceparent"] == f"00-{TRACE}-{call.id}-01"
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/completions",
        "http.response.status_code": 200,
        "conch.model": "mini",
        "conch.request_id": "mine",
    }
    assert request.events == ("first words",)
    assert "secret" not in repr(spans)


def test_what_nginx_did_before(tmp_path: Path) -> None:
    """A span from the first byte that it read, below the client's and above the request's, or at the top."""
    said = f"{time.time() - 5:.3f} 2.500"
    for name, asks in (("client", parent("01")), ("nobody", {})):
        folder = tmp_path / name
        folder.mkdir()
        spans = asked(folder, {**asks, "x-conch-taken": said}, 1.0, Behind())
        (nginx,) = [span for span in spans if span.name == "nginx"]
        (request,) = [span for span in spans if span.name.startswith("POST")]
        assert (request.trace, request.parent) == (nginx.trace, nginx.id)
        assert nginx.parent == (PARENT if asks else "")
        assert 7.4e9 < request.begin - nginx.begin < 60e9
        assert nginx.end >= request.end
        assert nginx.events == ("handed on",)


@pytest.mark.parametrize(
    "said", ["", "1", "x.000 0.000", "1.000 -1.000", "1.000 1.000", "9" * 30 + ".000 0.000"]
)
def test_what_is_not_nginxs_is_no_span(tmp_path: Path, said: str) -> None:
    assert len(asked(tmp_path, {**parent("01"), "x-conch-taken": said}, 1.0, Behind())) == 2


def test_another_hosts_clock_may_be_ahead() -> None:
    """A span never begins after it ends."""
    assert taken("10.500 0.250", 20_000_000_000) == (10_250_000_000, 10_500_000_000)
    assert taken("30.500 0.250", 20_000_000_000) == (20_000_000_000, 20_000_000_000)


@pytest.mark.parametrize(("flag", "sampled", "count"), [("00", 1.0, 0), ("", 0.0, 0), ("", 1.0, 2)])
def test_who_is_traced(tmp_path: Path, flag: str, sampled: float, count: int) -> None:
    """A client that sends a traceparent has decided; of the others, the configured share is traced."""
    behind = Behind()
    spans = asked(tmp_path, parent(flag) if flag else {}, sampled, behind)
    assert len(spans) == count
    assert ("traceparent" in behind.headers[0]) is bool(count)


def test_probes_are_not_traced(tmp_path: Path) -> None:
    assert asked(tmp_path, parent("01"), 1.0, Behind(), "/health/ready") == []


def test_a_failed_request_says_so(tmp_path: Path) -> None:
    spans = asked(tmp_path, parent("01"), 0.0, Behind(503))
    (request,) = [span for span in spans if span.name.startswith("POST")]
    assert request.attributes["http.response.status_code"] == 503
    assert {span.name: span.failed for span in spans} == dict.fromkeys((span.name for span in spans), True)
