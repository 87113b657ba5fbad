"""List GPUs with nvidia-smi and assign them to instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .driver import output

FIELDS = "index,name,compute_cap,memory.total"


@dataclass(frozen=True)
class Gpu:
    """One row of nvidia-smi. `memory` is in MiB; None where GPU and host share memory and nvidia-smi prints
    [N/A].
    """

    index: int
    name: str
    compute_capability: str
    memory: int | None

    def __str__(self) -> str:
        memory = "of unknown memory" if self.memory is None else f"{self.memory} MiB each"
        return f"{self.name}, {memory}"


def gpus(devices: str = "") -> list[Gpu]:
    """List the GPUs that nvidia-smi shows, or those of `devices` ("0,1", as in CUDA_VISIBLE_DEVICES); empty
    without nvidia-smi.
    """
    chosen = ["-i", devices] if devices else []
    query = (f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits", *chosen)
    rows = output("nvidia-smi", *query).splitlines()
    cells = [[cell.strip() for cell in row.split(",")] for row in rows if row.strip()]
    return [
        Gpu(int(index), name, capability, int(memory) if memory.isdigit() else None)
        for index, name, capability, memory in cells
    ]


def apart(environment: Mapping[str, str]) -> bool:
    """Tell whether HOSTS=several: each instance has its own CPUs and GPUs, on another host or assigned by an
    orchestrator, so device numbers of different instances are unrelated.
    """
    return environment.get("HOSTS") == "several"


def assigned(count: int, environment: Mapping[str, str]) -> list[str]:
    """Return each instance's GPUs in the form of CUDA_VISIBLE_DEVICES: TRITON_0_GPUS and so on, by default
    GPU i for instance i. Where instances have devices of their own, HOST_GPUS counts for all.
    """
    if apart(environment):
        return [environment.get("HOST_GPUS") or "0"] * count
    return [environment.get(f"TRITON_{i}_GPUS") or str(i) for i in range(count)]
