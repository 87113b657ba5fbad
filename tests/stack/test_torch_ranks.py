"""The torch engine across two processes an instance, each on a GPU of its own, or on the CPU where there is
none: the same answers as from one, and no instance without all of its ranks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from conch.gpus import gpus
from conch.names import ENGINE, RANK_MODULE
from ops.ranks import descendants
from tests.ports import first_port

from .clients import Load
from .conftest import Stack, build_engines, portable, started, until
from .processes import stub, tritonserver
from .test_torch import said

PORT = first_port("torch-ranks")
CLIENTS = 64 if gpus() else 4  # as many as an instance has rows


def pairs() -> dict[str, str]:
    """The first GPUs for one instance, the last for the other; the same ones if there are two."""
    found = [str(gpu.index) for gpu in gpus()]
    return {f"TRITON_{i}_GPUS": ",".join(own) for i, own in enumerate((found[:2], found[-2:])) if own}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home = tmp_path_factory.mktemp("ranks")
    environment = portable(home, PORT, "mini-gpt2", 2) | pairs()
    environment |= {"TARGET": "torch", "TP_SIZE": "2", "ENGINES_DIR": str(home / "engines")}
    build_engines(environment)
    with started(environment, tidy=False) as stack:
        yield stack


def ranks(stack: Stack, index: int) -> list[int]:
    """Process ids of an instance's further ranks."""
    found = descendants(stub(stack, index, ENGINE))
    return [pid for pid in found if RANK_MODULE in Path(f"/proc/{pid}/cmdline").read_text().split("\0")]


def test_an_instance_is_two_processes(stack: Stack) -> None:
    """Each of the pool."""
    assert [len(ranks(stack, i)) for i in range(2)] == [1, 1]


def test_texts_are_the_same_from_both(stack: Stack) -> None:
    """Greedy, with log probabilities, and drawn by a seed."""
    texts = [said(stack, temperature=0).json()["choices"][0]["text"] for _ in range(4)]
    assert len(set(texts)) == 1
    assert len(texts[0].split()) > 3
    scored = said(stack, temperature=0, logprobs=1).json()["choices"][0]
    assert scored["text"] == texts[0]
    assert all(number <= 0 for number in scored["logprobs"]["token_logprobs"])
    drawn = [said(stack, temperature=1.0, seed=5).json()["choices"][0]["text"] for _ in range(4)]
    assert len(set(drawn)) == 1


def asked(stack: Stack) -> None:
    """One text that is not streamed."""
    answer = said(stack, temperature=0)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"]


@pytest.mark.parametrize("whole", [False, True], ids=["rank", "server"])
def test_a_killed_rank_or_server_ends_both_and_loses_no_request(stack: Stack, whole: bool) -> None:
    """At full load; the other instance answers meanwhile, and the first comes back with a new rank."""
    (victim,) = ranks(stack, 0)

    def back() -> bool:
        found = ranks(stack, 0)
        return bool(found) and victim not in found

    with Load(lambda: asked(stack), CLIENTS) as load:
        load.wait_for(4 * CLIENTS, 120)
        os.kill(tritonserver(stack, 0) if whole else victim, signal.SIGKILL)
        load.wait_for(load.done + 8 * CLIENTS, 240)
        until("a new rank", back, 120, ValueError, OSError)  # there is no server, or no engine in it, yet
    assert load.failed == []
    assert not Path(f"/proc/{victim}").exists()
    assert whole or "a Python stub or a rank has died" in stack.log("triton-0")
