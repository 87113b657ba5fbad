"""A bundle's engine and façade in this process, with the gateway's own transcriber, with which `make
evaluate-real` measures words.

The words equal a deployment's (the same classes in the same order); only Triton, HTTP and nginx are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.bundle import Manifest, load_parameters
from conch.deployment import Pool
from serving.audio.whisper import Whisper
from serving.engine.answers import Answers
from serving.engine.collected import Collected
from serving.engine.inputs import parse
from serving.engine.openvino.runtime import OpenVinoRuntime
from serving.engine.scheduler import Scheduler
from speech.cutters import Cutter
from speech.model import Arrays
from speech.options import Options
from speech.transcriber import Transcriber
from speech.transcript import Transcript, joined
from speech.windows import Window

Floats = NDArray[np.float32]
BLOCK = 64_000
WINDOWS_AT_ONCE = 4


class Direct:
    """A `speech.model.SpeechModel` in this process."""

    def __init__(self, bundle: Path, precision: str | None = None) -> None:
        parameters = load_parameters(bundle)
        self.graphs = OpenVinoRuntime(bundle / "engine", precision)
        self.scheduler = Scheduler(self.graphs)
        self.scheduler.start()
        self.whisper = Whisper(bundle)
        self.threads = ThreadPoolExecutor(16)
        manifest = Manifest.load(bundle)
        able, beams = frozenset(manifest.capabilities), parameters.get("beams", 1)
        self.pool = Pool(manifest.model, "whisper", (0,), capabilities=able, beams=beams)
        self.asked = 0

    def close(self) -> None:
        """Stop the engine's thread."""
        self.scheduler.stop()

    def _engine(self, arrays: Arrays, streaming: bool) -> Iterator[Arrays]:
        listener = Collected()
        job = parse(arrays, listener, self.graphs.facts)
        self.scheduler.submit(job)
        yield Answers(job).finish(listener.wait(600))

    def transcribe(self, arrays: Arrays, wanted: set[str]) -> Arrays:
        """Send one request to the façade."""
        return list(self.whisper.transcribe(arrays, wanted, self._engine, streaming=False))[-1]

    async def infer(self, pool: Pool, arrays: Arrays, outputs: Sequence[str], request_id: str) -> Arrays:
        self.asked += 1
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self.threads, self.transcribe, arrays, set(outputs))
        return {name: result[name] for name in outputs}

    def transcript(self, wave: Floats, options: Options, cutter: Cutter) -> Transcript:
        """Transcribe a recording, samples [n] at 16 kHz, as the gateway does."""
        return asyncio.run(self._transcript(wave, options, cutter))

    async def _transcript(self, wave: Floats, options: Options, cutter: Cutter) -> Transcript:
        transcriber = Transcriber(self, WINDOWS_AT_ONCE)
        source = _windows(wave, cutter)

        async def windows() -> Any:
            while (window := await asyncio.to_thread(next, source, None)) is not None:
                yield window

        parts = transcriber.transcribe(self.pool, windows(), options, "direct")
        return joined([part async for part in parts])


def _windows(wave: Floats, cutter: Cutter) -> Iterator[Window]:
    for at in range(0, len(wave), BLOCK):
        yield from cutter.feed(wave[at : at + BLOCK])
    yield from cutter.finish()
