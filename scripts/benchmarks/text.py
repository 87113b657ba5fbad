"""`python -m scripts.benchmarks.text`, part of `make bench`: T5, BART and GPT-2 beside CTranslate2 and
transformers, the same random weights, one run.

Shapes of flan-t5-small, bart-base and gpt2-medium. Random weights have no words, so everybody is given ids
and gives ids: Conch at Triton's `tensorrt_llm` and `tensorrt_llm_stream`, without gateway and tokenizer.
Greedy; ends are banned, so each makes exactly the wanted number of tokens. Writes
docs/benchmarks/text-cpu.{md,json,png}.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import numpy as np
from tritonclient import grpc

from gateway.triton import decode, encode
from ops.local import HOST, LocalDeployment

from .stage import DOCS, WORK, cores, machine, peer, running

PROMPTS = (16, 96, 32, 160, 64, 24, 128, 48)
REQUESTS = {1: 8, 8: 16, 32: 32}  # by concurrency; whole rounds of PROMPTS
CT2, HF = "CTranslate2", "transformers"
WHO = ("Conch", CT2, HF)
SHORT_ONE, LONG_ONE, SHORT_ONES = (
    (16, 5),
    (16, 500),
    40,
)  # (ids to read, tokens to make) of a request beside which another runs
ALONE, BESIDE = "Conch, five tokens alone", "Conch, five tokens beside 500"


@dataclass(frozen=True)
class Model:
    """A shape. `answers`: the numbers of tokens wanted, in turn."""

    name: str
    family: str
    architecture: str
    answers: tuple[int, ...]
    vocabulary: int

    @property
    def folder(self) -> Path:
        """Where checkpoints for the peers lie."""
        return WORK / "text" / self.name

    @property
    def alone(self) -> bool:
        """A decoder without an encoder."""
        return self.family == "gpt2"


SHORT = (32, 6, 24, 12, 48, 4, 16, 8)
LONG = tuple(2 * n for n in SHORT)
MODELS = {
    model.name: model
    for model in (
        Model("flan-t5-small", "t5", "T5ForConditionalGeneration", LONG, 32128),
        Model("bart-base", "bart", "BartForConditionalGeneration", LONG, 50265),
        Model("gpt2-medium", "gpt2", "GPT2LMHeadModel", SHORT, 50257),
    )
}


@dataclass(frozen=True)
class Request:
    """Ids to read, and how many to make."""

    ids: tuple[int, ...]
    wanted: int


@dataclass(frozen=True)
class Cell:
    """One measurement. Times in seconds: until the first token (0 where it cannot be seen), and until the
    last.
    """

    who: str
    model: str
    concurrency: int
    requests: int
    tokens: int
    tokens_per_second: float
    first_p50: float
    first_p99: float
    p50: float
    p99: float


Runs = dict[str, tuple[str, list[Cell]]]  # by model: when and where, and what was measured
Timed = tuple[float, float]  # seconds until the first and until the last token of a request
Call = Callable[[Sequence[Request]], list[Timed]]


def requests(model: Model, count: int) -> list[Request]:
    """Mixed lengths, the same for everybody. Ids with a meaning of their own, which are the first and the
    last, are not among them.
    """
    random = np.random.default_rng(count)
    pairs = itertools.islice(itertools.cycle(zip(PROMPTS, model.answers, strict=True)), count)
    return [
        Request(tuple(random.integers(10, model.vocabulary - 200, length).tolist()), wanted)
        for length, wanted in pairs
    ]


def measure(who: str, model: Model, concurrency: int, call: Call, batch: int = 1) -> Cell:
    """Call from threads until all requests are done. `batch`: requests that go into one call."""
    asked = requests(model, REQUESTS[concurrency])
    groups = [asked[i : i + batch] for i in range(0, len(asked), batch)]
    call([Request(request.ids, 4) for request in groups[0]])
    begin = time.perf_counter()
    with ThreadPoolExecutor(max(1, concurrency // batch)) as pool:
        timed = [one for group in pool.map(call, groups) for one in group]
    wall, tokens = time.perf_counter() - begin, sum(request.wanted for request in asked)
    first, last = (
        [round(float(np.percentile(values, percent)), 4) for percent in (50, 99)]
        for values in zip(*timed, strict=True)
    )
    cell = Cell(
        who,
        model.name,
        concurrency,
        len(asked),
        tokens,
        round(tokens / wall, 1),
        first[0],
        first[1],
        last[0],
        last[1],
    )
    print(json.dumps(dataclasses.asdict(cell)), flush=True)
    return cell


# --- Conch ----------------------------------------------------------------------------------------


def tensors(request: Request) -> dict[str, Any]:
    """Inputs of `tensorrt_llm`; no id ends an answer."""
    scalars = {"input_lengths": len(request.ids), "request_output_len": request.wanted, "end_id": -1}
    return {
        "input_ids": np.array([request.ids], np.int32),
        **{name: np.array([[value]], np.int32) for name, value in scalars.items()},
    }


def unary(layout: LocalDeployment) -> Call:
    """`tensorrt_llm` over HTTP."""
    client = httpx.Client(base_url=f"http://{HOST}:{layout.kserve_http}", timeout=600)

    def call(group: Sequence[Request]) -> list[Timed]:
        (request,) = group
        body, headers = encode(tensors(request), ["sequence_length"], "")
        begin = time.perf_counter()
        answer = client.post("/v2/models/tensorrt_llm/infer", content=body, headers=headers)
        answer.raise_for_status()
        made = int(decode(answer, ["sequence_length"])["sequence_length"].item())
        assert made == request.wanted, f"{made} tokens were made, {request.wanted} wanted: unequal work"
        return [(0.0, time.perf_counter() - begin)]

    return call


def streamed(layout: LocalDeployment) -> Call:
    """`tensorrt_llm_stream` over gRPC: a response for each token."""

    def call(group: Sequence[Request]) -> list[Timed]:
        (request,) = group
        client, answers = grpc.InferenceServerClient(f"{HOST}:{layout.kserve_grpc}"), SimpleQueue[Any]()
        client.start_stream(lambda result, error: answers.put((result, error, time.perf_counter())))
        inputs = []
        for name, array in {**tensors(request), "streaming": np.array([[True]])}.items():
            inputs.append(
                grpc.InferInput(name, list(array.shape), "BOOL" if array.dtype == bool else "INT32")
            )
            inputs[-1].set_data_from_numpy(array)
        begin = time.perf_counter()
        client.async_stream_infer(
            "tensorrt_llm_stream", inputs, outputs=[grpc.InferRequestedOutput("sequence_length")]
        )
        marks = list[float]()
        while len(marks) < request.wanted:  # each response but perhaps the last has one token
            result, error, at = answers.get(timeout=600)
            if error:
                raise error
            marks += [at - begin] * int(result.as_numpy("sequence_length").item())
        client.stop_stream()
        return [(marks[0], marks[-1])]

    return call


def one(model: Model, lengths: tuple[int, int]) -> Request:
    """A request of given lengths."""
    return Request(
        tuple(np.random.default_rng(3).integers(10, model.vocabulary - 200, lengths[0]).tolist()), lengths[1]
    )


def short_ones(who: str, model: Model, call: Call) -> Cell:
    """Short requests, one after the other."""
    begin = time.perf_counter()
    timed = [call([one(model, SHORT_ONE)])[0][1] for _ in range(SHORT_ONES)]
    tokens = SHORT_ONES * SHORT_ONE[1]
    p50, p99 = (round(float(np.percentile(timed, percent)), 4) for percent in (50, 99))
    cell = Cell(
        who,
        model.name,
        1,
        SHORT_ONES,
        tokens,
        round(tokens / (time.perf_counter() - begin), 1),
        0.0,
        0.0,
        p50,
        p99,
    )
    print(json.dumps(dataclasses.asdict(cell)), flush=True)
    return cell


def short_beside_long(model: Model, call: Call) -> list[Cell]:
    """Short requests alone, and while long ones run one after the other."""
    alone, over = short_ones(ALONE, model, call), threading.Event()

    def run() -> None:
        while not over.is_set():
            call([one(model, LONG_ONE)])

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.5)
    try:
        return [alone, short_ones(BESIDE, model, call)]
    finally:
        over.set()
        thread.join()


def conch(model: Model) -> list[Cell]:
    """One instance, both faces of its engine."""
    with running(f"random-{model.name}") as (layout, _):
        ways = {"Conch": unary(layout), "Conch, streamed": streamed(layout)}
        cells = [
            measure(who, model, concurrency, call) for concurrency in REQUESTS for who, call in ways.items()
        ]
        return cells + short_beside_long(model, ways["Conch"])


# --- peers, each in a process of its own ----------------------------------------------------------


def checkpoint(model: Model) -> Path:
    """The random weights in Hugging Face layout: the same seed as the bundle's."""
    folder = model.folder / "checkpoint"
    if not (folder / "model.safetensors").exists():
        import torch

        torch.manual_seed(0)
        made = import_module(f"build.checkpoints.{model.family}").random_model(model.name)
        made.config.normalize_before = False  # CTranslate2's converter reads it, and the hub's BART has it
        made.save_pretrained(folder)
    return folder


