"""What a guard lets its tritonserver know of traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.guard.proxy.service import passed_on
from ops.guard.supervise.server import measures, traced, writable

IDS = f"00-{'a' * 32}-{'b' * 16}"


@pytest.mark.parametrize(
    ("traceparent", "heard"),
    [
        (f"{IDS}-01", True),
        (f"{IDS}-03", True),
        (f"{IDS}-00", False),
        (f"{IDS}-02", False),
        (IDS, False),
        ("00-x-y-01", False),
        ("", False),
    ],
)
def test_triton_hears_of_recorded_traces_only(traceparent: str, heard: bool) -> None:
    """It would trace every request that brings one, whatever its flag says."""
    given = {"x-request-id": "1", "traceparent": traceparent, "tracestate": "s=1", "cookie": "c"}
    traces = {"traceparent": traceparent, "tracestate": "s=1"} if heard else {}
    assert passed_on(given) == {"x-request-id": "1", **traces}
    assert passed_on({}) == {}


def test_tritonserver_traces_where_there_is_a_collector() -> None:
    """Nothing by itself: rate 0."""
    assert traced({}, "triton-0") == traced({"CONCH_TRACES_URL": ""}, "triton-0") == []
    flags = traced({"CONCH_TRACES_URL": "http://c:4318/"}, "triton-0")
    assert "--trace-config=opentelemetry,url=http://c:4318/v1/traces" in flags
    assert "--trace-config=rate=0" in flags
    assert "--trace-config=opentelemetry,resource=service.name=triton-0" in flags


def test_stubs_write_where_they_can(tmp_path: Path) -> None:
    """Instances of one home do not mix; a home that is not there is not written to."""
    assert writable(tmp_path) == tmp_path
    assert measures(tmp_path, 0) != measures(tmp_path, 1)
    assert writable(tmp_path / "none") != tmp_path / "none"
