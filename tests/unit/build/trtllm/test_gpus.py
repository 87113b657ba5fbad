"""Which GPUs count for a build and for an instance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from build import targets
from build.__main__ import main
from build.plan import Places, plan_job, read_manifest
from build.targets.trtllm.image import TrtLlmBuilderImage
from build.targets.trtllm.preflight import findings as check_findings
from build.tensors import parse_config
from conch.gpus import Gpu, gpus
from ops.guard.supervise.fitting import fitted, take
from ops.planning import IN_DOCKER, kv_shares, make_plan
from tests.fakes.nvidia_image import H100

from .models import CATALOG

pytestmark = pytest.mark.long
A10 = ("NVIDIA A10", "8.6", 23028)


def engines(places: Places, models: str) -> int:
    """The builder's command line."""
    where = ["--weights", str(places.weights), "--engines", str(places.engines)]
    return main(["engines", "--target", "trtllm", "--model-id", models, *where])


def test_each_model_is_built_on_its_instances_gpus(
    image: TrtLlmBuilderImage, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instance i serves model i mod n: the second model's card is that of triton-1, whatever comes first in
    nvidia-smi.
    """
    (image.root / "etc/gpus.json").write_text(json.dumps([A10, A10, H100]))
    for name, value in {"INSTANCES": "2", "TRITON_0_GPUS": "2", "TRITON_1_GPUS": "1"}.items():
        monkeypatch.setenv(name, value)
    assert engines(places, "mini-t5,mini-gpt2") == 0
    for model_id, card, devices in (("mini-t5", H100[0], "2"), ("mini-gpt2", "NVIDIA A10", "1")):
        manifest = read_manifest(places.bundle(model_id, "trtllm"))
        assert manifest
        assert manifest.engine["gpu"]["name"] == card
        log = places.bundle(model_id, "trtllm").with_name("trtllm.log").read_text()
        assert f"CUDA_VISIBLE_DEVICES={devices}\n" in log


def test_the_memory_that_counts_is_the_instances(
    image: TrtLlmBuilderImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small card that comes first is none of its business."""
    (image.root / "etc/gpus.json").write_text(json.dumps([("Small", "9.0", 12000), H100]))
    job = plan_job(CATALOG["llava-1.5-7b"], "trtllm", Places(Path("/w"), Path("/e")), {}, "1")
    assert check_findings(job.recipe, job.work, image, 7 * 10**9, "1") == []
    assert "Small has 12000 MiB" in " ".join(check_findings(job.recipe, job.work, image, 7 * 10**9, "0"))


def test_unknown_memory_is_no_finding(image: TrtLlmBuilderImage) -> None:
    """GPUs that share the machine's memory say [N/A]."""
    (image.root / "etc/gpus.json").write_text(json.dumps([("NVIDIA GB10", "12.1", "[N/A]")]))
    assert gpus() == [Gpu(0, "NVIDIA GB10", "12.1", None)]
    job = plan_job(CATALOG["llava-1.5-7b"], "trtllm", Places(Path("/w"), Path("/e")), {})
    assert check_findings(job.recipe, job.work, image, 7 * 10**9) == []


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"INSTANCES": "2"},
            "mini-t5: one engine runs on one kind of card, but triton-0 has NVIDIA A10, triton-1 has NVIDIA "
            "H100 80GB HBM3",
        ),
        (
            {"TRITON_0_GPUS": "0,1"},
            "triton-0 has NVIDIA H100 80GB HBM3; give its instances equal GPUs with TRITON_i_GPUS",
        ),
        (
            {"TRITON_0_GPUS": "7"},
            "triton-0 has GPU 7, which nvidia-smi does not show; set TRITON_0_GPUS to one that is there",
        ),
    ],
)
def test_unlike_cards_are_refused_first(
    variables: dict[str, str],
    sentence: str,
    image: TrtLlmBuilderImage,
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One engine cannot serve both; reported before anything is fetched."""
    (image.root / "etc/gpus.json").write_text(json.dumps([A10, H100]))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert engines(places, "mini-t5") == 1
    assert sentence in capsys.readouterr().err
    assert not places.weights.exists()


def test_a_shared_gpu_is_budgeted(finished: Places, tmp_path: Path) -> None:
    """Instances on one GPU take equal parts of the cache's budget, in a view of the bundle's repository;
    alone they take all of it.
    """
    assert targets.find("trtllm").gpus(3, {"TRITON_0_GPUS": "0,1"}) == ["0,1", "1", "2"]
    assert targets.find("openvino").gpus(2, {"TRITON_0_GPUS": "0"}) == ["", ""]
    several = {"HOSTS": "several", "HOST_GPUS": "0,1"}  # the planner's own machine may have no GPU
    assert targets.find("torch").gpus(2, several) == ["0,1", "0,1"]
    assert kv_shares(["0,1", "1", "2"]) == [0.5, 0.5, 1.0]
    assert kv_shares(["", ""]) == [1.0, 1.0]
    plan = make_plan([CATALOG["mini-whisper"]], 2, [Path("/x")], [0, 1], IN_DOCKER, ["0", "0"])
    assert [(instance.gpus, instance.kv_share) for instance in plan.instances] == [("0", 0.5), ("0", 0.5)]
    bundle = finished.bundle("mini-whisper", "trtllm")
    repository, view = bundle / "repository", fitted(bundle, tmp_path / "view", 0.5, 16)
    config = parse_config(view / "tensorrt_llm_stream/config.pbtxt")
    assert config.parameters["kv_cache_free_gpu_mem_fraction"].string_value == "0.25"
    assert (view / "whisper_bls/1/model.py").resolve() == (repository / "whisper_bls/1/model.py").resolve()
    take(config, 0.5)
    assert config.parameters["kv_cache_free_gpu_mem_fraction"].string_value == "0.125"
