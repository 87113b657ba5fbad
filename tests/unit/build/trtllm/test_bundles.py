"""Which bundles a guard serves."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from build.plan import Places
from build.targets.trtllm.image import TrtLlmBuilderImage
from ops.guard.supervise.bundle import BundleRefused, check_bundle
from tests.fakes.nvidia_image import H100

from .models import CATALOG, make

pytestmark = pytest.mark.long
A10 = ("NVIDIA A10", "8.6", 23028)
PACKAGE = "tensorrt_llm-0.20.0.dist-info"
METADATA = "Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: 0.19.0\n"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("etc/gpus.json", json.dumps([A10])), f"made with GPU name {H100[0]}, this server has {A10[0]}"),
        (("etc/conch-toolchain", "tensorrt_llm"), "by the toolchain contract, this server has tensorrt_llm"),
        ((f"site/{PACKAGE}/METADATA", METADATA), "made with tensorrt_llm 0.20.0, this server has 0.19.0"),
    ],
    ids=["gpu", "toolchain", "version"],
)
def test_a_foreign_bundle_is_refused(
    change: tuple[str, str], sentence: str, image: TrtLlmBuilderImage, finished: Places
) -> None:
    """Another GPU, another toolchain, another release: the sentence ends with the command that rebuilds the
    bundle, where it is printed.
    """
    bundle = finished.bundle("mini-whisper", "trtllm")
    assert check_bundle(bundle, "mini-whisper", "0,1").serving.world_size == 1
    (image.root / change[0]).write_text(change[1])
    with pytest.raises(BundleRefused, match=re.escape(sentence) + ".*rebuild it with: docker compose up -d"):
        check_bundle(bundle, "mini-whisper", "0")


def test_the_remedy_is_the_targets(tmp_path: Path) -> None:
    """In process mode a CPU's engines are made by make; in a container there is neither make nor a place to
    write to.
    """
    with pytest.raises(
        BundleRefused,
        match=r"make engines MODEL_ID=mini-t5 TARGET=openvino \(in Docker: docker compose up -d\)",
    ):
        check_bundle(tmp_path / "openvino", "mini-t5")
    with pytest.raises(BundleRefused, match="a finished bundle; rebuild it with: docker compose up -d"):
        check_bundle(tmp_path / "trtllm", "mini-t5")


def test_too_few_gpus_for_a_bundle(
    image: TrtLlmBuilderImage, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle for a pair does not start on one."""
    make(CATALOG["llava-1.5-7b"], places, monkeypatch, TP_SIZE="2")
    bundle = places.bundle("llava-1.5-7b", "trtllm")
    check_bundle(bundle, "llava-1.5-7b", "2,3")
    with pytest.raises(
        BundleRefused,
        match=(
            "spans 2 GPUs, this instance has 2; give it more with TRITON_i_GPUS, or set TP_SIZE=1 and "
            "rebuild it with: docker compose up -d"
        ),
    ):
        check_bundle(bundle, "llava-1.5-7b", "2")