class Numbered:
    """A tokenizer as far as CTranslate2's converter looks: `<0>`, `<1>` and so on."""

    def __init__(self, vocabulary: int, end: int) -> None:
        self.vocabulary = vocabulary
        self.bos_token = self.pad_token = "<0>"  # noqa: S105  # no password
        self.eos_token = self.unk_token = f"<{end}>"

    def get_vocab(self) -> dict[str, int]:
        """Ids by token."""
        return {f"<{i}>": i for i in range(self.vocabulary)}

    def convert_ids_to_tokens(self, token: int) -> str:
        """The token of an id."""
        return f"<{token}>"


def converted(model: Model) -> Path:
    """The weights as CTranslate2 wants them, in float32; it quantizes when it loads."""
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_tokenizer(self, _class: Any, path: str, **_: Any) -> Numbered:
            config = json.loads((Path(path) / "config.json").read_text("utf-8"))
            return Numbered(config["vocab_size"], config["eos_token_id"])

    folder = model.folder / "ct2"
    if not (folder / "model.bin").exists():
        Converter(str(checkpoint(model))).convert(str(folder), force=True)
    return folder


def ct2_call(model: Model, precision: str, workers: int) -> Call:
    """A batch; a row that has made its tokens leaves it. `workers` batches run side by side and share the
    cores.
    """
    import ctranslate2

    kind = ctranslate2.Generator if model.alone else ctranslate2.Translator
    engine = kind(
        str(converted(model)),
        "cpu",
        compute_type=precision,
        inter_threads=workers,
        intra_threads=max(1, cores() // workers),
    )

    def call(group: Sequence[Request]) -> list[Timed]:
        begin, first = time.perf_counter(), dict[int, float]()
        # A decoder alone reads what the shortest prompt leaves of the others step by step; those steps count,
        # but make nothing.
        shortest = min(len(request.ids) for request in group)
        unread = [len(request.ids) - shortest if model.alone else 0 for request in group]

        def token(step: Any) -> bool:
            made = step.step + 1 - unread[step.batch_id]
            if made > 0:
                first.setdefault(step.batch_id, time.perf_counter() - begin)
            return bool(made >= group[step.batch_id].wanted)

        texts, longest = (
            [[f"<{i}>" for i in request.ids] for request in group],
            max(request.wanted for request in group),
        )
        if model.alone:
            results = engine.generate_batch(
                texts,
                max_length=longest,
                min_length=longest,
                include_prompt_in_result=False,
                callback=token,
                asynchronous=True,
            )
            made = [len(result.result().sequences[0]) for result in results]
        else:
            results = engine.translate_batch(
                texts,
                max_decoding_length=longest,
                min_decoding_length=longest,
                beam_size=1,
                callback=token,
                asynchronous=True,
            )
            made = [len(result.result().hypotheses[0]) for result in results]
        assert made == [request.wanted for request in group], f"{made} tokens were made: unequal work"
        last = time.perf_counter() - begin
        return [(first[i], last) for i in range(len(group))]

    return call


def ctranslate2(model: Model) -> list[Cell]:
    """In both precisions, as static batches and as single requests on as many workers as there are cores."""
    cells = []
    for precision in ("float32", "int8"):
        whole, apart = ct2_call(model, precision, 1), ct2_call(model, precision, cores())
        for concurrency in REQUESTS:
            batched = f", batches of {concurrency}" if concurrency > 1 else ""
            cells.append(measure(f"{CT2} {precision}{batched}", model, concurrency, whole, concurrency))
            if concurrency == 8:
                cells.append(measure(f"{CT2} {precision}, {cores()} workers", model, concurrency, apart))
    return cells


def transformers_call(model: Model, precision: str) -> Call:
    """`generate` on a batch, filled up on the left; a row that has made its tokens stays until the longest
    has.
    """
    import torch
    import transformers as library
    from transformers import StoppingCriteria, StoppingCriteriaList

    torch.set_num_threads(cores())
    loaded = (
        getattr(library, model.architecture)
        .from_pretrained(checkpoint(model), dtype=getattr(torch, precision))
        .eval()
    )

    class Clock(StoppingCriteria):  # type: ignore[misc]
        def __init__(self) -> None:
            self.begin, self.first = time.perf_counter(), 0.0

        def __call__(self, ids: Any, _: Any, **__: Any) -> Any:
            self.first = self.first or time.perf_counter() - self.begin
            return torch.zeros(len(ids), dtype=torch.bool)

    def call(group: Sequence[Request]) -> list[Timed]:
        clock, width, longest = (
            Clock(),
            max(len(request.ids) for request in group),
            max(request.wanted for request in group),
        )
        ids = torch.tensor([[0] * (width - len(request.ids)) + list(request.ids) for request in group])
        mask = torch.tensor([[0] * (width - len(request.ids)) + [1] * len(request.ids) for request in group])
        with torch.no_grad():
            loaded.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=longest,
                min_new_tokens=longest,
                do_sample=False,
                num_beams=1,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        return [(clock.first, time.perf_counter() - clock.begin)] * len(group)

    return call


def transformers(model: Model) -> list[Cell]:
    """In both precisions, as static batches."""
    cells = []
    for precision in ("float32", "bfloat16"):
        call = transformers_call(model, precision)
        for concurrency in REQUESTS:
            batched = f", batches of {concurrency}" if concurrency > 1 else ""
            cells.append(measure(f"{HF} {precision}{batched}", model, concurrency, call, concurrency))
    return cells


PEERS = {CT2: ctranslate2, HF: transformers}


# --- report ---------------------------------------------------------------------------------------


def best(cells: Sequence[Cell], who: str, model: str, concurrency: int) -> Cell:
    """The fastest of somebody's ways with so many requests at hand; nobody is bound to take them
    all at once.
    """
    return max(
        (c for c in cells if c.who.startswith(who) and c.model == model and c.concurrency <= concurrency),
        key=lambda c: c.tokens_per_second,
    )


def ratio(cells: Sequence[Cell], peer_name: str, model: str, concurrency: int) -> float:
    """Our unary tokens per second over a peer's best."""
    ours = next(c for c in cells if (c.who, c.model, c.concurrency) == ("Conch", model, concurrency))
    return ours.tokens_per_second / best(cells, peer_name, model, concurrency).tokens_per_second


def goals(cells: Sequence[Cell]) -> Iterator[tuple[str, float, float]]:
    """Goal, wanted, reached."""
    for model in dict.fromkeys(cell.model for cell in cells):
        yield (
            f"{model}, concurrency 8: times CTranslate2's best (wanted at least)",
            1.5,
            ratio(cells, CT2, model, 8),
        )
        alone, beside = (
            next(c.p99 for c in cells if (c.who, c.model) == (who, model)) for who in (ALONE, BESIDE)
        )
        yield (
            f"{model}, p99 of five tokens beside a request for 500: times alone (at most)",
            2.0,
            beside / alone,
        )
        yield (
            f"{model}, worst of all concurrencies: times transformers' best (at least)",
            1.0,
            min(ratio(cells, HF, model, n) for n in REQUESTS),
        )


def ratios(cells: Sequence[Cell]) -> list[str]:
    """Markdown: tokens per second, ours and the peers' best."""
    lines = [
        "",
        f"| | in flight | Conch | {CT2}'s best | times | {HF}' best | times |",
        "|---|---|---|---|---|---|---|",
    ]
    for model, concurrency in itertools.product(dict.fromkeys(cell.model for cell in cells), REQUESTS):
        ours, *theirs = (
            best(
                [c for c in cells if c.who == "Conch" or not c.who.startswith("Conch")],
                who,
                model,
                concurrency,
            )
            for who in WHO
        )
        numbers = " | ".join(
            f"{c.tokens_per_second:g} | **{ratio(cells, who, model, concurrency):.2f}**"
            for c, who in zip(theirs, WHO[1:], strict=True)
        )
        lines.append(f"| {model} | {concurrency} | {ours.tokens_per_second:g} | {numbers} |")
    return lines


def table(cells: Sequence[Cell]) -> list[str]:
    """Markdown rows."""
    lines = [
        "",
        "| | in flight | requests | tokens/s | first token p50 | p99 | whole p50 | p99 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for c in sorted(cells, key=lambda c: (c.concurrency, -c.tokens_per_second)):
        first = f"{c.first_p50:.3f} | {c.first_p99:.3f}" if c.first_p50 else "– | –"
        lines.append(
            f"| {c.who} | {c.concurrency} | {c.requests} | {c.tokens_per_second:g} | {first} | {c.p50:.3f} | "
            f"{c.p99:.3f} |"
        )
    return lines


def kept(models: Sequence[Model]) -> Runs:
    """What earlier runs measured of other models than these."""
    path = DOCS / "text-cpu.json"
    data = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return {
        name: (run["run"], [Cell(**row) for row in run["cells"]])
        for name, run in data.items()
        if name in set(MODELS) - {model.name for model in models}
    }


def report(runs: Runs) -> None:
    """Markdown, JSON and a plot."""
    DOCS.mkdir(parents=True, exist_ok=True)
    runs = {name: runs[name] for name in MODELS if name in runs}
    data = {
        name: {"run": run, "cells": [dataclasses.asdict(cell) for cell in cells]}
        for name, (run, cells) in runs.items()
    }
    (DOCS / "text-cpu.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    cells = [cell for _, own in runs.values() for cell in own]
    lines = [
        "# T5, BART and GPT-2 on a CPU",
        "",
        "`python -m scripts.benchmarks.text` (part of `make bench`), all that is compared in one run: "
        + "; ".join(f"{name} {run}" for name, (run, _) in runs.items())
        + ".",
        "Random weights of the shapes of flan-t5-small, bart-base and gpt2-medium, the same for all; "
        "greedy; all cores for each. Conch computes in the",
        "precision that the CPU multiplies natively (bf16 here).",
        "",
        "Random weights have no words: everybody reads ids and makes ids. Conch is asked at its "
        "tritonserver, `tensorrt_llm` over HTTP and",
        '`tensorrt_llm_stream` ("streamed") over gRPC, without gateway and tokenizer; the client shares its '
        "cores. "
        "The peers are called in their own",
        f"process. Prompts have {min(PROMPTS)} to {max(PROMPTS)} ids, answers {min(LONG)} to {max(LONG)} "
        f"(gpt2-medium: {min(SHORT)} to {max(SHORT)}), mixed; ends are banned, so that",
        "each makes exactly what is wanted. With CTranslate2 a row leaves its batch when it has made its "
        "tokens; transformers works until the longest row",
        "has. A batch begins when all its requests are there, and counts as one call: its latency is that "
        "of all its requests.",
        "",
        "| goal | wanted | reached |",
        "|---|---|---|",
        *(f"| {name} | {wanted:g} | **{reached:.2f}** |" for name, wanted, reached in goals(cells)),
        "",
        "## Tokens per second",
        "",
        "A peer's best: the fastest of its rows below with at most so many requests in flight, whatever "
        "precision and way.",
        *ratios(cells),
    ]
    for model in dict.fromkeys(cell.model for cell in cells):
        lines += ["", f"## {model}", "", "Seconds.", *table([cell for cell in cells if cell.model == model])]
    lines += [
        "",
        "Runs are short: differences of a few per cent are noise.",
        "",
        "![tokens per second](text-cpu.png)",
        "",
    ]
    (DOCS / "text-cpu.md").write_text("\n".join(lines), "utf-8")
    plot(cells)


def plot(cells: Sequence[Cell]) -> None:
    """Tokens per second, one panel for each shape."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(cell.model for cell in cells))
    figure = Figure(figsize=(16, 6), layout="constrained")
    for panel, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        rows = sorted((c for c in cells if c.model == name), key=lambda c: c.tokens_per_second)
        labels, colours = (
            [f"{c.who} × {c.concurrency}" for c in rows],
            ["#2a7" if c.who.startswith("Conch") else "#999" for c in rows],
        )
        panel.barh(labels, [c.tokens_per_second for c in rows], color=colours)
        panel.set(title=name, xlabel="tokens per second")
        panel.tick_params(axis="y", labelsize=7)
    figure.savefig(DOCS / "text-cpu.png", dpi=110)


def everybody(model: Model) -> list[Cell]:
    """Conch, then each peer."""
    rows = [
        row
        for name in PEERS
        for row in peer("scripts.benchmarks.text", "--peer", name, "--models", model.name)
    ]
    return conch(model) + [Cell(**row) for row in rows]


def main() -> None:
    """Measure everybody, or one peer in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments = parser.parse_args()
    models = [MODELS[name] for name in arguments.models]
    if arguments.peer:
        for model in models:
            PEERS[arguments.peer](model)
        return
    runs = kept(models)
    for model in models:
        run = (
            f"on {machine()}, {time.strftime('%Y-%m-%d')}, load average when it began "
            f"{os.getloadavg()[0]:.1f}"
        )
        runs[model.name] = (run, everybody(model))
        report(runs)  # a run that is cut off leaves what it has
    for name, wanted, reached in goals([cell for _, own in runs.values() for cell in own]):
        print(f"{name}: {wanted:g}, reached {reached:.2f}")


if __name__ == "__main__":
    main()
