"""Detect this machine's hardware, and propose a .env for it, each line with its reason."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from build.targets import DEFAULT_IN_DOCKER as GPU
from build.targets import DEFAULT_WITHOUT_DOCKER as CPU
from conch.driver import Needs, driver, driver_findings, output, toolkit, toolkit_findings
from conch.gpus import Gpu, apart, gpus

MOST = 4  # services in compose.yaml
PROFILE = re.compile(r"instances-(\d+)")


def instances(environment: Mapping[str, str]) -> int:
    """Read INSTANCES.

    Raises:
        ValueError: not a number; on one host, more than compose.yaml has services.
    """
    given = environment.get("INSTANCES") or "1"
    if apart(environment):
        if not (given.isdecimal() and int(given) >= 1):
            raise ValueError(f"INSTANCES={given!r} is not a number of tritonservers; write 1 or more")
        return int(given)
    if not (given.isdecimal() and 1 <= int(given) <= MOST):
        raise ValueError(f"INSTANCES={given!r}; compose.yaml has tritonservers for 1 to {MOST}")
    return int(given)


def profiles(count: int, given: str = "") -> list[str]:
    """Return Compose's profiles for a number of tritonservers, and those of `given` for other services, such
    as gpu.
    """
    others = [name for name in given.split(",") if name and not PROFILE.fullmatch(name)]
    return [*([f"instances-{count}"] if count > 1 else []), *others]


def check_profiles(environment: Mapping[str, str]) -> None:
    """Check that Compose starts as many tritonservers as INSTANCES plans.

    Raises:
        ValueError: COMPOSE_PROFILES, which compose.yaml hands to the builder, names another number.
    """
    given = environment.get("COMPOSE_PROFILES")
    if given is None or apart(environment):
        return
    count = instances(environment)
    started = max([int(number) for number in PROFILE.findall(given)], default=1)
    if started != count:
        wanted, servers = ",".join(profiles(count, given)), "tritonservers" if started > 1 else "tritonserver"
        raise ValueError(
            f"INSTANCES={count}, and COMPOSE_PROFILES={given} starts {started} {servers}; set "
            f"COMPOSE_PROFILES={wanted} (instead of --profile), or another INSTANCES"
        )


@dataclass(frozen=True)
class Line:
    """One line of .env with its reason."""

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"# {self.reason}\n{self.name}={self.value}\n"


def obstacles(needs: Needs) -> list[str]:
    """Return why containers of an image would not run here, one sentence each: the driver, the container
    toolkit.
    """
    version = driver()
    names = [gpu.name for gpu in gpus()]
    return (
        [*driver_findings(version, names, needs), *toolkit_findings(version, toolkit(), needs)]
        if version
        else []
    )


def links(count: int) -> set[tuple[int, int]]:
    """Return pairs of GPUs joined by NVLink; empty where nvidia-smi cannot tell."""
    return parse_topology(output("nvidia-smi", "topo", "-m")) if count > 1 else set()


def parse_topology(text: str) -> set[tuple[int, int]]:
    """Return pairs (i, j), i < j, whose cell in the matrix of `nvidia-smi topo -m` is NV1, NV2, …"""
    pairs = set()
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        cells = line.split()
        if cells and re.fullmatch(r"GPU\d+", cells[0]):
            i = int(cells[0][3:])
            pairs |= {(i, j) for j, cell in enumerate(cells[1:]) if j > i and re.fullmatch(r"NV\d+", cell)}
    return pairs


def pair_up(count: int, linked: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return disjoint pairs, NVLink's first, the rest in order."""
    free, pairs = list(range(count)), list[tuple[int, int]]()
    while len(free) > 1:
        first = free[0]
        second = next((j for j in free[1:] if (first, j) in linked), free[1])
        pairs.append((first, second))
        free = [i for i in free if i not in (first, second)]
    return pairs


def propose(found: Sequence[Gpu], linked: set[tuple[int, int]], cpus: int, tp_size: int = 1) -> list[Line]:
    """Propose the lines of .env for this machine.

    Raises:
        ValueError: `tp_size` is neither 1 nor 2, or asks for more GPUs than there are.
    """
    if not found:
        count = min(2, cpus)
        return [
            Line("TARGET", CPU, "no GPU found or requested: OpenVINO engines on the CPU"),
            *_instances(count, f"{cpus} CPUs, shared out among the instances"),
        ]
    if tp_size not in (1, 2):
        raise ValueError(f"TP_SIZE={tp_size}: instances get one GPU or a pair; choose 1 or 2")
    sets = [(gpu.index,) for gpu in found] if tp_size == 1 else pair_up(len(found), linked)
    if not sets:
        raise ValueError(f"TP_SIZE=2 needs two GPUs, this machine has {len(found)}")
    lines = [Line("TARGET", GPU, f"{len(found)} × {found[0]}: PyTorch engines")]
    lines += [Line("TP_SIZE", "2", "as asked for: each engine spans a pair")] if tp_size > 1 else []
    lines += _instances(
        min(len(sets), MOST),
        f"one instance for each {'GPU' if tp_size == 1 else 'pair of GPUs'}, {MOST} at most",
    )
    for i, own in enumerate(sets[:MOST]):
        how = (
            "NVLink joins them"
            if tuple(own) in linked
            else "no NVLink between them"
            if len(own) > 1
            else found[own[0]].name
        )
        lines.append(Line(f"TRITON_{i}_GPUS", ",".join(map(str, own)), how))
    return lines


def _instances(count: int, reason: str) -> list[Line]:
    switched = (
        Line("COMPOSE_PROFILES", name, "switches triton-1 and further ones on") for name in profiles(count)
    )
    return [Line("INSTANCES", str(count), reason), *switched]


def this_machine(target: str, tp_size: int = 1) -> list[Line]:
    """Return the proposal for this machine; with target openvino its GPUs do not count."""
    found = gpus() if target != CPU else []
    return propose(found, links(len(found)) if found else set(), len(os.sched_getaffinity(0)), tp_size)
