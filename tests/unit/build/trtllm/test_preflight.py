"""The image, its tools and its GPUs are compared with what a build needs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from build.__main__ import main
from build.bundle import build
from build.plan import Places, plan_job
from build.targets import Unfit
from build.targets.nvidia.options import misfits
from build.targets.trtllm.image import TrtLlmBuilderImage
from build.targets.trtllm.preflight import check
from build.targets.trtllm.preflight import findings as check_findings
from conch.nvidia_images import needs_of
from conch.toolchain import ToolchainError
from tests.fakes.nvidia_image import enter, environment, make_image

from .models import CATALOG, job_of

pytestmark = pytest.mark.long


def test_a_card_is_measured_by_numbers_and_their_width(image: TrtLlmBuilderImage) -> None:
    """Seven thousand million numbers in 16 bits want 17 GB, in 4 bits a quarter of that."""
    (image.root / "etc/gpus.json").write_text(json.dumps([("Small", "9.0", 12000)]))
    for knobs, fits in (({}, False), ({"WEIGHT_ONLY": "int8"}, True), ({"WEIGHT_ONLY": "int4"}, True)):
        job = plan_job(CATALOG["llava-1.5-7b"], "trtllm", Places(Path("/w"), Path("/e")), knobs)
        assert (
            "Small has 12000 MiB" in " ".join(check_findings(job.recipe, job.work, image, 7 * 10**9))
        ) is not fits


def test_check_is_a_command(image: TrtLlmBuilderImage, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each model that fits; a sentence and status 1 for what does not."""
    assert main(["check", "--target", "trtllm", "--model-id", "mini-whisper,mini-t5"]) == 0
    assert "mini-t5: its 4 steps fit the toolchain contract" in capsys.readouterr().out
    image.template.unlink()
    assert main(["check", "--target", "trtllm", "--model-id", "mini-t5"]) == 1
    assert "this image cannot build family t5" in capsys.readouterr().err


def test_the_older_layout_of_examples_is_found(image: TrtLlmBuilderImage) -> None:
    """TensorRT-LLM moved its examples in 0.20.0."""
    examples = image.root / "app/examples"
    (examples / "whisper").mkdir()
    shutil.move(
        examples / "models/core/whisper/convert_checkpoint.py", examples / "whisper/convert_checkpoint.py"
    )
    assert image.tools()["whisper_converter"].endswith("app/examples/whisper/convert_checkpoint.py")


def test_the_newer_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """26.07: TensorRT-LLM is in a virtual environment, which trtllm-build's first line names; Open MPI needs
    its prefix, the driver is another, and pictures are refused with the reason.
    """
    root = make_image(tmp_path / "image", versions={"tensorrt_llm": "1.2.1"})
    image = TrtLlmBuilderImage(enter(root, monkeypatch))
    (image.root / "etc/driver").write_text("590.44.01\n")
    job, picture = job_of("mini-t5"), job_of("mini-llava")
    check(job.recipe, job.work, image)
    assert image.python == image.root / "opt/venv-tritonserver/bin/python3"
    assert image.versions()["tensorrt_llm"] == "1.2.1"
    assert image.environment("0")["OPAL_PREFIX"] == f"{image.root}/usr/local/mpi"
    with pytest.raises(Unfit, match=r"tensorrt_llm is 1.2.1: its build_multimodal_engine.py needs transf"):
        check(picture.recipe, picture.work, image)
    (image.root / "etc/driver").write_text("575.57.08\n")
    with pytest.raises(Unfit, match=r"the driver is 575.57.08, the image \(Triton 26.07, CUDA 13.1\) needs"):
        check(job.recipe, job.work, image)


@pytest.mark.parametrize(
    ("base", "tag"),
    [
        ("", "25.07"),
        ("triton_trt_llm", "25.07"),
        ("nvcr.io/nvidia/tritonserver:25.07-trtllm-python-py3", "25.07"),
        ("nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3@sha256:00", "26.07"),
        ("nvcr.io/nvidia/tritonserver:26.07-py3", "26.07"),
    ],
)
def test_the_driver_that_a_base_needs(base: str, tag: str) -> None:
    """By its tag, before gigabytes are pulled; a name without one is taken for the pinned image."""
    assert needs_of(base).image.startswith(f"the image (Triton {tag}")


def test_no_tensorrt_llm_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: Places
) -> None:
    """On a machine without the image nothing is fetched, whatever another image has on PATH."""
    other = make_image(tmp_path / "other")
    monkeypatch.setenv("PATH", environment(other)["PATH"])
    monkeypatch.setenv("CONCH_IMAGE_ROOT", str(tmp_path / "nothing"))
    with pytest.raises(ToolchainError, match="run this in Conch's trtllm image, or use TARGET=openvino"):
        build(CATALOG["mini-whisper"], "trtllm", places, note=lambda _: None)
    assert not places.weights.exists()


def test_values_are_compared_as_argparse_reads_them() -> None:
    """Options by whole names, values with = as well."""
    text = (
        "usage: x [--alpha {a,b}] [--beta BETA] [--gamma [{c,d}]] [--kind {Kind.ONE,Kind.TWO}] [--name "
        "{base.en,base}]"
    )
    assert (
        misfits(["--alpha", "a", "--beta", "9", "--gamma", "d", "--kind", "two", "--name", "base.en"], text)
        == []
    )
    assert misfits(["--alpha=c", "--bet", "1", "--gamma", "e"], text) == [
        "--alpha c is not one of its choices a, b",
        "it has no option --bet",
        "--gamma e is not one of its choices c, d",
    ]
