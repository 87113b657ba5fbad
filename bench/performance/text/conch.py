"""Conch's engine models of one instance."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import httpx
import numpy as np
from tritonclient import grpc

from gateway.triton import decode, encode
from ops.local import HOST, LocalDeployment

from ..stage import running
from .cells import REQUESTS, BenchModel, BenchRequest, Call, TextCell, Timed, measure, one, summed

# (Ids to read, tokens to make) of short requests, of which so many run next to long ones.
SHORT_ONE, FIRST_ONE, LONG_ONE = (16, 5), (16, 2), (16, 500)
SHORT_ONES, OTHERS = 40, 8
SETTLE = 2.0  # seconds until the long ones run
CONCH, INT8 = "Conch", "Conch, int8"
ALONE, WITH_A_LONG_ONE = "Conch, five tokens alone", "Conch, five tokens next to 500"
FIRST_ALONE = "Conch, streamed, two tokens alone"
FIRST_WITH_OTHERS = f"Conch, streamed, two tokens next to {OTHERS} others"


def tensors(request: BenchRequest) -> dict[str, Any]:
    """Make inputs of `tensorrt_llm`; no id ends an answer."""
    scalars = {"input_lengths": len(request.ids), "request_output_len": request.wanted, "end_id": -1}
    return {
        "input_ids": np.array([request.ids], np.int32),
        **{name: np.array([[value]], np.int32) for name, value in scalars.items()},
    }


def unary(layout: LocalDeployment) -> Call:
    """Call `tensorrt_llm` over HTTP."""
    client = httpx.Client(trust_env=False, base_url=f"http://{HOST}:{layout.kserve_http}", timeout=600)

    def call(group: Sequence[BenchRequest]) -> list[Timed]:
        (request,) = group
        body, headers = encode(tensors(request), ["sequence_length"], "")
        begin = time.perf_counter()
        answer = client.post("/v2/models/tensorrt_llm/infer", content=body, headers=headers)
        answer.raise_for_status()
        arrays = decode(answer.headers, answer.content, ["sequence_length"])
        made = int(arrays["sequence_length"].item())
        assert made == request.wanted, f"{made} tokens were made, {request.wanted} wanted: unequal work"
        return [(0.0, time.perf_counter() - begin)]

    return call


def streamed(layout: LocalDeployment) -> Call:
    """Call `tensorrt_llm_stream` over gRPC: a response for each token or several."""

    def call(group: Sequence[BenchRequest]) -> list[Timed]:
        (request,) = group
        client, answers = grpc.InferenceServerClient(f"{HOST}:{layout.kserve_grpc}"), SimpleQueue[Any]()
        client.start_stream(lambda result, error: answers.put((result, error, time.perf_counter())))
        inputs = []
        for name, array in {**tensors(request), "streaming": np.array([[True]])}.items():
            kind = "BOOL" if array.dtype == bool else "INT32"
            inputs.append(grpc.InferInput(name, list(array.shape), kind))
            inputs[-1].set_data_from_numpy(array)
        outputs, begin = [grpc.InferRequestedOutput("sequence_length")], time.perf_counter()
        client.async_stream_infer("tensorrt_llm_stream", inputs, outputs=outputs)
        marks = list[float]()
        while len(marks) < request.wanted:
            result, error, at = answers.get(timeout=600)
            if error:
                raise error
            marks += [at - begin] * int(result.as_numpy("sequence_length").item())
        client.stop_stream()
        return [(marks[0], marks[-1])]

    return call


def some(system: str, model: BenchModel, call: Call, lengths: tuple[int, int] = SHORT_ONE) -> TextCell:
    """Send short requests one after another."""
    begin = time.perf_counter()
    timed = [call([one(model, lengths, np.random.default_rng(3))])[0] for _ in range(SHORT_ONES)]
    return summed(system, model, 1, SHORT_ONES * lengths[1], time.perf_counter() - begin, timed)


@contextmanager
def long_ones(model: BenchModel, call: Call, count: int) -> Iterator[None]:
    """Keep so many long requests running, each followed by another."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            call([one(model, LONG_ONE, np.random.default_rng(3))])

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(SETTLE)
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def with_others(model: BenchModel, unary: Call, streamed: Call) -> list[TextCell]:
    """Measure short requests during a long one, and the first token of streams during eight long ones."""
    cells = [some(ALONE, model, unary), some(FIRST_ALONE, model, streamed, FIRST_ONE)]
    with long_ones(model, unary, 1):
        cells.append(some(WITH_A_LONG_ONE, model, unary))
    with long_ones(model, unary, OTHERS):
        cells.append(some(FIRST_WITH_OTHERS, model, streamed, FIRST_ONE))
    return cells


def conch(model: BenchModel) -> list[TextCell]:
    """Measure one instance after another: unary and streamed, and with int8 weights one of them."""
    with running(f"random-{model.name}-int8") as (layout, _):
        cells = [measure(INT8, model, concurrency, unary(layout)) for concurrency in REQUESTS]
    with running(f"random-{model.name}") as (layout, _):
        ways = {CONCH: unary(layout), "Conch, streamed": streamed(layout)}
        cells += [
            measure(system, model, concurrency, call)
            for concurrency in REQUESTS
            for system, call in ways.items()
        ]
        return cells + with_others(model, ways[CONCH], ways["Conch, streamed"])
