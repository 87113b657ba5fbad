"""OpenVINO on an x86-64 CPU."""

from __future__ import annotations

from ..plain import Plain


class OpenVino(Plain):
    """Exports with torch, serves without it."""

    name = "openvino"
    code = (
        "build/targets/openvino",
        "build/checkpoints",
        "build/pictures",
        "build/assets",
        "serving/architectures",
    )


TARGET = OpenVino()
