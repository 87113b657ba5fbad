"""The torch engine alone, without Triton: `python -m bench.performance.torch_engine [--shape NAME] [--output
FILE]`, on the GPU that is there.

Random weights of a true Whisper shape, random features, windows of 30 s, 64 new ids. Next to it transformers'
`generate` on the same weights in the same run. What comes out is JSON, written after each part.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from build import checkpoints
from serving.engine.jobs import Job, Limits
from serving.engine.runtime import Row
from serving.engine.sampling import Hypothesis, Sampling
from serving.engine.scheduler import Scheduler
from serving.engine.torch.runtime import TorchRuntime

from .stage import Results

PROMPT = (50258, 50259, 50359, 50363)
NEW = 64
WINDOW = 30.0
ROOT = Path(__file__).parents[2]


Make = Callable[[int], tuple[tuple[int, ...], Any]]


class Client:
    """A client that sends a request as soon as the last is answered."""

    def __init__(self, ask: Callable[[Client], None]) -> None:
        self.ask, self.began, self.last = ask, 0.0, 0.0
        self.took: list[float] = []
        self.gaps: list[float] = []

    def cancelled(self) -> bool:
        return False

    def update(self, beams: list[Hypothesis]) -> None:
        now = time.perf_counter()
        if self.last:
            self.gaps.append(now - self.last)
        self.last = now

    def finish(self, beams: list[Hypothesis]) -> None:
        assert len(beams[0].ids) == NEW
        self.took.append(time.perf_counter() - self.began)
        self.last = 0.0
        self.ask(self)

    def fail(self, error: Exception) -> None:
        print(f"failed: {error!r}", flush=True)


class Load:
    """Sends `requests` requests, `clients` at a time. `make` returns the decoder's and the encoder's input by
    number. `attend`: steps return cross-attention, for word timestamps.
    """

    def __init__(
        self, runtime: TorchRuntime, clients: int, requests: int, make: Make, *, attend: bool = False
    ) -> None:
        self.make, self.runtime, self.attend = make, runtime, attend
        self.left, self.lock = requests, threading.Lock()
        rows = runtime.running.buckets[-1]
        self.scheduler = Scheduler(runtime, Limits(max_rows=rows, join_at_once=8, max_queue=1024))
        self.clients = [Client(self.ask) for _ in range(clients)]
        self.asked = 0
        self.done = threading.Event()
        self.working = clients

    def ask(self, client: Client) -> None:
        """Send the next request of a client, if any is left."""
        with self.lock:
            self.asked += 1
            number = self.asked
            over = number > self.left
            self.working -= over
            if over and not self.working:
                self.done.set()
        if over:
            return
        prompt, source = self.make(number)
        client.began = time.perf_counter()
        sampling = Sampling(max_tokens=NEW, end_id=-1)
        self.scheduler.submit(Job(prompt, sampling, client, source, streaming=True, attend=self.attend))

    def run(self) -> dict[str, float]:
        """Return requests per second and each one's duration."""
        self.scheduler.start()
        began = time.perf_counter()
        for client in self.clients:
            self.ask(client)
        assert self.done.wait(300), "no end"
        seconds = time.perf_counter() - began
        self.scheduler.stop()
        took = np.array([one for client in self.clients for one in client.took]) * 1e3
        gaps = np.array([one for client in self.clients for one in client.gaps]) * 1e3
        return {
            "requests_s": round(self.left / seconds, 2),
            "p50_ms": round(float(np.percentile(took, 50)), 1),
            "p95_ms": round(float(np.percentile(took, 95)), 1),
            "gap_p50_ms": round(float(np.percentile(gaps, 50)), 2),
            "gap_p99_ms": round(float(np.percentile(gaps, 99)), 2),
            "gap_max_ms": round(float(gaps.max()), 2),
        }


def sounds(runtime: TorchRuntime) -> Make:
    """Make requests for windows of audio, no two equal."""
    found = features(runtime, 8)

    def make(number: int) -> tuple[tuple[int, ...], Any]:
        sound = found[number % len(found)].copy()
        sound[0, 0] = number / 1024
        return PROMPT, sound

    return make


def features(runtime: TorchRuntime, count: int) -> list[Any]:
    """Make random features, float16 [frames, mels]."""
    rng = np.random.default_rng(1)
    shape = (runtime.facts.frames, runtime.shape.mels)
    return [rng.standard_normal(shape, np.float32).astype(np.float16) for _ in range(count)]


