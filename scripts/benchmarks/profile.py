"""Where the time of a request goes, from nginx to the last token: `python -m scripts.benchmarks.profile`.

Sends clips of 30 s and of 1 s one after the other, each with a traceparent, and takes the spans that gateway,
tritonserver and engine tell (docs/traces.md). Draws, for either length, the request of the median time as
docs/benchmarks/profile.png, and prints the medians of all spans.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import numpy as np
from matplotlib import pyplot
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from build.catalog import ROOT
from ops.local import HOST

from .speech.cells import RATE, Floats
from .speech.conch import wav
from .speech.real import MODEL, clips
from .stage import DOCS, machine, running

REQUESTS = 20  # of each length; the first five warm up
SETTLE = 5  # seconds until all spans have been told
TOP = "nginx"


@dataclass(frozen=True)
class Span:
    """`begin` and `end` in ns."""

    trace: str
    name: str
    begin: int
    end: int


def parsed(kind: str, body: bytes) -> Iterator[Span]:
    """Spans of one message. The gateway sends protobufs, tritonserver JSON."""
    if kind == "application/json":
        groups = json.loads(body)["resourceSpans"]
        for span in (span for group in groups for scope in group["scopeSpans"] for span in scope["spans"]):
            times = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            yield Span(span["traceId"].lower(), span["name"], *times)
        return
    for group in ExportTraceServiceRequest.FromString(body).resource_spans:
        for span in (span for scope in group.scope_spans for span in scope.spans):
            times = span.start_time_unix_nano, span.end_time_unix_nano
            yield Span(span.trace_id.hex(), span.name, *times)


@contextmanager
def told() -> Iterator[tuple[str, list[Span]]]:
    """The address of a collector, OTLP over HTTP, and what it has been told."""
    found: list[Span] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            packed = self.headers.get("content-encoding") == "gzip"
            kind = self.headers.get_content_type()
            found.extend(parsed(kind, gzip.decompress(body) if packed else body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer((HOST, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_port}", found
    finally:
        server.shutdown()
        server.server_close()


def short(waves: Sequence[Floats]) -> list[Floats]:
    """A second of each."""
    return [wave[RATE // 2 : RATE // 2 + RATE] for wave in waves]


def traces(spans: Sequence[Span], numbers: Sequence[int]) -> list[list[Span]]:
    """The spans of each of the requests, nginx's first."""
    by_trace = defaultdict(list)
    for span in spans:
        by_trace[span.trace].append(span)
    found = [sorted(by_trace[f"{number:032x}"], key=lambda span: span.begin) for number in numbers]
    return [sorted(one, key=lambda span: span.name != TOP) for one in found]


def whole(trace: Sequence[Span]) -> float:
    """Milliseconds of nginx's span."""
    return (trace[0].end - trace[0].begin) / 1e6


def table(found: Sequence[Sequence[Span]]) -> list[str]:
    """Medians of spans of one name, which begin so late and take so long."""
    begins, lengths = defaultdict(list), defaultdict(list)
    for trace in found:
        for span in trace:
            begins[span.name].append((span.begin - trace[0].begin) / 1e6)
            lengths[span.name].append((span.end - span.begin) / 1e6)
    rows = sorted(begins, key=lambda name: statistics.median(begins[name]))
    return ["| span | begins, ms | takes, ms |", "|---|---|---|"] + [
        f"| `{name}` | {statistics.median(begins[name]):.1f} | {statistics.median(lengths[name]):.1f} |"
        for name in rows
    ]


def draw(found: dict[str, Sequence[Sequence[Span]]]) -> None:
    """The request of the median time, for each length."""
    figure, places = pyplot.subplots(len(found), 1, figsize=(11, 7), layout="constrained")
    for axes, (name, requests) in zip(places, found.items(), strict=True):
        trace = sorted(requests, key=whole)[len(requests) // 2]
        for row, span in enumerate(trace):
            begin, length = (span.begin - trace[0].begin) / 1e6, (span.end - span.begin) / 1e6
            axes.barh(row, length, left=begin, height=0.7)
            axes.text(begin + length, row, f" {length:.1f}", va="center", fontsize=8)
        axes.set_yticks(range(len(trace)), [span.name for span in trace], fontsize=8)
        axes.invert_yaxis()
        axes.set(title=f"{name}: {whole(trace):.0f} ms", xlabel="ms")
        axes.margins(x=0.08)
    figure.savefig(DOCS / "profile.png", dpi=110)


def main() -> None:
    """Measure, draw, print."""
    waves = [np.asarray(one.wave, np.float32) for one in clips()]
    found: dict[str, Sequence[Sequence[Span]]] = {}
    with told() as (url, spans):
        os.environ |= {"CONCH_TRACES_URL": url, "CONCH_TRACES_SAMPLED": "0"}
        with running(MODEL, engines=ROOT / "engines", weights=ROOT / "weights") as (layout, _):
            client = httpx.Client(trust_env=False, base_url=f"http://{HOST}:{layout.port}", timeout=300)
            number = 0
            for name, kind in (("30 s", waves), ("1 s", short(waves))):
                first = number + 6
                for wave in [kind[i % len(kind)] for i in range(REQUESTS)]:
                    number += 1
                    headers = {"traceparent": f"00-{number:032x}-00000000000000ff-01"}
                    data = {"model": MODEL, "language": "en", "temperature": "0", "beam_width": "1"}
                    files = {"file": ("a.wav", wav(wave))}
                    answer = client.post("/v1/audio/transcriptions", files=files, data=data, headers=headers)
                    answer.raise_for_status()
                time.sleep(SETTLE)
                found[name] = traces(spans, range(first, number + 1))
    draw(found)
    print(machine())
    for name, requests in found.items():
        print(f"\n{name}: {statistics.median(map(whole, requests)):.1f} ms\n", *table(requests), sep="\n")


if __name__ == "__main__":
    main()
