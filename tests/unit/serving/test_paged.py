"""Blocks of the caches of decoder-only models on a CPU, and prompts that begin alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import openvino as ov
import pytest
from prometheus_client import Counter

from serving.engine.openvino.attention import SIZE
from serving.engine.openvino.blocks import FEW, Blocks, Cached
from serving.engine.openvino.paged import PagedBatch
from serving.engine.openvino.runtime import OpenVinoRuntime
from serving.engine.runtime import Row
from serving.engine.scheduler import Scheduler

from ..engines import exported, scheduling
from .test_decoders import model_of
from .test_text_engines import VOCABULARY, job, theirs

pytestmark = pytest.mark.slow

Model = tuple[OpenVinoRuntime, Callable[[list[int]], list[int]]]


@pytest.fixture(scope="module", params=["qwen3", "mistral", "gemma2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The engine, and what transformers goes on with; sliding windows and capped scores among them."""
    folder, its = tmp_path_factory.mktemp("engine"), model_of(request.param)
    engine = exported("openvino", "llama", its, folder)
    return OpenVinoRuntime(engine, precision="f32"), lambda ids: theirs(its, ids, 1)


@pytest.fixture
def scheduler(model: Model) -> Iterator[Scheduler]:
    with scheduling(model[0], max_rows=4, max_queue=16, prefill_tokens=SIZE) as found:
        yield found


def ids_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def answers(scheduler: Scheduler, asked: Sequence[list[int]], runtime: OpenVinoRuntime) -> list[list[int]]:
    jobs = [job(runtime, ids) for ids in asked]
    for one in jobs:
        scheduler.submit(one)
    return [list(one.listener.wait(120)[0].ids) for one in jobs]


def test_prompts_that_begin_alike(model: Model, scheduler: Scheduler) -> None:
    """A system prompt is read once; what follows it, and a conversation that goes on, gets transformers'
    answer.
    """
    runtime, expected = model
    system = ids_of(1, 2 * SIZE + 5)
    asked = [system + ids_of(seed, 1 + seed) for seed in range(2, 8)]
    first = answers(scheduler, asked[:1], runtime)
    said = first + answers(scheduler, asked[1:], runtime)
    assert said == [expected(ids) for ids in asked]
    cached = scheduler.metrics.cached
    assert count(cached) == len(asked[1:]) * 2 * SIZE
    prompt, answer = max(zip(asked, said, strict=True), key=lambda pair: len(pair[0] + pair[1]))
    goes_on = prompt + answer + ids_of(9, 3)
    whole = SIZE * (len(prompt + answer[:-1]) // SIZE)
    assert whole > len(prompt), "what was generated is known as well"
    assert answers(scheduler, [goes_on], runtime) == [expected(goes_on)]
    assert count(cached) == len(asked[1:]) * 2 * SIZE + whole


def count(counter: Counter) -> float:
    (family,) = counter.collect()
    return sum(sample.value for sample in family.samples if sample.name.endswith("_total"))


def made_blocks(most: int = 64) -> Blocks:
    return Blocks([(ov.Type.f32, [-1, 2, SIZE, 4])] * 2, most, lambda _number, _cache: None)


def read(blocks: Blocks, ids: Sequence[int]) -> tuple[Cached, int]:
    """Return a sequence that has read these ids, and how many of them were computed."""
    made = Cached()
    computed = blocks.match(made, ids)
    blocks.reserve(made, len(computed))
    blocks.filled(made, computed)
    return made, len(computed)


def test_beams_share_what_is_full_and_copy_the_rest() -> None:
    """So what one writes, the other does not see."""
    blocks = made_blocks()
    one, _ = read(blocks, ids_of(1, SIZE + 3))
    blocks.views[0][one.blocks[1]] = 7
    first, second = blocks.fork([one, one])
    assert first is one
    assert first.blocks[0] == second.blocks[0]
    assert first.blocks[1] != second.blocks[1]
    assert (blocks.views[0][second.blocks[1]] == 7).all()
    blocks.drop(first)
    assert blocks.uses[second.blocks[0]] == 1
    blocks.drop(second)
    assert not any(blocks.uses)


def test_blocks_of_the_oldest_prompts_are_used_again() -> None:
    """From the end of each, since no prompt is found without its beginning; and caches grow for what runs."""
    blocks = made_blocks(most=FEW)
    prompts = [ids_of(seed, 8 * SIZE) for seed in range(3)]
    for ids in prompts[:2]:
        blocks.drop(read(blocks, ids)[0])
    assert not blocks.free
    blocks.drop(read(blocks, ids_of(9, 2 * SIZE))[0])
    assert len(blocks.uses) == FEW
    again, computed = read(blocks, prompts[0])
    assert computed == 2 * SIZE, "the last block is always read; the one before it was needed"
    third, computed = read(blocks, prompts[2])
    assert computed == 8 * SIZE
    kept = [*again.blocks, *third.blocks]
    assert len(set(kept)) == 16
    read(blocks, ids_of(10, 4 * SIZE))
    assert len(blocks.uses) > FEW


def test_a_block_begins_empty() -> None:
    """What another text has left in it may be no number, and zero times that is none either."""
    blocks = made_blocks(most=FEW)
    one = Cached(key=None)
    blocks.reserve(one, FEW * SIZE)
    for view in blocks.views:
        view.fill(np.nan)
    blocks.drop(one)
    other, _ = read(blocks, [1, 2, 3])
    assert all(not view[other.blocks].any() for view in blocks.views)


def test_old_prompts_do_not_grow_the_caches() -> None:
    """Beyond what is kept for them, which is no step of their growth."""
    blocks = made_blocks(most=FEW + 5)
    for seed in range(12):
        blocks.drop(read(blocks, ids_of(seed, 3 * SIZE))[0])
    assert len(blocks.uses) == FEW + 5
    assert read(blocks, ids_of(11, 3 * SIZE))[1] == SIZE


def test_idle_caches_give_memory_back(model: Model) -> None:
    """What running texts needed beyond what is kept; the last prompts are still known."""
    batch, prompts = PagedBatch(model[0]), [tuple(ids_of(seed, 120)) for seed in range(8)]
    batch.blocks.most = FEW
    fresh = [batch.step([Row(None, ids, 0, None)]).logits(0).copy() for ids in prompts]
    batch.step([Row(None, ids, 0, None) for ids in prompts])
    assert len(batch.blocks.uses) > FEW
    batch.step([Row(None, (5, 6), 0, None)])
    assert len(batch.blocks.uses) == FEW
    known = [batch.known(ids) for ids in prompts]
    assert sum(known) >= FEW // 2 * SIZE
    last = max(range(8), key=known.__getitem__)
    read_on = Row(None, prompts[last][known[last] :], known[last], None, before=prompts[last][: known[last]])
    np.testing.assert_allclose(batch.step([read_on]).logits(0), fresh[last], atol=1e-3)
