"""Do two targets hear the same? `python -m scripts.benchmarks.words --model tiny.en --target torch --output
here.json FILE…`, on another machine with `--target openvino --output there.json`, and `--beside there.json`
on either of them.

Each recording is transcribed alone by a stack in process mode, then all of them 16 at a time.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from ops.local import HOST

from .stage import running

AT_ONCE = 16
FRAME = 0.02  # seconds: what times of words are multiples of


def heard(url: str, model: str, file: Path) -> dict[str, Any]:
    """Text, words with their times, and mean log probabilities of segments, of one recording."""
    asked = {
        "model": model,
        "response_format": "verbose_json",
        "timestamp_granularities[]": ["word", "segment"],
    }
    sent = {"file": (file.name, file.read_bytes())}
    answer = httpx.post(
        f"{url}/v1/audio/transcriptions", files=sent, data=asked, timeout=300, trust_env=False
    )
    answer.raise_for_status()
    body = answer.json()
    return {
        "text": body["text"],
        "words": [[word["word"], word["start"], word["end"]] for word in body["words"]],
        "avg_logprob": [segment["avg_logprob"] for segment in body["segments"]],
    }


def compared(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """How far two targets' answers to the same recordings are apart: `recordings` of both, whose `texts` are
    equal; the largest difference of a log probability; words in both, and how many lie over a frame apart.
    """
    both = sorted(ours.keys() & theirs.keys())
    pairs = [(ours[name], theirs[name]) for name in both if ours[name]["text"] == theirs[name]["text"]]
    probs = [
        abs(a - b)
        for one, other in pairs
        if len(one["avg_logprob"]) == len(other["avg_logprob"])
        for a, b in zip(one["avg_logprob"], other["avg_logprob"], strict=True)
    ]
    apart = [
        max(abs(a[1] - b[1]), abs(a[2] - b[2]))
        for one, other in pairs
        for a, b in zip(one["words"], other["words"], strict=True)
    ]
    return {
        "recordings": len(both),
        "texts": len(pairs),
        "log_prob": round(max(probs, default=0.0), 5),
        "words": len(apart),
        "words_apart": sum(each > 1.5 * FRAME for each in apart),
        "seconds_apart": round(max(apart, default=0.0), 3),
    }


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny.en")
    parser.add_argument("--target", default="torch")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--beside", type=Path, help="what the other target said")
    parser.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args()
    with running(given.model, given.target) as (layout, _):
        ask = partial(heard, f"http://{HOST}:{layout.port}", given.model)
        alone = {file.name: ask(file) for file in given.files}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            company = dict(zip(alone, pool.map(ask, given.files), strict=True))
    results = {"alone": alone, "company": company}
    given.output.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    print("in company and alone:", compared(company, alone))
    if given.beside:
        print("beside the other:", compared(alone, json.loads(given.beside.read_text("utf-8"))["alone"]))


if __name__ == "__main__":
    main()
