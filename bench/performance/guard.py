"""Measure the guard's overhead with NVIDIA's perf_analyzer at tritonserver and at its guard, in turn: `python
-m bench.performance.guard`.

perf_analyzer 2.51 comes from its wheel; newer ones need a newer C library than Debian 12's. Writes
docs/benchmarks/guard.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from build.catalog import ROOT
from conch.deployment import Deployment, Instance, Pool
from ops.guard.supervise.server import TritonAddresses

WHEEL = "tritonclient==2.51.0"
GUARD = {"http": "127.0.0.1:18100", "grpc": "127.0.0.1:18101"}
DIRECT = {"http": TritonAddresses.loopback().http, "grpc": TritonAddresses.loopback().grpc}
FOUND = re.compile(r"Throughput: ([\d.]+) infer/sec.*?p50 latency: (\d+) usec", re.S)
QUERY = {
    "QUERY": {"content": ["sort: lamp kitchen boat bag elephant"], "shape": [1]},
    "REQUEST_OUTPUT_LEN": {"content": [20], "shape": [1]},
}
TEXT = {
    "text_input": {"content": ["sort: lamp kitchen boat"], "shape": [1]},
    "max_tokens": {"content": [20], "shape": [1]},
}
SOUND = {
    "TEXT_PREFIX": {"content": [""], "shape": [1]},
    "WAV": {"content": [0.001 * (i % 100) for i in range(160_000)], "shape": [160_000]},
}
# One that only makes ids of a text, one that writes twenty tokens, one with 640 kB of sound in each request.
WORK = [
    ("mini-t5", "preprocessing", QUERY),
    ("mini-t5", "ensemble", TEXT),
    ("mini-whisper", "whisper_bls", SOUND),
]


@dataclasses.dataclass(frozen=True)
class GuardCell:
    """Medians over the rounds: requests per second, and median latency in microseconds."""

    model: str
    protocol: str
    at_once: int
    way: str
    throughput: float
    p50: float


def perf_analyzer(home: Path) -> tuple[str, dict[str, str]]:
    """Return the binary from its wheel, and an environment with its libraries."""
    binary, libraries = home / "perf_analyzer", home / "libraries"
    if not binary.exists():
        libraries.mkdir(parents=True, exist_ok=True)
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(home), WHEEL]
        subprocess.run(fetch, check=True)
        with zipfile.ZipFile(next(home.glob("tritonclient-*.whl"))) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith("/perf_analyzer"))
            binary.write_bytes(wheel.read(name))
        binary.chmod(0o755)
    pytriton = ROOT.glob(".venv/serve/lib/python3*/site-packages/nvidia_pytriton.libs")
    vendored = next(pytriton, Path(sysconfig.get_paths()["purelib"]))
    for short, pattern in (("libb64.so.0d", "libb64-*"), ("libcudart.so.12", "libcudart-*")):
        (libraries / short).unlink(missing_ok=True)
        (libraries / short).symlink_to(next(vendored.glob(pattern)))
    return str(binary), {**os.environ, "LD_LIBRARY_PATH": f"{libraries}:{vendored}"}


@contextmanager
def guarded(model: str, engines: Path, home: Path) -> Iterator[None]:
    """Start a guard with its tritonserver, both on loopback ports."""
    bundle, cores = str(engines / model / "openvino"), tuple(sorted(os.sched_getaffinity(0)))
    instance = Instance(0, model, "", bundle, cores, GUARD["http"], GUARD["grpc"])
    written = home / "deployment.json"
    Deployment((instance,), (Pool(model, "", (0,)),)).save(written)
    python = str(ROOT / ".venv/serve/bin/python")
    command = [python, "-m", "ops.guard", "--deployment", str(written), "--state-dir", str(home)]
    with (home / "guard.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise RuntimeError((home / "guard.log").read_text()[:500])
            try:
                metrics = httpx.get(f"http://{GUARD['http']}/metrics", trust_env=False).text
                if re.search(r"^conch_triton_serving\{.*\} 1\.0$", metrics, re.MULTILINE):
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(60)


def measured(
    binary: str, environment: dict[str, str], model: str, url: str, protocol: str, at_once: int, data: Path
) -> tuple[float, float]:
    """Return requests per second and p50 in microseconds of one run.

    Raises:
        RuntimeError: perf_analyzer found no stable figure.
    """
    command = [binary, "-m", model, "-u", url, "-i", protocol]
    command += ["--concurrency-range", str(at_once), "--input-data", str(data)]
    command += ["-p", "2000", "-s", "30", "-r", "20", "--percentile=50"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    if not (found := FOUND.search(output)):
        raise RuntimeError(output[-500:])
    return float(found[1]), float(found[2])


def main() -> None:
    """Print each cell, then write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", type=Path, default=ROOT / "engines")
    arguments = parser.parse_args()
    home = ROOT / ".conch" / "bench-guard"
    home.mkdir(parents=True, exist_ok=True)
    binary, environment = perf_analyzer(home)
    cells = []
    for bundle, model, fields in WORK:
        data = home / f"{model}.json"
        data.write_text(json.dumps({"data": [fields]}))
        with guarded(bundle, arguments.engines, home):
            for protocol in ("http", "grpc"):
                for at_once in (1, 8):
                    runs: dict[str, list[tuple[float, float]]] = {"direct": [], "guard": []}
                    for _ in range(arguments.rounds):
                        for way, urls in (("direct", DIRECT), ("guard", GUARD)):
                            url = urls[protocol]
                            one = measured(binary, environment, model, url, protocol, at_once, data)
                            runs[way].append(one)
                    for way, rows in runs.items():
                        throughput, p50 = (statistics.median(column) for column in zip(*rows, strict=True))
                        cells.append(GuardCell(model, protocol, at_once, way, throughput, p50))
                        print(json.dumps(dataclasses.asdict(cells[-1])), flush=True)
    written = [dataclasses.asdict(cell) for cell in cells]
    (ROOT / "docs/benchmarks/guard.json").write_text(json.dumps(written, indent=1) + "\n")
    shutil.rmtree(home / "backends", ignore_errors=True)


if __name__ == "__main__":
    main()
