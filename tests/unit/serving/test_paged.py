"""Blocks of the caches of decoder-only models on a CPU, and prompts that begin alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import openvino as ov
import pytest

from serving.engine.collected import Collected
from serving.engine.jobs import Limits
from serving.engine.openvino.attention import SIZE
from serving.engine.openvino.blocks import FEW, Blocks, Cached
from serving.engine.openvino.paged import PagedBatch
from serving.engine.openvino.runtime import OpenVinoRuntime
from serving.engine.runtime import Row
from serving.engine.scheduler import Scheduler

from ..engines import export
from .test_decoders import model_of
from .test_text_engines import VOCABULARY, job, theirs

pytestmark = pytest.mark.slow

Model = tuple[OpenVinoRuntime, Callable[[list[int]], list[int]]]


@pytest.fixture(scope="module", params=["qwen3", "mistral", "gemma2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The engine, and what transformers goes on with; sliding windows and capped scores among them."""
    folder, its = tmp_path_factory.mktemp("engine"), model_of(request.param)
    its.save_pretrained(folder)
    export("openvino", "llama", folder, folder)
    return OpenVinoRuntime(folder, precision="f32"), lambda ids: theirs(its, ids, 1)


@pytest.fixture
def scheduler(model: Model) -> Iterator[Scheduler]:
    found = Scheduler(model[0], Limits(max_rows=4, max_queue=16, prefill_tokens=SIZE))
    found.start()
    yield found
    found.stop()


def ids_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCABULARY, count).tolist()


def answers(scheduler: Scheduler, asked: Sequence[list[int]], runtime: OpenVinoRuntime) -> list[list[int]]:
    listeners = [Collected() for _ in asked]
    for ids, listener in zip(asked, listeners, strict=True):
        scheduler.submit(job(runtime, ids, 1, listener))
    return [list(listener.wait(120)[0].ids) for listener in listeners]


def test_prompts_that_begin_alike(model: Model, scheduler: Scheduler) -> None:
    """A system prompt is read once; what follows it, and a conversation that goes on, gets transformers'
    answer.
    """
    runtime, expected = model
    system = ids_of(1, 2 * SIZE + 5)
    asked = [system + ids_of(seed, 1 + seed) for seed in range(2, 8)]
    first = answers(scheduler, asked[:1], runtime)
    assert isinstance(scheduler.batch, PagedBatch)
    computed, extend = list[int](), scheduler.batch.blocks.extend

    def noted(sequence: Cached, ids: Sequence[int]) -> Sequence[int]:
        piece = extend(sequence, ids)
        computed.append(len(piece))
        return piece

    scheduler.batch.blocks.extend = noted  # type: ignore[method-assign]
    said = first + answers(scheduler, asked[1:], runtime)
    assert said == [expected(ids) for ids in asked]
    assert max(computed) <= SIZE, "no more than the last block of a prompt"
    before = sum(computed)
    goes_on = asked[3] + said[3] + ids_of(9, 3)
    assert answers(scheduler, [goes_on], runtime) == [expected(goes_on)]
    assert sum(computed) - before < len(goes_on), "what was generated is known as well"


def test_a_table_is_not_taken_for_another() -> None:
    """Ids that stand for rows of a prompt table do not tell what was read."""
    blocks = made_blocks()
    ids = ids_of(1, 3 * SIZE)
    for _ in range(2):
        pictured = Cached(key=None)
        assert blocks.extend(pictured, ids) == ids
        blocks.filled(pictured, ids)
        blocks.drop(pictured)
    assert not blocks.known


def made_blocks(kept: int = 64) -> Blocks:
    return Blocks([(ov.Type.f32, [-1, 2, SIZE, 4])] * 2, kept)


def read(blocks: Blocks, ids: Sequence[int]) -> tuple[Cached, int]:
    """Return a sequence that has read these ids, and how many of them were computed."""
    made = Cached()
    computed = blocks.extend(made, ids)
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
    blocks = made_blocks(kept=FEW)
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
    blocks = made_blocks(kept=0)
    one = Cached(key=None)
    blocks.extend(one, ids_of(1, FEW * SIZE))
    for view in blocks.views:
        view.fill(np.nan)
    blocks.drop(one)
    other, _ = read(blocks, [1, 2, 3])
    assert all(not view[other.blocks].any() for view in blocks.views)


def test_idle_caches_give_memory_back(model: Model) -> None:
    """What running texts needed beyond what is kept for later ones."""
    batch = PagedBatch(model[0])
    batch.blocks.kept = FEW
    batch.step([Row(None, tuple(ids_of(seed, 120)), 0, None) for seed in range(6)])
    assert len(batch.blocks.uses) > FEW
    batch.step([Row(None, (5, 6), 0, None)])
    assert len(batch.blocks.uses) == FEW
