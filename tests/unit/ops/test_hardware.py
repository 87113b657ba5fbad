"""What `make up` proposes for a machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ops import compose as stack
from ops.hardware import (
    Gpu,
    Line,
    check_profiles,
    gpus,
    instances,
    links,
    pair_up,
    parse_topology,
    propose,
    this_machine,
)

TOPOLOGY = """\
\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tSYS\tNV4\tSYS\t0-15\t0\t\tN/A
GPU1\tSYS\t X \tSYS\tNV4\t0-15\t0\t\tN/A
GPU2\tNV4\tSYS\t X \tSYS\t16-31\t1\t\tN/A
GPU3\tSYS\tNV4\tSYS\t X \t16-31\t1\t\tN/A

Legend:
  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
FOUR = [Gpu(i, "NVIDIA A100-SXM4-80GB", "8.0", 81920) for i in range(4)]


def values(lines: list[Line]) -> dict[str, str]:
    return {line.name: line.value for line in lines}


def test_pairs_follow_nvlink() -> None:
    """GPUs that NVLink joins serve together; what is left is paired in order."""
    assert pair_up(4, {(0, 2), (1, 3)}) == [(0, 2), (1, 3)]
    assert pair_up(5, set()) == [(0, 1), (2, 3)]


@pytest.mark.parametrize(
    ("cards", "tp_size", "sets"),
    [
        (FOUR[:1], 1, ["0"]),
        (FOUR, 2, ["0,2", "1,3"]),
        ([Gpu(i, "H100", "9.0", 81559) for i in range(8)], 1, ["0", "1", "2", "3"]),
    ],
    ids=["one", "pairs", "eight"],
)
def test_instances_for_gpus(cards: list[Gpu], tp_size: int, sets: list[str]) -> None:
    """One for each GPU or pair that NVLink joins, four at most; one alone needs no profile."""
    several, count = len(sets) > 1, str(len(sets))
    assert values(propose(cards, parse_topology(TOPOLOGY), 32, tp_size)) == {
        "TARGET": "torch",
        "INSTANCES": count,
        **({"TP_SIZE": "2"} if tp_size == 2 else {}),
        **({"COMPOSE_PROFILES": f"instances-{count}"} if several else {}),
        **{f"TRITON_{i}_GPUS": own for i, own in enumerate(sets)},
    }


def test_no_gpu_is_a_cpu_stack() -> None:
    """OpenVINO, two instances; every line has its reason."""
    lines = propose([], set(), 2)
    assert values(lines)["TARGET"] == "openvino"
    assert all(line.reason and str(line).startswith("# ") for line in lines)


def test_impossible_parallelism_is_refused() -> None:
    """A pair needs two GPUs; three ways are not offered."""
    with pytest.raises(ValueError, match="needs two GPUs"):
        propose(FOUR[:1], set(), 8, tp_size=2)
    with pytest.raises(ValueError, match="choose 1 or 2"):
        propose(FOUR, set(), 8, tp_size=3)


@pytest.mark.parametrize("given", ["0", "5", "two", "-1"])
def test_there_are_four_services(given: str) -> None:
    with pytest.raises(ValueError, match="1 to 4"):
        instances({"INSTANCES": given})
    assert instances({}) == 1


@pytest.mark.parametrize(
    ("count", "profiles", "says"),
    [
        ("2", "", "COMPOSE_PROFILES= starts 1 tritonserver; set COMPOSE_PROFILES=instances-2 "),
        ("2", "gpu", "set COMPOSE_PROFILES=instances-2,gpu "),
        ("2", "instances-3,gpu", "starts 3 tritonservers; set COMPOSE_PROFILES=instances-2,gpu "),
        ("1", "instances-2", "set COMPOSE_PROFILES= "),
    ],
)
def test_as_many_tritonservers_as_planned(count: str, profiles: str, says: str) -> None:
    """Compose starts them by profile; the builder, which runs first, compares."""
    with pytest.raises(ValueError, match=re.escape(says)):
        check_profiles({"INSTANCES": count, "COMPOSE_PROFILES": profiles})


@pytest.mark.parametrize(
    "environment",
    [
        {"INSTANCES": "2", "COMPOSE_PROFILES": "gpu,instances-2"},
        {"COMPOSE_PROFILES": "tensorrt"},
        {"INSTANCES": "2"},
        {"INSTANCES": "9", "COMPOSE_PROFILES": "", "HOSTS": "several"},
    ],
)
def test_profiles_that_fit(environment: dict[str, str]) -> None:
    """Without COMPOSE_PROFILES it is not Compose that starts them, nor on several hosts."""
    check_profiles(environment)


def test_what_was_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`make up NAME=…` writes it into .env, so that `docker compose up` finds it there; a token is
    not shown.
    """
    for name in stack.documented():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(stack, "ENV", tmp_path / ".env")
    for name, value in {"INSTANCES": "3", "API_KEYS_FILE": "./keys", "HF_TOKEN": "secret"}.items():
        monkeypatch.setenv(name, value)
    stack.write_env([Line("INSTANCES", "1", "one GPU"), Line("TARGET", "trtllm", "there are GPUs")])
    rows = [
        line for line in (tmp_path / ".env").read_text().splitlines() if line and not line.startswith("#")
    ]
    assert rows == ["TARGET=trtllm", "INSTANCES=3", "API_KEYS_FILE=./keys", "COMPOSE_PROFILES=instances-3"]


def test_memory_and_links_may_be_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that shares the machine's memory has none of its own to tell, and no matrix of links: a proposal
    all the same.
    """
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        '#!/bin/sh\n[ "$1" = topo ] && exit 1\n'
        'printf "0, NVIDIA GB10, 12.1, [N/A]\\n1, NVIDIA GB10, 12.1, [N/A]\\n"\n'
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert (gpus(), links(2)) == (
        [Gpu(0, "NVIDIA GB10", "12.1", None), Gpu(1, "NVIDIA GB10", "12.1", None)],
        set(),
    )
    assert this_machine("torch")[0].reason == "2 × NVIDIA GB10, of unknown memory: PyTorch engines"
