"""NVIDIA's image with TensorRT-LLM: its tools and its template."""

from __future__ import annotations

import shutil
from pathlib import Path

from conch.nvidia_images import TensorRtLlmImage

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


class TrtLlmBuilderImage(TensorRtLlmImage):
    """The image that has TensorRT-LLM, for a builder."""

    @property
    def template(self) -> Path:
        """Read the engine model's config.pbtxt with its ${placeholders}."""
        return self.root / "app/all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt"

    def tools(self) -> dict[str, str]:
        """Return each tool's path by name, in the layout that exists; if none does, in the newest, which a
        check will report as missing.
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