def timed(work: Callable[[], object], seconds: float = 1.0) -> float:
    """Return the milliseconds of a call, over many in a row."""
    work()
    synchronize()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        work()
        count += 1
        if count % 8 == 0:
            synchronize()
    synchronize()
    return (time.perf_counter() - began) / count * 1e3


def synchronize() -> None:
    """Wait for the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def encoder(runtime: TorchRuntime) -> Iterator[tuple[str, Any]]:
    """Return milliseconds for 1 to 8 windows, and the fraction of the GPU's sustained matrix throughput."""
    peak = _peak(runtime) if runtime.device.gpu else 0.0
    shape = runtime.shape
    flop = _encoder_flop(shape, runtime.facts.encoder_positions)
    for size, pieces in sorted(runtime.graphs.run.items() if runtime.graphs else ()):
        with torch.inference_mode(), runtime.device.on(runtime.device.encodes):
            ms = timed(partial(_in_turn, pieces))
        tflops = size * flop / ms / 1e9
        share = round(tflops / peak, 3)
        yield f"encoder {size}", {"ms": round(ms, 2), "tflops": round(tflops), "of_peak": share}


def _in_turn(pieces: Sequence[Callable[[], object]]) -> None:
    for piece in pieces:
        piece()


def _encoder_flop(shape: Any, length: int) -> float:
    """Count operations for one window: linear layers, attention, convolutions, and the decoder's keys and
    values.
    """
    width, inner = shape.width, shape.encoder_inner
    layer = 8 * length * width**2 + 4 * length * width * inner + 4 * length**2 * width
    front = 2 * 2 * length * 3 * shape.mels * width + 2 * length * 3 * width**2
    memory = 2 * length * width * 2 * shape.decoder_layers * shape.decoder_heads * shape.head_width
    return float(shape.encoder_layers * layer + front + memory)


