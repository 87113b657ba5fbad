"""OpenVINO on an x86-64 CPU."""

from __future__ import annotations

from .. import EXPORTERS, Target


class OpenVino(Target):
    """Exports with torch, serves without it."""

    name = "openvino"
    code = ("build/targets/openvino", "build/assets", *EXPORTERS)


TARGET = OpenVino()
