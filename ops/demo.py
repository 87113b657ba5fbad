"""`make demo`: start the stack, transcribe a recording through the public port, print it, stop what was
started.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import httpx

from build.catalog import ROOT, CatalogError, load_catalog
from conch.deployment import Deployment
from ops.guard.supervise.bundle import BundleRefused

from .local import HOST, LocalDeployment, LocalError
from .process_mode import start
from .starting import Starting

MINIATURE = "mini-whisper"
JFK = ROOT / "miniatures" / "recordings" / "jfk.flac"  # openai/whisper's test recording, in the public domain
MINI_RECORDING = ROOT / "miniatures" / "recordings" / "demo.flac"


def recording(model: str) -> Path:
    """Return AUDIO, or a recording that the model understands.

    Raises:
        LocalError: AUDIO is not a file.
    """
    named = os.environ.get("AUDIO", "")
    if named and not Path(named).is_file():
        raise LocalError(f"AUDIO={named} is not a file; name a recording such as AUDIO=talk.mp3")
    return Path(named) if named else MINI_RECORDING if model == MINIATURE else JFK


QUESTION = "What is the capital of Japan?"


def ask(local: LocalDeployment, model: str) -> None:
    """Ask a chat model, and print its answer.

    Raises:
        httpx.HTTPError: no answer.
    """
    started = time.monotonic()
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    url = f"http://{HOST}:{local.port}/v1/chat/completions"
    answer = httpx.post(url, json=body, timeout=300, trust_env=False)
    answer.raise_for_status()
    message = answer.json()["choices"][0]["message"]["content"]
    print(f"\nmodel       {model}\nquestion    {QUESTION}\nanswer      {message}")
    print(f"time        {time.monotonic() - started:.2f} s")


def show(local: LocalDeployment, plan: Deployment) -> None:
    """Transcribe through the public port, and print the text; then ask each chat model.

    Raises:
        httpx.HTTPError: no answer, or not a transcript.
    """
    model = plan.pools[0].model_id
    path, started = recording(model), time.monotonic()
    files = {"file": (path.name, path.read_bytes())}
    answer = httpx.post(
        f"http://{HOST}:{local.port}/v1/audio/transcriptions",
        files=files,
        data={"model": model},
        timeout=300,
        trust_env=False,
    )
    answer.raise_for_status()
    took, seconds = time.monotonic() - started, float(answer.json()["usage"]["seconds"])
    print(
        f"\nmodel       {model}\nrecording   "
        f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}, {seconds:.1f} s"
    )
    print(f"transcript  {answer.json()['text']}")
    print(
        f"time        {took:.2f} s: {seconds / took:.0f} times faster than real time, two tritonservers "
        f"behind nginx on {HOST}:{local.port}"
    )
    for pool in plan.pools:
        if pool.chat:
            ask(local, pool.model_id)
    note = load_catalog()[model].note
    print(
        "\nAny other speech model of catalog.toml works the same, and any recording: make demo MODEL_ID=base "
        "AUDIO=talk.mp3"
    )
    if model == MINIATURE:
        print(f"This was {MINIATURE}, {note}: the weights of a real model could not be fetched (see above).")


def main() -> int:
    """Return exit status 0 if there was a transcript."""
    try:
        local = LocalDeployment.from_environment()
        process, plan = start(local)
        try:
            Starting(local, plan, process).wait(120)
            show(local, plan)
        finally:
            process.terminate()
            process.wait(120)
        return 0
    except (LocalError, CatalogError, BundleRefused, httpx.HTTPError) as error:
        print(f"conch: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
