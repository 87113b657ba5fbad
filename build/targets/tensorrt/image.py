"""NVIDIA's plain image of Triton, for a builder."""

from __future__ import annotations

import sys

from conch.nvidia_images import TensorRtImage

from ..nvidia.target import BuilderImage

MAJOR = 10  # TensorRT's interfaces that this was written for; image 25.07-py3 has 10.11


class TrtexecImage(TensorRtImage, BuilderImage):
    """The image that has trtexec."""

    def tools(self) -> dict[str, str]:
        """Return the running Python, whose environment has torch and onnx, and trtexec."""
        return {"python": sys.executable, "trtexec": str(self.trtexec)}
