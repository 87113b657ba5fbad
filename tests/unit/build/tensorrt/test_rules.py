"""The Triton model of a plan, and the images of instances."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from build.__main__ import build_all
from build.catalog import ROOT, CatalogError, known, load_catalog, target_of
from build.plan import BuildError, Places
from build.recipes import TritonModel, load_recipe
from build.targets.tensorrt.models import configured
from build.targets.tensorrt.plans import Plan, Plans, PlanTensor, command, shapes
from build.tensors import MODELS, parse_config
from conch import toolchains
from conch.names import LONGEST
from conch.toolchain import Toolchain, ToolchainError
from ops.planning import check_images, of_other_targets

CATALOG = load_catalog()
TEXTS = Plan(
    "encoder",
    tuple(
        PlanTensor(name, "TYPE_INT32", (1, 1), (16, 64), (64, 256))
        for name in ("input_ids", "attention_mask")
    ),
    "embedding",
    384,
)
PICTURES = Plan(
    "image",
    (PlanTensor("pixel_values", "TYPE_FP32", (1, 3, 96, 96), (16, 3, 96, 96), (64, 3, 96, 96)),),
    "embedding",
    128,
)


@pytest.mark.parametrize(
    ("folder", "plan", "dims", "longest"),
    [
        ("minilm_encoder", TEXTS, [[-1], [-1]], "256"),
        ("clip_text_encoder", TEXTS, [[-1], [-1]], "256"),
        ("clip_image_encoder", PICTURES, [[3, 96, 96]], ""),
    ],
)
def test_tensors_are_those_of_the_other_targets(
    folder: str, plan: Plan, dims: list[list[int]], longest: str
) -> None:
    """The same names, dtypes, batch and outputs as the model that Python serves; a size that the plan
    fixes is stated, and the maximum of one that it does not fix stands in a parameter.
    """
    theirs = parse_config(MODELS / folder / "config.pbtxt")
    ours = configured(TritonModel(folder, folder, graph=plan.name), plan, 64)
    assert (ours.backend, ours.platform, ours.default_model_filename) == (
        "tensorrt",
        "tensorrt_plan",
        "model.plan",
    )
    assert [(t.name, t.data_type) for t in ours.input] == [(t.name, t.data_type) for t in theirs.input]
    assert [list(t.dims) for t in ours.input] == dims
    assert list(ours.output) == list(theirs.output)
    assert ours.max_batch_size == theirs.max_batch_size == 64
    assert ours.HasField("dynamic_batching")
    assert not any(t.allow_ragged_batch or t.optional for t in ours.input)
    assert (ours.parameters[LONGEST].string_value if LONGEST in ours.parameters else "") == longest
    assert [group.kind for group in ours.instance_group] == [ModelInstanceGroup.KIND_AUTO]


def test_a_command_line() -> None:
    """Each option and its value in one argument."""
    argv = command("trtexec", Path("a.onnx"), TEXTS, Path("a.plan"), Path("t"), "float16")
    assert argv == [
        "trtexec", "--onnx=a.onnx", "--saveEngine=a.plan", "--stronglyTyped",
        "--minShapes=input_ids:1x1,attention_mask:1x1", "--optShapes=input_ids:16x64,attention_mask:16x64",
        "--maxShapes=input_ids:64x256,attention_mask:64x256", "--timingCacheFile=t", "--skipInference",
    ]  # fmt: skip
    assert "--noTF32" in command("trtexec", Path("a"), PICTURES, Path("b"), Path("t"), "float32")
    assert shapes(PICTURES, "most") == "pixel_values:64x3x96x96"


def test_plans_are_a_file(tmp_path: Path) -> None:
    Plans((TEXTS, PICTURES)).save(tmp_path)
    assert Plans.load(tmp_path) == Plans((TEXTS, PICTURES))


def test_tensorrt_llm_has_companions() -> None:
    """For what it does not build: plans of encoders where there is a recipe, otherwise PyTorch. Other targets
    have none.
    """
    for model, target, wanted in (
        ("all-minilm-l6-v2", "trtllm", "tensorrt"),
        ("mini-clip", "trtllm", "tensorrt"),
        ("mini-t5", "trtllm", "trtllm"),
        ("speakers", "trtllm", "torch"),
        ("speakers", "tensorrt", "tensorrt"),
        ("mini-clip", "openvino", "openvino"),
        ("mini-clip", "tensorrt", "tensorrt"),
    ):
        assert target_of(CATALOG[model], target) == wanted
    with pytest.raises(CatalogError, match="family t5 cannot be built for TARGET=tensorrt yet"):
        load_recipe(CATALOG["mini-t5"], target_of(CATALOG["mini-t5"], "tensorrt"))


def test_a_companion_builds_where_its_packages_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-LLM's image has no transformers of ours: the bundle must come from PyTorch's image."""
    here = Toolchain("torch", making=("torch", "package-that-is-not-there"))
    monkeypatch.setitem(toolchains._TOOLCHAINS, "torch", here)
    with pytest.raises(ToolchainError, match="TARGET=torch cannot be built here: package-that-is-not-there"):
        known("torch").identity()
    with pytest.raises(
        BuildError, match="speakers: .* in the image of TARGET=torch; add torch to COMPOSE_PROFILES"
    ):
        build_all([CATALOG["speakers"]], "trtllm", Places(tmp_path, tmp_path / "engines"))


