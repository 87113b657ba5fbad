"""A third target, from outside: an engine of two lines of numpy behind the declared seams.

`CONCH_TARGETS=tests.fakes.tiny_target TARGET=tiny` builds, plans, renders and serves GPT-2's family with it.
The engine says one sentence, whatever it is asked; it exists to show that nothing else must change.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.bundle import EngineFacts, Serving

SENTENCE = "The tiny target says hello."


class TinyRuntime:
    """A Runtime (serving/engine/runtime.py): the next id of the sentence gets all the probability."""

    def __init__(self, engine: Path) -> None:
        self.facts = EngineFacts.load(engine)
        self.ids = [*np.load(engine / "sentence.npy").tolist(), self.facts.end_id]

    def encode(self, sources: Sequence[NDArray[Any]]) -> list[Any]:
        return [None for _ in sources]

    def align(self, ids: Sequence[int], memory: Any) -> NDArray[np.float16]:
        raise NotImplementedError

    def batch(self) -> TinyRuntime:
        self.said: list[int] = []
        return self

    def step(self, rows: Sequence[Any]) -> Any:
        from serving.engine.runtime import Step

        self.said = [0 if row.parent is None else self.said[row.parent] + 1 for row in rows]
        best = np.array([self.ids[min(count, len(self.ids) - 1)] for count in self.said], np.int64)
        logits = np.full((len(rows), self.facts.vocabulary), -30, np.float32)
        logits[np.arange(len(rows)), best] = 0
        return Step(best, np.zeros(len(rows), np.float32), logits.__getitem__)


MODEL = f"""import sys
from pathlib import Path
import triton_python_backend_utils as pb_utils
BUNDLE = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(BUNDLE), {str(Path(__file__).parents[2])!r}]
from conch.bundle import ENGINE, load_parameters
from serving.engine.endpoint import Endpoint
from tests.fakes.tiny_target import TinyRuntime
class TritonPythonModel:
    def initialize(self, args):
        self.endpoint = Endpoint(TinyRuntime(BUNDLE / ENGINE), load_parameters(BUNDLE), pb_utils)
    def execute(self, requests):
        self.endpoint.execute(requests)
    def finalize(self):
        self.endpoint.close()
"""


class Tiny:
    """A Target (build/targets/__init__.py)."""

    name = "tiny"
    code = ()
    deciding = ("numpy",)

    def table(self, family: str) -> Mapping[str, Any] | None:
        step = ["{python}", "-m", "tests.fakes.tiny_target", "--weights", "{weights}", "--engine", "{engine}"]
        return (
            {"layout": "huggingface", "steps": [step], "capabilities": ["completion"]}
            if family == "gpt2"
            else None
        )

    def identity(self, devices: str = "") -> Any:
        from build.toolchain import Identity, installed

        return Identity(self.name, installed(self.deciding), {}, {})

    def tools(self) -> Mapping[str, str]:
        return {"python": sys.executable}

    def environment(self, devices: str) -> Mapping[str, str]:
        return {}

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        return [""] * count

    def ranks(self, recipe: Any) -> int:
        return 1

    def build_devices(self, models: Sequence[Any], environment: Mapping[str, str]) -> list[str]:
        return [""] * len(models)

    def derived(self, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def check_possible(self, model: Any, recipe: Any, devices: str) -> None: ...

    def preflight(self, recipe: Any, work: Any, numbers: int = 0, devices: str = "") -> None: ...

    def render_engine(self, model: Any, recipe: Any, folder: Path, engine: Path) -> None:
        from build.repository import render_model

        render_model(model, recipe, folder)
        (folder / "1" / "model.py").write_text(MODEL, "utf-8")

    def narrow(self, repository: Path) -> None: ...

    def serving(self, recipe: Any, bundle: Path, home: Path) -> Serving:
        return Serving()

    def remedy(self, model_id: str) -> str:
        return f"make engines MODEL_ID={model_id} TARGET=tiny"


def main() -> None:
    """Make an engine folder of a tokenizer."""
    from tokenizers import Tokenizer

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
    from build import targets

    targets.register(Tiny())
