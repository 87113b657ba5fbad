"""Check that NVIDIA's driver and container toolkit can run the image of a target. Standard library only,
because it runs on hosts, too.

Image 25.07 has CUDA 12.9.1: it needs driver 575.51.03 or later, or on data-centre GPUs one of the long-lived
branches below with the image's forward compatibility libraries (release notes of Triton 25.07, "Driver
Requirements"). Conch's containers are unprivileged and read-only, so the image's own entry point cannot
enable those libraries; the container toolkit does so from 1.17.5 on.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

TOOLKIT = (1, 17, 5)
DATA_CENTRE = re.compile(
    r"\b(A2|A10|A10G|A16|A30|A40|A100|A800|B100|B200|GB200|GH200|H20|H100|H200|H800|L2|L4|L20|L40|L40S|T4|V100)\b"
)


@dataclass(frozen=True)
class Needs:
    """What an image needs: driver `driver` or later, or on data-centre GPUs one of the branches in
    `compatible`, which its forward compatibility libraries support.
    """

    image: str
    driver: tuple[int, ...]
    compatible: tuple[int, ...]

    def __str__(self) -> str:
        """Return the driver's version as NVIDIA writes it."""
        return ".".join(f"{n:02}" for n in self.driver)


TRTLLM = Needs("the image (Triton 25.07, CUDA 12.9.1)", (575, 51, 3), (535, 550, 570))
# Compatibility matrix of triton-inference-server/server, docs/introduction/compatibility.md.
TRTLLM_26 = Needs("the image (Triton 26.07, CUDA 13.1)", (590, 44), (580,))
# CUDA 13 of PyTorch's wheels: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
TORCH = Needs("the image (PyTorch with CUDA 13)", (580, 65, 6), ())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def output(*argv: str) -> str:
    """Return a program's output; empty if it is missing or fails."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def driver() -> str:
    """Return the driver's version from nvidia-smi; empty without one."""
    lines = output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").splitlines()
    return lines[0].strip() if lines else ""


def toolkit() -> str:
    """Return the version of NVIDIA's container toolkit; empty where it is not installed, as inside
    containers.
    """
    found = re.search(r"version (\d+\.\d+\.\d+)", output("nvidia-ctk", "--version"))
    return found[1] if found else ""


def needs_compatibility(version: str, needs: Needs = TRTLLM) -> bool:
    """Tell whether this driver runs the image only through forward compatibility libraries."""
    return bool(version) and _numbers(version) < needs.driver


def driver_findings(version: str, names: Sequence[str], needs: Needs = TRTLLM) -> list[str]:
    """Return why the image cannot run on these GPUs with this driver; empty if it can or nothing is known."""
    if not needs_compatibility(version, needs):
        return []
    others = [name for name in names if not DATA_CENTRE.search(name)]
    if others or not needs.compatible:
        where = f" on {others[0]}" if others else ""
        return [
            f"the driver is {version}, {needs.image} needs {needs}{where}; install a newer driver, or use "
            "TARGET=openvino"
        ]
    if _numbers(version)[0] not in needs.compatible:
        branches = ", ".join(f"R{branch}" for branch in needs.compatible)
        return [
            f"the driver is {version}, {needs.image} needs {needs}, or on data-centre GPUs one of "
            f"{branches}; install a newer driver"
        ]
    return []


def toolkit_findings(version: str, installed: str, needs: Needs = TRTLLM) -> list[str]:
    """Return why containers on this host would not get what they need; empty if they would."""
    if not installed:
        return [
            "NVIDIA's container toolkit is not installed, so containers cannot use GPUs; install "
            "nvidia-container-toolkit 1.17.5 or newer"
        ]
    if needs.compatible and needs_compatibility(version, needs) and _numbers(installed) < TOOLKIT:
        return [
            f"the driver is {version}, which {needs.image} runs on by forward compatibility, and container "
            f"toolkit {installed} does not switch that on; "
            f"install nvidia-container-toolkit 1.17.5 or newer, or driver {needs} or newer"
        ]
    return []
