"""CTranslate2 and transformers, each in a process of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..stage import cores
from .cells import CT2, HF, REQUESTS, BenchModel, BenchRequest, Call, TextCell, Timed, measure


def checkpoint(model: BenchModel) -> Path:
    """Write the random weights in Hugging Face layout, with the bundle's seed."""
    folder = model.folder / "checkpoint"
    if not (folder / "model.safetensors").exists():
        import torch

        from build import checkpoints

        torch.manual_seed(0)
        made = checkpoints.random_model(model.family, model.name)
        made.config.normalize_before = False  # CTranslate2's converter reads it, and the hub's BART has it
        made.save_pretrained(folder)
    return folder


class Numbered:
    """A tokenizer with what CTranslate2's converter needs: `<0>`, `<1>` and so on."""

    def __init__(self, vocabulary: int, end: int) -> None:
        self.vocabulary = vocabulary
        self.bos_token = self.pad_token = "<0>"  # noqa: S105  # no password
        self.eos_token = self.unk_token = f"<{end}>"

    def get_vocab(self) -> dict[str, int]:
        """Return ids by token."""
        return {f"<{i}>": i for i in range(self.vocabulary)}

    def convert_ids_to_tokens(self, token: int) -> str:
        """Return the token of an id."""
        return f"<{token}>"


def converted(model: BenchModel) -> Path:
    """Convert the weights for CTranslate2, in float32; it quantizes when it loads."""
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):  # type: ignore[misc]
        def load_tokenizer(self, _class: Any, path: str, **_: Any) -> Numbered:
            config = json.loads((Path(path) / "config.json").read_text("utf-8"))
            return Numbered(config["vocab_size"], config["eos_token_id"])

    folder = model.folder / "ct2"
    if not (folder / "model.bin").exists():
        Converter(str(checkpoint(model))).convert(str(folder), force=True)
    return folder


def ct2_call(model: BenchModel, precision: str, workers: int) -> Call:
    """Run a batch; finished rows leave it. `workers` batches run concurrently and share the cores."""
    import ctranslate2

    kind = ctranslate2.Generator if model.alone else ctranslate2.Translator
    threads = {"inter_threads": workers, "intra_threads": max(1, cores() // workers)}
    engine = kind(str(converted(model)), "cpu", compute_type=precision, **threads)

    def call(group: Sequence[BenchRequest]) -> list[Timed]:
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

        texts = [[f"<{i}>" for i in request.ids] for request in group]
        longest = max(request.wanted for request in group)
        options: dict[str, Any] = {"callback": token, "asynchronous": True}
        if model.alone:
            options |= {"max_length": longest, "min_length": longest, "include_prompt_in_result": False}
            made = [len(one.result().sequences[0]) for one in engine.generate_batch(texts, **options)]
        else:
            options |= {"max_decoding_length": longest, "min_decoding_length": longest, "beam_size": 1}
            made = [len(one.result().hypotheses[0]) for one in engine.translate_batch(texts, **options)]
        assert made == [request.wanted for request in group], f"{made} tokens were made: unequal work"
        last = time.perf_counter() - begin
        return [(first[i], last) for i in range(len(group))]

    return call


def ctranslate2(model: BenchModel) -> list[TextCell]:
    """Measure both precisions, as static batches and as single requests on as many workers as cores."""
    cells = []
    for precision in ("float32", "int8"):
        whole, apart = ct2_call(model, precision, 1), ct2_call(model, precision, cores())
        for concurrency in REQUESTS:
            batched = f", batches of {concurrency}" if concurrency > 1 else ""
            cells.append(measure(f"{CT2} {precision}{batched}", model, concurrency, whole, concurrency))
            if concurrency == 8:
                cells.append(measure(f"{CT2} {precision}, {cores()} workers", model, concurrency, apart))
    return cells


def transformers_call(model: BenchModel, precision: str) -> Call:
    """Run `generate` on a batch with left padding; a finished row stays until the longest has finished."""
    import torch
    import transformers as library
    from transformers import StoppingCriteria, StoppingCriteriaList

    torch.set_num_threads(cores())
    architecture, dtype = getattr(library, model.architecture), getattr(torch, precision)
    loaded = architecture.from_pretrained(checkpoint(model), dtype=dtype).eval()

    class Clock(StoppingCriteria):  # type: ignore[misc]
        def __init__(self) -> None:
            self.begin, self.first = time.perf_counter(), 0.0

        def __call__(self, ids: Any, _: Any, **__: Any) -> Any:
            self.first = self.first or time.perf_counter() - self.begin
            return torch.zeros(len(ids), dtype=torch.bool)

    def call(group: Sequence[BenchRequest]) -> list[Timed]:
        clock, width = Clock(), max(len(request.ids) for request in group)
        longest = max(request.wanted for request in group)
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


def transformers(model: BenchModel) -> list[TextCell]:
    """Measure both precisions as static batches."""
    cells = []
    for precision in ("float32", "bfloat16"):
        call = transformers_call(model, precision)
        for concurrency in REQUESTS:
            batched = f", batches of {concurrency}" if concurrency > 1 else ""
            cells.append(measure(f"{HF} {precision}{batched}", model, concurrency, call, concurrency))
    return cells


PEERS = {CT2: ctranslate2, HF: transformers}
