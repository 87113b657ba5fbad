"""What one gateway process takes: `python -m bench.performance.gateway_load [--in-flight 1,16] [--seconds N]
[--output FILE]`.

WAV files of 30 s at /v1/audio/transcriptions; the gateway's backend is a server that answers each KServe
request at once with the same words, so nothing but the gateway limits. `processor_ms` is its processor time
for a request, which other processes on the machine change less than its pace. A gateway that asks for a file
more than once would do more than its work: that ends the benchmark.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from tritonclient.utils import serialize_byte_tensor, triton_to_np_dtype

from conch.deployment import Deployment, Instance, Pool

from .speech.cells import sound, wav
from .speech_load import WINDOW, gateway_request, measure
from .stage import Results, machine

MODEL = "at-once"
TICKS = os.sysconf("SC_CLK_TCK")
# One word each half second: nothing is asked for a second time as left out.
STARTS = np.arange(0, WINDOW, 0.5, np.float32)
# J. F. Kennedy's inaugural address: a text that repeats itself would be asked for again.
TEXT = (
    "Let every nation know, whether it wishes us well or ill, that we shall pay any price, bear any burden, "
    "meet any hardship, support any friend, oppose any foe, in order to assure the survival and the success "
    "of liberty. This much we pledge, and more. To those old allies whose cultural and spiritual origins we "
    "share, we pledge loyalty."
)
WORDS = [f" {word}" for word in TEXT.split()]
ANSWER: dict[str, tuple[str, Any]] = {
    "TRANSCRIPTS": ("BYTES", [["".join(WORDS)]]),
    "LANGUAGE": ("BYTES", [["en"]]),
    "NO_SPEECH_PROB": ("FP32", [[0.0]]),
    "AVG_LOGPROB": ("FP32", [[-0.1]]),
    "TRUNCATED": ("BOOL", [[False]]),
    "PROMPT_TOKENS": ("INT32", [[4]]),
    "TOKENS": ("INT32", [list(range(len(WORDS)))]),
    "TOKEN_LOGPROBS": ("FP32", [[-0.1] * len(WORDS)]),
    "TOKEN_BYTES": ("BYTES", [WORDS]),
    "SEGMENT_TEXTS": ("BYTES", [["".join(WORDS).strip()]]),
    "SEGMENT_TIMES": ("FP32", [[[0.0, WINDOW]]]),
    "SEGMENT_SIZES": ("INT32", [[len(WORDS)]]),
    "WORD_TEXTS": ("BYTES", [[word.strip(" ,.") for word in WORDS]]),
    "WORD_TIMES": ("FP32", [[[start, start + 0.5] for start in STARTS.tolist()]]),
}


def binary(name: str) -> tuple[dict[str, Any], bytes]:
    """Encode an output in KServe's binary protocol."""
    kind, values = ANSWER[name]
    array = np.array(values, triton_to_np_dtype(kind))
    data = serialize_byte_tensor(array).item() if kind == "BYTES" else array.tobytes()
    size = {"binary_data_size": len(data)}
    return {"name": name, "datatype": kind, "shape": list(array.shape), "parameters": size}, data


class AtOnce(BaseHTTPRequestHandler):
    """Answers requests at once from ANSWER, and counts them in `asked`."""

    protocol_version = "HTTP/1.1"
    asked: Synchronized[int]

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Answer readiness."""
        self._send(b"{}")

    def do_POST(self) -> None:
        """Answer with the outputs that the request names."""
        with self.asked.get_lock():
            self.asked.value += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        head = json.loads(body[: int(self.headers.get("Inference-Header-Content-Length", len(body)))])
        rows, data = zip(*(binary(output["name"]) for output in head["outputs"]), strict=True)
        answer = {"model_name": "whisper_bls", "model_version": "1", "outputs": rows}
        self._send(json.dumps(answer).encode(), b"".join(data))

    def _send(self, head: bytes, data: bytes = b"") -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream" if data else "application/json")
        self.send_header("Inference-Header-Content-Length", str(len(head)))
        self.send_header("Content-Length", str(len(head) + len(data)))
        self.end_headers()
        self.wfile.write(head + data)


def answering(port: int, asked: Synchronized[int]) -> None:
    """Serve until the process ends."""
    AtOnce.asked = asked
    ThreadingHTTPServer(("127.0.0.1", port), AtOnce).serve_forever()


@contextmanager
def gateway(port: int) -> Iterator[tuple[int, Synchronized[int]]]:
    """Return the id of a gateway process on a port, and how often it has called its server, which is on the
    next port.
    """
    instance = Instance(0, MODEL, "whisper", "", (), "", "", "", 1.0)
    pool = Pool(MODEL, "whisper", (0,), capabilities=frozenset({"transcription", "word_timestamps"}))
    context = get_context("spawn")
    asked = context.Value("l")
    engine = context.Process(target=answering, args=(port + 1, asked), daemon=True)
    engine.start()
    with tempfile.TemporaryDirectory() as work:
        Deployment((instance,), (pool,), ("",)).save(Path(work) / "deployment.json")
        environment = {
            **os.environ,
            "CONCH_DEPLOYMENT": f"{work}/deployment.json",
            "CONCH_KSERVE_URL": f"http://127.0.0.1:{port + 1}",
            "CONCH_GATEWAY_PORT": str(port),
            "CONCH_RECORDINGS_PER_INSTANCE": "256",
        }
        command = [sys.executable, "-m", "gateway"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            _wait(port)
            yield process.pid, asked
        finally:
            process.terminate()
            process.wait(60)
            engine.terminate()


def _wait(port: int) -> None:
    for _ in range(300):
        try:
            httpx.get(f"http://127.0.0.1:{port}/health/live", timeout=5, trust_env=False).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("the gateway does not answer")


def processor(pid: int) -> float:
    """Return the CPU seconds used so far (proc(5), stat: utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in-flight", default="1,16")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--port", type=int, default=9790)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    results = Results(given.output, machine=machine())
    with gateway(given.port) as (pid, asked):
        make = partial(gateway_request, MODEL, wav(sound(WINDOW, 1)))
        for in_flight in map(int, given.in_flight.split(",")):
            before, asked_before = processor(pid), asked.value
            found = measure(f"http://127.0.0.1:{given.port}", make, in_flight, given.seconds)
            spent = (processor(pid) - before) / found["of"] * 1e3
            if asked.value - asked_before != found["of"]:
                raise RuntimeError(f"{asked.value - asked_before} requests for {found['of']} files")
            results.add(f"in flight {in_flight}", {**found, "processor_ms": round(spent, 1)})


if __name__ == "__main__":
    main()
