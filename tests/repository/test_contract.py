"""Our Triton models against the contract data of TensorRT-LLM 0.20.0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import model_config_pb2

from build.catalog import ROOT, CatalogError, Model, load_catalog, select
from build.families import family_data
from build.recipes import load_recipe
from build.repository import render
from build.tensors import MODELS, parse_config
from conch.bundle import speech_facades
from tests.fakes.nvidia_template import CONTRACT

UPSTREAM = {
    "whisper_bls": "whisper/whisper_bls",
    "tensorrt_llm": "inflight_batcher_llm/tensorrt_llm",
    "tensorrt_llm_stream": "inflight_batcher_llm/tensorrt_llm",
    "multimodal_encoders": "multimodal/multimodal_encoders",
    **{
        name: f"inflight_batcher_llm/{name}"
        for name in ("preprocessing", "postprocessing", "tensorrt_llm_bls", "ensemble")
    },
}
OWN = {
    "minilm",
    "minilm_encoder",
    "speaker_embedding",
    "speaker_segmentation",
    *(f"clip_{name}" for name in ("text", "image", "text_encoder", "image_encoder")),
}  # upstream has no such models
TYPES = {"${logits_datatype}": "TYPE_FP32", "${encoder_input_features_data_type}": "TYPE_FP16"}


def port(tensor: Any, *, is_input: bool) -> dict[str, Any]:
    """A tensor of a config in the contract's words."""
    row = {"data_type": model_config_pb2.DataType.Name(tensor.data_type), "dims": list(tensor.dims)}
    if is_input:
        row |= {
            "optional": tensor.optional,
            "ragged": tensor.allow_ragged_batch,
            "reshape": list(tensor.reshape.shape) if tensor.HasField("reshape") else None,
        }
    return row


def contract(tensor: dict[str, Any], *, is_input: bool) -> dict[str, Any]:
    row = {"data_type": TYPES.get(tensor["data_type"], tensor["data_type"]), "dims": tensor["dims"]}
    if is_input:
        row |= {
            "optional": tensor["optional"],
            "ragged": tensor.get("allow_ragged_batch", False),
            "reshape": tensor.get("reshape"),
        }
    return row


@pytest.mark.parametrize("folder", sorted({path.name for path in MODELS.iterdir()} - OWN))
def test_tensors_are_upstreams(folder: str) -> None:
    """Every tensor of the contract is there with its dtype, shape, optionality and reshape; what we add is
    optional.
    """
    config, theirs = parse_config(MODELS / folder / "config.pbtxt"), CONTRACT[UPSTREAM[folder]]
    for kind, tensors in (("inputs", config.input), ("outputs", config.output)):
        ours = {tensor.name: tensor for tensor in tensors}
        for row in theirs[kind]:
            assert row["name"] in ours, f"{folder} lacks {row['name']}"
            assert port(ours[row["name"]], is_input=kind == "inputs") == contract(
                row, is_input=kind == "inputs"
            ), row["name"]
        added = set(ours) - {row["name"] for row in theirs[kind]}
        assert kind == "outputs" or all(ours[name].optional for name in added)


def on_a_cpu() -> list[Model]:
    """Models of families that OpenVINO engines are made for."""
    return [model for model in load_catalog().values() if "openvino" in family_data(model.family)]


@pytest.mark.parametrize("model", on_a_cpu(), ids=lambda model: model.id)
def test_rendered_repositories(model: Model, tmp_path: Path) -> None:
    """Each bundle's models carry their names, transaction policy and batch size, and one Python file each but
    for ensembles.
    """
    recipe = load_recipe(model, "openvino")
    render(recipe, tmp_path)
    for wanted in recipe.models:
        config = parse_config(tmp_path / "repository" / wanted.name / "config.pbtxt")
        assert (config.name, config.model_transaction_policy.decoupled) == (wanted.name, wanted.decoupled)
        assert config.max_batch_size == recipe.parameters["max_batch_size"]
        folder = tmp_path / "repository" / wanted.name / "1"
        assert folder.is_dir() if config.platform == "ensemble" else (folder / "model.py").is_file()
    assert (tmp_path / "serving" / "engine" / "scheduler.py").is_file()


def test_the_speech_facade_grows_with_the_machine(tmp_path: Path) -> None:
    """Before an engine with a GPU; FACADE_INSTANCES says otherwise, and other models stay one process."""
    assert [speech_facades({"facade_instances": 0}, cpus) for cpus in (1, 4, 8, 16, 64)] == [1, 1, 2, 4, 4]
    model = load_catalog()["mini-whisper"]
    render(load_recipe(model, "torch", {"FACADE_INSTANCES": "3"}), tmp_path)
    counts = {
        folder.name: parse_config(folder / "config.pbtxt").instance_group[0].count
        for folder in (tmp_path / "repository").iterdir()
    }
    assert counts.pop("whisper_bls") == 3
    assert set(counts.values()) == {1}


def test_models_stay_thin() -> None:
    """What matters is in serving/, where plain Python can test it."""
    paths = list(MODELS.glob("*/1/model.py"))
    assert paths
    for path in paths:
        assert len(path.read_text("utf-8").splitlines()) <= 40, path


def test_serving_needs_no_torch() -> None:
    """Neither the serving room nor the gateway imports what belongs to the builder; torch belongs to the
    architectures and to the engine that runs them.
    """
    own = [ROOT / "serving" / room for room in ("architectures", "engine/torch", "engine/trtllm")]
    for room in ("serving", "speech", "retrieval", "gateway", "model_repos"):
        for path in (ROOT / room).rglob("*.py"):
            lines = path.read_text("utf-8").splitlines()
            names = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
            allowed = {"torch"} if any(folder in path.parents for folder in own) else set()
            assert not names & {"torch", "transformers", "build"} - allowed, path


def test_catalog_errors_are_sentences() -> None:
    """A wrong id, target or knob names itself and what there is."""
    catalog = load_catalog()
    with pytest.raises(CatalogError, match="'nope' is not in the catalogue; it has: mini-whisper"):
        select(catalog, "mini-whisper,nope", "openvino")
    with pytest.raises(CatalogError, match="TARGET 'cuda' is unknown"):
        load_recipe(catalog["mini-whisper"], "cuda")
    with pytest.raises(CatalogError, match="no parameter 'speed'"):
        load_recipe(Model("x", "whisper", "file:x", "none", knobs={"speed": 1}), "openvino")
    assert [model.id for model in select(catalog, "", "openvino")] == [
        "mini-whisper",
        "mini-t5",
        "mini-bart",
        "mini-gpt2",
        "mini-clip",
        "mini-llava",
        "mini-blip2",
    ]
    assert "mini-clip" not in [model.id for model in select(catalog, "", "trtllm")]