def test_who_drives_compose_needs_no_targets_packages() -> None:
    """`make up` runs with two packages: what it asks of the plan imports none of a target's."""
    asked = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('google', 'tritonclient', 'numpy', 'filelock', 'torch')))\n"
        "from build.catalog import load_catalog, select\n"
        "from ops.planning import of_other_targets, check_images\n"
        "models = select(load_catalog(), 'mini-whisper,mini-clip,speakers', 'trtllm')\n"
        "check_images(models, 'trtllm', 3, {'TRITON_1_TARGET': 'tensorrt', 'TRITON_2_TARGET': 'torch'})\n"
        "print(of_other_targets(models, 'trtllm', 3))"
    )
    command = [sys.executable, "-c", asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "{1: 'tensorrt', 2: 'torch'}", done.stderr


@pytest.mark.parametrize(
    ("knobs", "environment", "sentence"),
    [
        ({"compress": "int8"}, {}, "COMPRESS=int8 cannot be built for {}; family minilm takes: none"),
        ({}, {"PRECISION": "int8"}, "PRECISION=int8 cannot be built for {}; .* float16, float32"),
        ({}, {"PRECISION": "bfloat16"}, "PRECISION=bfloat16 cannot be built for {}"),
        ({}, {"QUANTIZATION": "int8"}, "QUANTIZATION=int8 has no effect on family minilm with {}"),
        ({}, {"TP_SIZE": "2"}, "TP_SIZE=2 has no effect on family minilm with {}"),
    ],
)
def test_what_no_plan_is_built_for(knobs: dict[str, str], environment: dict[str, str], sentence: str) -> None:
    changed = replace(CATALOG["all-minilm-l6-v2"], knobs=knobs)
    with pytest.raises(CatalogError, match=sentence.format("TARGET=tensorrt")):
        load_recipe(changed, "tensorrt", environment)


def test_instances_run_the_image_of_their_target() -> None:
    """TRITON_i_TARGET says it; a wrong or a missing one is refused with the line to write."""
    models = [CATALOG["mini-whisper"], CATALOG["mini-clip"]]
    assert of_other_targets(models, "trtllm", 4) == {1: "tensorrt", 3: "tensorrt"}
    assert of_other_targets(models, "openvino", 4) == {}
    check_images(models, "trtllm", 2, {"TRITON_1_TARGET": "tensorrt"})
    check_images(models, "openvino", 2, {})
    check_images([CATALOG["mini-clip"]], "tensorrt", 1, {})
    for given, sentence in (
        ({}, "triton-1 serves mini-clip, which wants the image of TARGET=tensorrt, not of trtllm; set "
             "TRITON_1_TARGET=tensorrt$"),
        ({"TRITON_1_TARGET": "tensorrt", "TRITON_0_TARGET": "tensorrt"},
         "triton-0 serves mini-whisper, which wants the image of TARGET=trtllm, not of tensorrt; set "
         "TRITON_0_TARGET=$"),
        ({"HOSTS": "several"}, "mini-clip is built for TARGET=tensorrt, .* on several hosts deploy it apart"),
    ):  # fmt: skip
        with pytest.raises(CatalogError, match=sentence):
            check_images(models, "trtllm", 2, given)
