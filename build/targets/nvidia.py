"""What targets share whose tools lie in one of NVIDIA's images: where its file system begins, what it and its
GPU are called, and whether a command line is one that a tool takes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from conch.gpus import gpus

from ..toolchain import Identity

MINUTES = 10


def image_root() -> Path:
    """CONCH_IMAGE_ROOT says where a stand-in lies; the file system's own root otherwise."""
    return Path(os.environ.get("CONCH_IMAGE_ROOT") or "/")


def search_path(root: Path) -> str:
    """PATH for an image's tools: its own folders first, and not those of this virtual environment."""
    own = str(Path(sys.executable).parent)
    kept = [part for part in os.environ.get("PATH", "").split(os.pathsep) if part and part != own]
    return os.pathsep.join([str(root / "usr/local/bin"), str(root / "usr/bin"), *kept])


def environment(root: Path, devices: str) -> dict[str, str]:
    """For steps: the image's own PATH, and the GPUs, numbered as nvidia-smi does."""
    seen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": devices} if devices else {}
    return {"PATH": search_path(root), **seen}


def stamped(root: Path, toolchain: str, versions: Mapping[str, str], devices: str) -> Identity:
    """The stamp of an image, with the first GPU of `devices`."""
    mark = root / "etc/conch-toolchain"  # stand-ins say what they are
    # A container cannot ask for its own digest: NVIDIA's build number tells builds of one tag apart, and the
    # name holds the digest where it is given.
    base = os.environ.get("CONCH_BASE_IMAGE", "")
    image = {"name": base, "digest": base.partition("@")[2], "build": os.environ.get("NVIDIA_BUILD_ID", "")}
    gpu = next(iter(gpus(devices)), None)
    return Identity(
        mark.read_text("utf-8").strip() if mark.exists() else toolchain,
        versions,
        image,
        {"name": gpu.name, "compute_capability": gpu.compute_capability} if gpu else {},
    )


def help_of(tool: Sequence[str], path: str) -> str | None:
    """What a tool says to --help; None if it cannot."""
    environment = {**os.environ, "PATH": path, "COLUMNS": "200"}
    try:
        done = subprocess.run(
            [*tool, "--help"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60 * MINUTES,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def misfits(arguments: Sequence[str], text: str) -> list[str]:
    """Options of a command line that a --help text does not list, and values outside the choices that it
    lists.
    """
    found = []
    for i, part in enumerate(arguments):
        option, _, inline = part.partition("=")
        if not option.startswith("--"):
            continue
        if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text):
            found.append(f"it has no option {option}")
            continue
        value = inline or (
            arguments[i + 1] if i + 1 < len(arguments) and not arguments[i + 1].startswith("--") else ""
        )
        choices = re.search(rf"(?<![\w-]){re.escape(option)}[ =]\[?\{{([^}}]*)\}}", text)
        allowed = [choice.strip() for choice in choices[1].split(",")] if choices else []
        # A choice may be shown as a member of its class: KVCacheType.DISABLED.
        accepted = {form.lower() for choice in allowed for form in (choice, choice.rpartition(".")[2])}
        if value and allowed and value.lower() not in accepted:
            found.append(f"{option} {value} is not one of its choices {', '.join(allowed)}")
    return found
