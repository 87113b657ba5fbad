"""GPUs as nvidia-smi names them, and which instance uses which."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

FIELDS = "index,name,compute_cap,memory.total"


@dataclass(frozen=True)
class Gpu:
    """One row of nvidia-smi. `memory` in MiB; None where the GPU shares the machine's and it says [N/A]."""

    index: int
    name: str
    compute_capability: str
    memory: int | None

    def __str__(self) -> str:
        memory = "of unknown memory" if self.memory is None else f"{self.memory} MiB each"
        return f"{self.name}, {memory}"


def nvidia_smi(*arguments: str) -> str:
    """What it says.

    Raises:
        OSError, subprocess.CalledProcessError: it is not there, or cannot say.
    """
    return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, check=True).stdout


def gpus(devices: str = "") -> list[Gpu]:
    """The GPUs that nvidia-smi lists, or those of `devices` ("0,1", as CUDA_VISIBLE_DEVICES says); none where
    there is no nvidia-smi.
    """
    if not shutil.which("nvidia-smi"):
        return []
    chosen = ["-i", devices] if devices else []
    try:
        rows = nvidia_smi(f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits", *chosen).splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []
    cells = [[cell.strip() for cell in row.split(",")] for row in rows if row.strip()]
    return [
        Gpu(int(index), name, capability, int(memory) if memory.isdigit() else None)
        for index, name, capability, memory in cells
    ]


def apart(environment: Mapping[str, str]) -> bool:
    """HOSTS=several: each instance has CPUs and GPUs of its own, on another host or because an orchestrator
    gives them out; what number a device has for one says nothing about another's.
    """
    return environment.get("HOSTS") == "several"


def assigned(count: int, environment: Mapping[str, str]) -> list[str]:
    """The GPUs of each instance as CUDA_VISIBLE_DEVICES says it: TRITON_0_GPUS and so on; instance i is on
    GPU i by default. Where instances have devices of their own, all have the same: HOST_GPUS.
    """
    if apart(environment):
        return [environment.get("HOST_GPUS") or "0"] * count
    return [environment.get(f"TRITON_{i}_GPUS") or str(i) for i in range(count)]
