"""Run a script of TensorRT-LLM with a BLIP-2 that is entirely FP16: `half_blip2.py SCRIPT OPTION …`.

transformers 4.51 keeps the Q-Former in float32 (`_keep_in_fp32_modules`) and casts its output before the
projection; build_blip2_engine (tensorrt_llm/tools/multimodal_builder.py) does not, and fails with "mat1 and
mat2 must have the same dtype". The engine's output is FP16, like the prompt table.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the command line: the script sees its own name, options and folder, as if Python had run it."""
    del sys.argv[0]
    script = sys.argv[0]
    sys.path[0] = str(Path(script).parent)
    from transformers import Blip2ForConditionalGeneration

    Blip2ForConditionalGeneration._keep_in_fp32_modules = None
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