def _peak(runtime: TorchRuntime, size: int = 8192) -> float:
    """Return the sustained TFLOP/s of a large product."""
    a, b = (torch.randn(size, size, device="cuda", dtype=runtime.device.dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / timed(lambda: torch.mm(a, b, out=out), 2.0) / 1e9


def steps(runtime: TorchRuntime) -> Iterator[tuple[str, Any]]:
    """Return milliseconds of a decoder step, at a quarter of the positions, by number of rows."""
    batch = runtime.running
    for size in batch.buckets:
        with torch.inference_mode(), runtime.device.on(runtime.device.steps):
            for plain, name in ((True, ""), (False, " sampled")):
                ms = timed(partial(_one_step, runtime, size, plain=plain), 0.2)
                yield f"step {size}{name}", round(ms, 3)
    runtime.batch()


def _one_step(runtime: TorchRuntime, size: int, *, plain: bool) -> None:
    batch = runtime.running
    batch.arena.memory_length.fill_(runtime.facts.encoder_positions)
    batch.arena.length.fill_(runtime.facts.positions // 4)
    batch.buffers.graphs[size, plain]()


def agreement(runtime: TorchRuntime, model: Any) -> dict[str, float]:
    """Compare ids and log probabilities with transformers' in float32 on the same (rounded) weights, given
    our ids: how often ours is its likeliest, how much likelier its own was, and the error of log
    probabilities.
    """
    count = min(8, runtime.running.buckets[-1])
    sounds = features(runtime, count)
    memories = runtime.encode([runtime.prepare(sound) for sound in sounds])
    batch = runtime.batch()
    written: list[list[int]] = [[] for _ in sounds]
    probs: list[list[float]] = [[] for _ in sounds]
    choice = Sampling(max_tokens=NEW, end_id=-1)
    rows = [Row(None, PROMPT, 0, memory, None, choice) for memory in memories]
    for n in range(NEW):
        step = batch.step(rows)
        for i in range(count):
            written[i].append(int(step.best[i]))
            probs[i].append(float(step.best_log_prob[i]))
        rows = [Row(i, (written[i][-1],), len(PROMPT) + n, memories[i], None, choice) for i in range(count)]
    device = runtime.device.kind
    source = torch.from_numpy(np.stack(sounds)).to(device, torch.float32).transpose(1, 2)
    ids = torch.tensor([[*PROMPT, *one] for one in written], device=device)
    with torch.inference_mode():
        logits = model(input_features=source, decoder_input_ids=ids[:, :-1]).logits[:, len(PROMPT) - 1 :]
        theirs = logits.float().log_softmax(-1)
    ours = ids[:, len(PROMPT) :, None]
    given = theirs.gather(2, ours)[..., 0]
    off = (given - torch.tensor(probs, device=device)).abs()
    regret = theirs.amax(-1) - given
    return {
        "same": round(float((theirs.argmax(-1) == ours[..., 0]).float().mean()), 4),
        "worst_regret": round(float(regret.max()), 5),
        "log_prob_error_p50": round(float(off.median()), 5),
        "log_prob_error_max": round(float(off.max()), 5),
    }


def generating(model: Any, runtime: TorchRuntime, size: int) -> dict[str, float]:
    """Run transformers' own `generate`."""
    sounds = features(runtime, min(size, 8))
    source = torch.from_numpy(np.stack([sounds[i % len(sounds)] for i in range(size)]))
    source = source.to(model.device, model.dtype).transpose(1, 2)
    from transformers.generation.utils import GenerationMixin
    from transformers.modeling_outputs import BaseModelOutput

    def generate(**options: Any) -> None:
        encoded = model.model.encoder(source).last_hidden_state
        GenerationMixin.generate(
            model,
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
            decoder_input_ids=torch.tensor([PROMPT] * size, device=model.device),
            **options,
        )

    ms = generated(generate)
    return {"ms": round(ms, 1), "rtfx": round(size * WINDOW / ms * 1e3, 1)}


def generated(generate: Callable[..., object]) -> float:
    """Return the milliseconds in which transformers makes NEW tokens, greedy, after two times that do not
    count.
    """

    def once() -> None:
        generate(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
        synchronize()

    with torch.inference_mode():
        once()
        once()
        return timed(once, 3.0)


def export(family: str, shape: str, folder: str) -> None:
    """Write an engine folder with random weights of a shape."""
    command = [sys.executable, "-m", "build.targets.torch.export", "--family", family]
    subprocess.run([*command, "--weights", f"random:{shape}", "--output", folder], cwd=ROOT, check=True)


def machine() -> dict[str, str]:
    """Describe the machine."""
    found = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if torch.cuda.is_available():
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        found["gpu"] = subprocess.check_output(query, text=True).splitlines()[0]
        found["cuda"], found["cudnn"] = str(torch.version.cuda), str(torch.backends.cudnn.version())
    return found


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="whisper-large-v3-turbo")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--clients", default="1,2,4,8,16,32,64,128")
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    say = Results(given.output, machine=machine(), shape=given.shape).add
    parameters = {"precision": "float16", "max_rows": given.rows}

    with tempfile.TemporaryDirectory() as work:
        engine = Path(work)
        began = time.perf_counter()
        export("whisper", given.shape, work)
        say("export_s", round(time.perf_counter() - began, 1))
        began = time.perf_counter()
        runtime = TorchRuntime(engine, parameters)
        say("load_s", round(time.perf_counter() - began, 1))
    gc.collect()
    gc.freeze()
    if runtime.device.gpu:
        say("reserved_gib", round(torch.cuda.memory_reserved() / 2**30, 2))
    for name, value in (*encoder(runtime), *steps(runtime)):
        say(name, value)
    theirs, _ = checkpoints.load("whisper", f"random:{given.shape}")
    exact = theirs.to(runtime.device.dtype).float().to(runtime.device.kind)
    say("agreement", agreement(runtime, exact))
    del exact
    for clients in map(int, given.clients.split(",")):
        requests = max(16, min(given.requests, 48 * clients))
        Load(runtime, clients, min(requests, 2 * clients + 8), sounds(runtime)).run()
        for attend in (False, True) if runtime.facts.attends else (False,):
            found = Load(runtime, clients, requests, sounds(runtime), attend=attend).run()
            name = f"in flight {clients}" + ", where they looked" * attend
            say(name, {"rtfx": round(found["requests_s"] * WINDOW, 1), **found})
    half = theirs.to(runtime.device.kind, runtime.device.dtype)
    for size in (1, 8, 64) if runtime.device.gpu else (1,):
        say(f"transformers {size}", generating(half, runtime, size))


if __name__ == "__main__":
    main()
