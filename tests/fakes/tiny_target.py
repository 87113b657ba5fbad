"""A third target, from outside, with an engine of a few lines of numpy (tiny_runtime.py).

`CONCH_TARGETS=tests.fakes.tiny_target TARGET=tiny` builds, plans, renders and serves GPT-2's family with it;
it exists to show that nothing else must change. Run as a program it makes an engine folder.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from build import targets
from build.repository import render_model
from conch import toolchains
from conch.bundle import EngineFacts
from conch.toolchain import Toolchain

SENTENCE = "The tiny target says hello."
MODEL = f"""import sys
from pathlib import Path
import triton_python_backend_utils as pb_utils
BUNDLE = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(BUNDLE), {str(Path(__file__).parents[2])!r}]
from conch.bundle import ENGINE, load_parameters
from serving.engine.endpoint import Endpoint
from tests.fakes.tiny_runtime import TinyRuntime
class TritonPythonModel:
    def initialize(self, args):
        self.endpoint = Endpoint(TinyRuntime(BUNDLE / ENGINE), load_parameters(BUNDLE), pb_utils)
    def execute(self, requests):
        self.endpoint.execute(requests)
    def finalize(self):
        self.endpoint.close()
"""


class Tiny(targets.Target):
    """A Target (build/targets/__init__.py)."""

    name = "tiny"

    def table(self, family: str) -> Mapping[str, Any] | None:
        step = ["{python}", "-m", "tests.fakes.tiny_target", "--weights", "{weights}", "--engine", "{engine}"]
        found = {"layout": "huggingface", "steps": [step], "capabilities": ["completion"]}
        return found if family == "gpt2" else None

    def render_engine(self, model: Any, recipe: Any, folder: Path, engine: Path) -> None:
        render_model(model, recipe, folder)
        (folder / "1" / "model.py").write_text(MODEL, "utf-8")


def main() -> None:
    """Make an engine folder of a tokenizer."""
    from tokenizers import Tokenizer  # guards, which import this file too, have none

    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--engine", type=Path)
    given = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(given.weights / "tokenizer.json"))
    end = tokenizer.get_vocab_size() - 1
    np.save(given.engine / "sentence.npy", tokenizer.encode(SENTENCE, add_special_tokens=False).ids)
    shutil.copy(given.weights / "tokenizer.json", given.engine)
    EngineFacts("gpt2", 128, tokenizer.get_vocab_size(), end, end).save(given.engine)


if __name__ == "__main__":
    main()
else:
    toolchains.register(Toolchain("tiny", ("numpy",)))
    targets.register(Tiny())
