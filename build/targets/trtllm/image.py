"""NVIDIA's image with TensorRT-LLM: its Python, its tools, its template, its versions."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from ...toolchain import ToolchainError
from ..nvidia.image import NvidiaImage

PIN = {"tensorrt_llm": "0.20.0"}  # what docker/server.Dockerfile's image holds
IMAGE_PACKAGES = ("tensorrt_llm", "tensorrt", "torch", "transformers")
# Tools by the names that family files use: places below the image's examples, the newest first (TensorRT-LLM
# moved them in 0.20.0).
SCRIPTS = {
    "whisper_converter": ("models/core/whisper/convert_checkpoint.py", "whisper/convert_checkpoint.py"),
    "distil_converter": (
        "models/core/whisper/distil_whisper/convert_from_distil_whisper.py",
        "whisper/distil_whisper/convert_from_distil_whisper.py",
    ),
    "enc_dec_converter": ("models/core/enc_dec/convert_checkpoint.py", "enc_dec/convert_checkpoint.py"),
    "opt_converter": ("models/contrib/opt/convert_checkpoint.py", "opt/convert_checkpoint.py"),
    "llama_converter": ("models/core/llama/convert_checkpoint.py", "llama/convert_checkpoint.py"),
    "gpt_converter": ("models/core/gpt/convert_checkpoint.py", "gpt/convert_checkpoint.py"),
    "quantizer": ("quantization/quantize.py",),
    "vision_builder": (
        "models/core/multimodal/build_multimodal_engine.py",
        "multimodal/build_multimodal_engine.py",
    ),
}


class Image(NvidiaImage):
    """The image with TensorRT-LLM."""

    toolchain = "tensorrt_llm"

    @property
    def python(self) -> Path:
        """The image's own Python: the one that TensorRT-LLM is installed for."""
        return self.root / "usr/bin/python3"

    @property
    def template(self) -> Path:
        """The engine model's config.pbtxt with its ${placeholders}."""
        return self.root / "app/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt"

    def tools(self) -> dict[str, str]:
        """Path of each tool by name, in the layout that is there; where none is, the newest, which a check
        will not find.
        """
        examples = self.root / "app/examples"
        found = {
            name: next((examples / path for path in paths if (examples / path).exists()), examples / paths[0])
            for name, paths in SCRIPTS.items()
        }
        built = shutil.which("trtllm-build", path=self.search_path) or "trtllm-build"
        return {
            "python": str(self.python),
            "trtllm_build": built,
            "half_blip2": str(Path(__file__).with_name("half_blip2.py")),
            **{name: str(path) for name, path in found.items()},
        }

    def versions(self) -> dict[str, str]:
        """Versions of the packages that shape an engine.

        Raises:
            ToolchainError: its Python does not run, or TensorRT-LLM is not among them.
        """
        ask = (
            "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in "
            "m.distributions() if d.name}))"
        )
        try:
            done = subprocess.run(
                [self.python, "-c", ask], capture_output=True, text=True, check=True, timeout=120
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ToolchainError(
                f"{self.python} cannot be asked for TensorRT-LLM's version ({error}); run this in Conch's "
                "trtllm image, or use TARGET=openvino"
            ) from error
        installed = {
            name.lower().replace("-", "_"): version for name, version in json.loads(done.stdout).items()
        }
        found = {name: installed[name] for name in IMAGE_PACKAGES if name in installed}
        if "tensorrt_llm" not in found:
            raise ToolchainError(
                f"{self.python} has no TensorRT-LLM; run this in Conch's trtllm image, or use TARGET=openvino"
            )
        return found
