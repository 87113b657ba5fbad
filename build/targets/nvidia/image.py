"""One of NVIDIA's images, whose tools make engines."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from conch.gpus import gpus

from ...toolchain import Identity


@dataclass(frozen=True)
class NvidiaImage(ABC):
    """The image, or a stand-in for it, whose file system begins at `root`. `toolchain`: what it is called in
    manifests.
    """

    root: Path
    toolchain: ClassVar[str]

    @classmethod
    def from_environment(cls) -> Self:
        """The one that this runs in; CONCH_IMAGE_ROOT says where a stand-in lies."""
        return cls(Path(os.environ.get("CONCH_IMAGE_ROOT") or "/"))

    @abstractmethod
    def tools(self) -> Mapping[str, str]:
        """Paths by the names that steps use."""

    @abstractmethod
    def versions(self) -> Mapping[str, str]:
        """Versions of the packages that shape an engine.

        Raises:
            ToolchainError: they cannot be asked.
        """

    @property
    def search_path(self) -> str:
        """PATH for its tools: its own folders first, and not those of this virtual environment."""
        own = str(Path(sys.executable).parent)
        kept = [part for part in os.environ.get("PATH", "").split(os.pathsep) if part and part != own]
        return os.pathsep.join([str(self.root / "usr/local/bin"), str(self.root / "usr/bin"), *kept])

    def environment(self, devices: str) -> dict[str, str]:
        """For steps: its own PATH, and the GPUs, numbered as nvidia-smi does."""
        seen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": devices} if devices else {}
        return {"PATH": self.search_path, **seen}

    def identity(self, devices: str = "") -> Identity:
        """Its stamp, with the first GPU of `devices`.

        Raises:
            ToolchainError: see `versions`.
        """
        mark = self.root / "etc/conch-toolchain"  # stand-ins say what they are
        # A container cannot ask for its own digest: NVIDIA's build number tells builds of one tag apart, and
        # the name holds the digest where it is given.
        base = os.environ.get("CONCH_BASE_IMAGE", "")
        build = os.environ.get("NVIDIA_BUILD_ID", "")
        gpu = next(iter(gpus(devices)), None)
        return Identity(
            mark.read_text("utf-8").strip() if mark.exists() else self.toolchain,
            self.versions(),
            {"name": base, "digest": base.partition("@")[2], "build": build},
            {"name": gpu.name, "compute_capability": gpu.compute_capability} if gpu else {},
        )
