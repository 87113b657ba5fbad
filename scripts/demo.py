"""`make demo`: start the stack, transcribe a bundled recording through the public door, print it, stop what was started."""

from __future__ import annotations

import json
import sys
import time

import httpx

from build.catalog import ROOT, CatalogError, load_catalog, select
from ops.guard.bundle import Refused

from .local import HOST, Layout, LocalError, start, wait_ready

RECORDINGS = ROOT / "miniatures" / "recordings"


def transcribe(layout: Layout, model: str, name: str) -> tuple[str, float]:
    """Text and seconds."""
    started = time.monotonic()
    files = {"file": (name, (RECORDINGS / name).read_bytes())}
    answer = httpx.post(f"http://{HOST}:{layout.port}/v1/audio/transcriptions", files=files, data={"model": model}, timeout=300)
    answer.raise_for_status()
    return str(answer.json()["text"]), time.monotonic() - started


def show(layout: Layout) -> bool:
    """Print the transcript beside the reference; whether they are equal."""
    model = select(load_catalog(), layout.model_id)[0]
    row = next(row for row in json.loads((RECORDINGS / "recordings.json").read_text("utf-8")) if row["name"] == "demo.flac")
    text, seconds = transcribe(layout, model.id, row["name"])
    print(f"\nrecording   miniatures/recordings/{row['name']}, {row['seconds']} s\ntranscript  {text}\nreference   {row['text']}")
    print(f"time        {seconds:.2f} s: {row['seconds'] / seconds:.0f} times faster than real time, two tritonservers behind nginx on 127.0.0.1:{layout.port}")
    if model.miniature:
        print(f"\nThis is {model.id}, {model.note}. For a real model, on a machine that reaches its hub:\n  make serve MODEL_ID=large-v3-turbo")
    return text == str(row["text"])


def main() -> int:
    """Exit status 0 if the transcript equals the reference."""
    layout = Layout.from_environment()
    try:
        process = start(layout)
        try:
            wait_ready(layout, process, 120)
            return 0 if show(layout) else 1
        finally:
            process.terminate()
            process.wait(120)
    except (LocalError, CatalogError, Refused, httpx.HTTPError) as error:
        print(f"conch: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
