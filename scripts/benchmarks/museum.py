"""The museum in vector stores of a running Conch: `python -m scripts.benchmarks.museum`, with
all-minilm-l6-v2 and mini-clip in MODEL_ID. Pictures without captions are found by their captions, captions
as files by their pictures; how many come first, and how long it takes.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from openai import OpenAI

from miniatures.pictures.museum import PICTURES, Exhibit, museum


def encoded(exhibit: Exhibit) -> bytes:
    """A PNG file."""
    out = io.BytesIO()
    exhibit.picture.save(out, "PNG")
    return out.getvalue()


def part(data: bytes) -> list[dict[str, Any]]:
    """A query."""
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return [{"type": "image_url", "image_url": {"url": url}}]


def filled(client: OpenAI, contents: Sequence[bytes], kind: str) -> tuple[str, float]:
    """A store with a file of each, and the seconds it took."""
    started = time.monotonic()
    store = client.vector_stores.create(name="museum").id
    files = [(f"{n}.{kind}", content) for n, content in enumerate(contents)]
    batch = client.vector_stores.file_batches.upload_and_poll(store, files=files)
    if batch.file_counts.completed != len(files):
        raise SystemExit(f"only {batch.file_counts.completed} of {len(files)} files were embedded")
    return store, time.monotonic() - started


def measured(
    client: OpenAI, store: str, count: int, query: Callable[[int], Any], kind: str
) -> dict[str, Any]:
    """Shares of queries whose own file comes first and among ten, and milliseconds of one after the other."""
    ranks, seconds = [], []
    for n in range(count):
        asked = query(n)
        started = time.monotonic()
        names = [row.filename for row in client.vector_stores.search(store, query=asked).data]
        seconds.append(time.monotonic() - started)
        ranks.append(names.index(f"{n}.{kind}") if f"{n}.{kind}" in names else 99)
    return {
        "recall@1": round(float(np.mean(np.array(ranks) == 0)), 4),
        "recall@10": round(float(np.mean(np.array(ranks) < 10)), 4),
        **{f"p{at}_ms": round(1000 * float(np.percentile(seconds, at)), 1) for at in (50, 99)},
    }


def main() -> None:
    """One line of JSON for each direction."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--count", type=int, default=PICTURES)
    given = parser.parse_args()
    client = OpenAI(base_url=f"{given.url}/v1", api_key="none", timeout=600)
    exhibits = museum(given.count)
    pictures = [encoded(one) for one in exhibits]
    captions = [one.caption for one in exhibits]
    store, seconds = filled(client, pictures, "png")
    found = measured(client, store, given.count, lambda n: captions[n], "png")
    print(json.dumps({"text to picture": given.count, "load_s": round(seconds, 1), **found}))
    found = measured(client, store, given.count, lambda n: part(pictures[n]), "png")
    print(json.dumps({"picture to picture": given.count, **found}))
    store, seconds = filled(client, [one.encode() for one in captions], "txt")
    found = measured(client, store, given.count, lambda n: part(pictures[n]), "txt")
    print(json.dumps({"picture to text": given.count, "load_s": round(seconds, 1), **found}))


if __name__ == "__main__":
    main()
