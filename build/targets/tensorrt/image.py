"""NVIDIA's plain image of Triton: trtexec, and what it says of itself."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ...toolchain import ToolchainError, installed
from ..nvidia.image import NvidiaImage
from ..nvidia.options import help_of

MAJOR = 10  # TensorRT's interfaces that this was written for; image 25.07-py3 has 10.11
BANNER = re.compile(r"\[TensorRT v(\d+)\] \[b(\d+)\]")  # samples/common/logging.h, `defineTest`
EXPORTERS = ("torch", "transformers", "onnx")  # they shape a plan; a server has none of them


class Image(NvidiaImage):
    """The image with trtexec."""

    toolchain = "tensorrt"

    @property
    def trtexec(self) -> Path:
        """What makes plans."""
        return self.root / "usr/src/tensorrt/bin/trtexec"

    def tools(self) -> dict[str, str]:
        """The Python that runs, whose environment has torch and onnx, and trtexec."""
        return {"python": sys.executable, "trtexec": str(self.trtexec)}

    def help(self) -> str | None:
        """What trtexec says to --help, its version first; None if it does not run."""
        return help_of([str(self.trtexec)], self.search_path)

    def versions(self) -> dict[str, str]:
        """TensorRT's, as trtexec was built with, and those of the exporters that are here.

        Raises:
            ToolchainError: trtexec does not run, or does not say its version.
        """
        found = BANNER.search(self.help() or "")
        if not found:
            raise ToolchainError(
                f"{self.trtexec} does not run or does not say its version; run this in Conch's tensorrt "
                "image (docs/tensorrt-llm/encoders.md), or use TARGET=openvino"
            )
        number = int(found[1])  # NvInferVersion.h: 10000 × major + 100 × minor + patch
        version = f"{number // 10000}.{number // 100 % 100}.{number % 100}.{found[2]}"
        return {"tensorrt": version, **installed(EXPORTERS)}
