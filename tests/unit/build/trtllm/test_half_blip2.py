"""What stands between the builder and upstream's script for BLIP-2's pictures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from build.catalog import ROOT
from build.targets.trtllm.image import TrtLlmBuilderImage

ROWS = {"text_config": {"architectures": ["OPTForCausalLM"], "hidden_size": 8}}


def run(
    image: TrtLlmBuilderImage, source: dict[str, Any], folder: Path, *launcher: str
) -> subprocess.CompletedProcess[str]:
    """Upstream's script for a config.json."""
    (folder / "config.json").write_text(json.dumps(source))
    tools, options = image.tools(), ("--model_type", "blip2", "--model_path", str(folder))
    argv = [tools["python"], *(tools[name] for name in (*launcher, "vision_builder")), *options]
    output = ("--output_dir", str(folder / "visual"))
    return subprocess.run([*argv, *output], capture_output=True, text=True, check=False)


def test_the_q_former_is_in_half_precision(image: TrtLlmBuilderImage, tmp_path: Path) -> None:
    """Without the launcher upstream's script fails, as it does with transformers 4.51."""
    alone = run(image, ROWS, tmp_path)
    assert "mat1 and mat2 must have the same dtype" in alone.stderr
    done = run(image, ROWS, tmp_path, "half_blip2")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "visual/config.json").read_text())["builder_config"]
    assert (config["model_type"], config["precision"]) == ("blip2-opt", "float16")


def test_the_language_model_is_named(image: TrtLlmBuilderImage, tmp_path: Path) -> None:
    """Upstream asks for the first of its architectures; the miniature says it."""
    unnamed = {"text_config": {"hidden_size": 8}}
    assert "architectures" in run(image, unnamed, tmp_path, "half_blip2").stderr
    mini = json.loads((ROOT / "miniatures/blip2/config.json").read_text())
    assert run(image, mini, tmp_path, "half_blip2").returncode == 0
