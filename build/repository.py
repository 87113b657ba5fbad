"""A bundle's Triton repository: folders of model_repos/models with the few fields that a bundle decides."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from .catalog import ROOT, Recipe, TritonModel
from .engine_config import NAME as ENGINE_MODEL
from .engine_config import fill
from .toolchain import Image

MODELS = ROOT / "model_repos" / "models"
UNARY = "tensorrt_llm"  # the engine model's face with one response
IGNORED = shutil.ignore_patterns("__pycache__")


def parse_config(path: Path) -> model_config_pb2.ModelConfig:
    """A config.pbtxt as protobuf; a misspelt field is an error."""
    return text_format.Parse(path.read_text("utf-8"), model_config_pb2.ModelConfig())


def render(recipe: Recipe, bundle: Path, home: Path | None = None) -> None:
    """Write repository/, serving/ and parameters.json of a bundle whose engine/ is complete. `home`: where it will lie, if not here.

    Raises:
        TemplateError: the image's template is of another release.
    """
    shutil.copytree(ROOT / "serving", bundle / "serving", ignore=IGNORED)
    for model in recipe.models:
        folder = bundle / "repository" / model.name
        if recipe.target == "trtllm" and model.name == ENGINE_MODEL:
            _render_engine(recipe, folder, (home or bundle) / "engine")
        else:
            _render_model(model, recipe, folder)
    if recipe.target == "trtllm":
        _narrow(bundle / "repository")
    (bundle / "parameters.json").write_text(json.dumps(dict(recipe.parameters), indent=2) + "\n", "utf-8")


def _render_model(model: TritonModel, recipe: Recipe, folder: Path) -> None:
    shutil.copytree(MODELS / model.folder, folder, ignore=IGNORED)
    config = parse_config(folder / "config.pbtxt")
    config.name = model.name
    config.max_batch_size = int(recipe.parameters["max_batch_size"])
    config.model_transaction_policy.decoupled = model.decoupled
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config), "utf-8")


def _narrow(repository: Path) -> None:
    """Leave the unary face the tensors that the engine itself has: a request that names no outputs asks the face for all, and so the engine."""
    path = repository / UNARY / "config.pbtxt"
    face, engine = parse_config(path), parse_config(repository / ENGINE_MODEL / "config.pbtxt")
    for ours, theirs in ((face.input, engine.input), (face.output, engine.output)):
        kept = [tensor for tensor in ours if tensor.name in {other.name for other in theirs}]
        del ours[:]
        ours.extend(kept)
    path.write_text(text_format.MessageToString(face), "utf-8")


def _render_engine(recipe: Recipe, folder: Path, engine: Path) -> None:
    """A model without a file of its own: Triton wants its version folder all the same."""
    (folder / "1").mkdir(parents=True)
    (folder / "1" / ".keep").touch()
    config = fill(Image.from_environment().template.read_text("utf-8"), recipe, engine)
    (folder / "config.pbtxt").write_text(text_format.MessageToString(config), "utf-8")
