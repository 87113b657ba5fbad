"""ONNX graphs compared with the torch networks that they are traced from and with transformers,
computed by onnxruntime, and what a stand-in of trtexec says to graphs and command lines that TensorRT would
not take.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from transformers import BertModel, CLIPModel

from build.bundle import build
from build.catalog import load_catalog
from build.checkpoints import clip, minilm
from build.plan import BuildError, Places, plan_job
from build.targets import Unfit
from build.targets.tensorrt import graphs
from build.targets.tensorrt.export import Sizes, plan
from build.targets.tensorrt.plans import Plan, Plans, command
from build.targets.tensorrt.target import TARGET
from conch.nvidia_images import TensorRtImage
from conch.toolchain import ToolchainError
from tests.fakes.nvidia_image import enter, environment, make_image, make_plain_image

from ...serving import test_clip, test_embedding

pytestmark = pytest.mark.slow  # imports torch and transformers, exports

CATALOG = load_catalog()
BERTS = {"bert": "mean_tokens", "first token": "cls_token"}
CLIPS: dict[str, dict[str, Any]] = {"legacy": {"end": 2}, "gelu": {"hidden_act": "gelu"}}
PRECISIONS = (torch.float16, torch.float32)
Theirs = Callable[..., torch.Tensor]


class Made:
    """A graph in each of PRECISIONS, the float32 network it is traced from, and transformers' own vectors."""

    def __init__(self, made: list[graphs.Graph], folder: Path, theirs: Theirs) -> None:
        self.graph, self.ours, self.theirs = made[0], made[1].module, theirs
        self.paths = {dtype: folder / f"{str(dtype)[6:]}.onnx" for dtype in PRECISIONS}
        for one, path in zip(made, self.paths.values(), strict=True):
            graphs.save(one, path)

    def computed(self, dtype: torch.dtype, *inputs: torch.Tensor) -> np.ndarray:
        """By onnxruntime."""
        session = onnxruntime.InferenceSession(str(self.paths[dtype]), providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]
        typed = [one.to(dtype) if one.is_floating_point() else one for one in inputs]
        given = {name: one.numpy() for name, one in zip(names, typed, strict=True)}
        found: np.ndarray = session.run(None, given)[0]
        return found


def normalized(found: Any) -> torch.Tensor:
    """Of what transformers' CLIP gives, older and newer."""
    vector = found if isinstance(found, torch.Tensor) else found.pooler_output
    return nn.functional.normalize(vector, dim=-1)


def bert(folder: Path, pooling: str) -> tuple[Path, Theirs]:
    """A random BERT and transformers' vectors of it."""
    checkpoint = test_embedding.checkpoint(folder, pooling)
    model = BertModel.from_pretrained(checkpoint, add_pooling_layer=False).eval()

    def theirs(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        there = mask[..., None].float()
        pooled = hidden[:, 0] if pooling == "cls_token" else (hidden * there).sum(1) / there.sum(1)
        return nn.functional.normalize(pooled, dim=-1)

    return checkpoint, theirs


def clip_texts(folder: Path) -> Theirs:
    """Transformers' vectors of a CLIP."""
    model = CLIPModel.from_pretrained(folder).eval()
    return lambda ids, mask: normalized(model.get_text_features(input_ids=ids, attention_mask=mask))


def graph(kind: str, folder: Path, dtype: torch.dtype) -> graphs.Graph:
    """The graph of a checkpoint's encoder of texts."""
    if kind in BERTS:
        network = minilm.load(folder)[1]
        lowered = graphs.lowered(network, dtype)
        return graphs.texts("encoder", lowered, network.shape.vocabulary, network.shape.width)
    whole = clip.load(folder)
    lowered = graphs.lowered(whole.text, dtype)
    return graphs.texts("text", lowered, whole.shape.vocabulary, whole.shape.dimensions)


def picture_graph(whole: clip.Clip, dtype: torch.dtype) -> graphs.Graph:
    """The graph of its encoder of pictures."""
    encoder = graphs.lowered(whole.picture, dtype)
    return graphs.pictures("image", encoder, whole.shape.size, whole.shape.dimensions, dtype)


def made_texts(kind: str, factory: pytest.TempPathFactory) -> Made:
    """An encoder of texts in float16 and float32."""
    if kind in BERTS:
        folder, theirs = bert(factory.mktemp("weights"), BERTS[kind])
    else:
        clips = CLIPS.get(kind)
        folder = test_clip.MINI if clips is None else test_clip.checkpoint(factory.mktemp("weights"), **clips)
        theirs = clip_texts(folder)
    return Made([graph(kind, folder, dtype) for dtype in PRECISIONS], factory.mktemp("graphs"), theirs)


@pytest.fixture(scope="module", autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", params=[*BERTS, "clip", *CLIPS])
def texts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return made_texts(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One of them."""
    return made_texts("clip", tmp_path_factory)


def rows(made: Made, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of texts of different length, an end at the end of each."""
    draw = np.random.default_rng(seed)
    encoder: Any = made.ours.encoder
    vocabulary, most = encoder.words.num_embeddings, encoder.places.num_embeddings
    lengths = draw.integers(2, min(most, 40) + 1, count)
    ids = np.zeros((count, lengths.max()), np.int32)
    mask = np.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = draw.integers(3, vocabulary - 1, length)
        ids[row, length - 1] = vocabulary - 1
        mask[row, :length] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def near(made: Made, *inputs: torch.Tensor) -> None:
    """In float32 the network's numbers, in float16 nearly those and transformers'."""
    expected = made.ours(*inputs).numpy()
    np.testing.assert_allclose(made.computed(torch.float32, *inputs), expected, atol=2e-5)
    half = made.computed(torch.float16, *inputs)
    assert half.dtype == np.float32
    assert (half * expected).sum(1).min() >= 0.999
    wide = (one if one.is_floating_point() else one.long() for one in inputs)
    assert (half * made.theirs(*wide).numpy()).sum(1).min() >= 0.999


@pytest.mark.parametrize("count", [1, 7])
def test_texts(texts: Made, count: int) -> None:
    """Of any batch and length."""
    near(texts, *rows(texts, count, count))


def test_ids_that_there_are_not(texts: Made) -> None:
    """Read as the nearest valid id: a plan never reads outside a table."""
    encoder: Any = texts.ours.encoder
    last = encoder.words.num_embeddings - 1
    ids = torch.tensor([[1, 2**31 - 1, -7, last]], dtype=torch.int32)
    near = torch.tensor([[1, last, 0, last]], dtype=torch.int32)
    ones = torch.ones_like(ids)
    found = [texts.computed(torch.float16, one, ones) for one in (ids, near)]
    np.testing.assert_array_equal(*found)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The miniature's encoder of pictures."""
    model = CLIPModel.from_pretrained(test_clip.MINI).eval()
    made = [picture_graph(clip.load(test_clip.MINI), dtype) for dtype in PRECISIONS]
    folder = tmp_path_factory.mktemp("graphs")
    return Made(made, folder, lambda pixels: normalized(model.get_image_features(pixel_values=pixels)))


@pytest.mark.parametrize("count", [1, 7])
def test_pictures(pictures: Made, count: int) -> None:
    torch.manual_seed(count)
    near(pictures, torch.randn(count, 3, 96, 96))


def test_weights_beyond_half_precision() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight[0, 0] = 1e6
    with pytest.raises(
        graphs.TooLarge, match=r'weight is beyond the range of torch.float16; set precision = "float32"'
    ):
        graphs.lowered(model, torch.float16)


def test_the_architecture_is_whole_again(captions: Made) -> None:
    """Attention is replaced while a graph is traced and no longer."""
    from torch.nn import functional

    assert functional.scaled_dot_product_attention.__name__ == "scaled_dot_product_attention"
    q = torch.randn(1, 2, 5, 4)
    own = graphs.attention(q, q, q, is_causal=True)
    np.testing.assert_allclose(
        own, functional.scaled_dot_product_attention(q, q, q, is_causal=True), atol=1e-6
    )


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TensorRtImage:
    """A stand-in of the plain image with four GPUs, in sight."""
    return TensorRtImage(enter(make_plain_image(tmp_path / "image"), monkeypatch))


def run_tool(argv: list[str]) -> tuple[int, str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=os.environ)
    return done.returncode, done.stdout


def test_trtexec_takes_the_command(image: TensorRtImage, captions: Made, tmp_path: Path) -> None:
    """The stand-in has the real one's options alone; what it writes says what it was told."""
    wanted = plan(captions.graph, Sizes(64, 16, 77, 64))
    made = tmp_path / "text.plan"
    path = captions.paths[torch.float16]
    argv = command(str(image.trtexec), path, wanted, made, tmp_path / "timing", "float16")
    status, words = run_tool(argv)
    assert status == 0, words
    header = json.loads(made.read_bytes().partition(b"\n")[0])
    assert header["inputs"]["input_ids"] == {
        "type": "INT32",
        "dims": [-1, -1],
        "profile": [[1, 1], [16, 64], [64, 77]],
    }
    assert header["outputs"] == {"embedding": {"type": "FP32", "dims": [-1, captions.graph.dimensions]}}
    assert header["typed"]


def help_without(option: str) -> Callable[[TensorRtImage], None]:
    def change(image: TensorRtImage) -> None:
        text = image.trtexec.read_text()
        image.trtexec.write_text(
            text.replace("main(", f"import trtexec\ntrtexec.KINDS.pop({option!r})\nmain(")
        )

    return change


def write(name: str, text: str) -> Callable[[TensorRtImage], None]:
    return lambda image: (image.root / "etc" / name).write_text(text)  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (help_without("--stronglyTyped"), "it has no option --stronglyTyped; use the image of docker/server"),
        (help_without("--timingCacheFile"), "it has no option --timingCacheFile"),
        (write("tensorrt", "9.3.0.1"), "is of TensorRT 9.3.0.1, Conch is written for 10"),
        (write("gpus.json", "[]"), "nvidia-smi shows no GPU"),
        (
            write("driver", "560.35.05"),
            "the driver is 560.35.05, the image (Triton 25.07, CUDA 12.9.1) needs 575.51.03, or on",
        ),
    ],
)
def test_an_image_that_does_not_fit(
    image: TensorRtImage, change: Callable[[TensorRtImage], None], sentence: str
) -> None:
    """One that does: test_int8_needs_pictures."""
    job = plan_job(CATALOG["mini-clip"], "tensorrt", Places(Path("/w"), Path("/e")))
    change(image)
    with pytest.raises(Unfit) as refused:
        TARGET.preflight(job.recipe, job.work)
    assert sentence in str(refused.value)


def test_int8_needs_pictures(image: TensorRtImage) -> None:
    """Asked for before anything is fetched; a build with a folder is one command of the real kind."""
    int8 = replace(CATALOG["mini-clip"], knobs={"compress": "int8", "calibration": "/nowhere"})
    job = plan_job(int8, "tensorrt", Places(Path("/w"), Path("/e")))
    with pytest.raises(Unfit, match="calibration=/nowhere is not a folder; name one with pictures"):
        TARGET.preflight(job.recipe, job.work)
    found = replace(int8, knobs={"compress": "int8", "calibration": str(test_clip.MINI)})
    job = plan_job(found, "tensorrt", Places(Path("/w"), Path("/e")))
    TARGET.preflight(job.recipe, job.work)
    (step,) = job.work.all()
    assert step.argv[step.argv.index("--calibration") + 1] == str(test_clip.MINI)


def test_no_trtexec(image: TensorRtImage) -> None:
    image.trtexec.unlink()
    with pytest.raises(ToolchainError, match="run this in Conch's tensorrt image"):
        TARGET.identity()


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "build", "engines", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **variables}, timeout=300
    )


def test_two_builders_of_one_deployment(tmp_path: Path) -> None:
    """As compose.yaml runs them: the one with trtexec makes plans and leaves the rest; the one with
    TensorRT-LLM finds them, and says what to do where they are missing or of another recipe.
    """
    plain, whole = make_plain_image(tmp_path / "plain"), make_image(tmp_path / "whole")
    shared = {
        "MODEL_ID": "mini-t5,mini-clip",
        "TARGET": "trtllm",
        "INSTANCES": "2",
        "WEIGHTS_DIR": str(tmp_path / "weights"),
        "ENGINES_DIR": str(tmp_path / "engines"),
    }
    engine = run(**shared, **environment(whole))
    assert engine.returncode == 1
    assert "mini-clip: " in engine.stderr
    assert (
        "is missing or out of date, and what makes it is in the image of TARGET=tensorrt; add tensorrt to"
        in (engine.stderr)
    )
    first = run("--only", "tensorrt", **shared, **environment(plain))
    assert first.returncode == 0, first.stderr
    assert "mini-t5" not in first.stdout
    both = run(**shared, **environment(whole))
    assert both.returncode == 0, both.stderr
    assert "CUDA_VISIBLE_DEVICES=1" in (tmp_path / "engines/mini-clip/tensorrt.log").read_text()
    assert [line.split()[1] for line in both.stdout.splitlines()[1:]] == ["trtllm", "tensorrt"]
    stale = run(**shared, **environment(whole), MAX_BATCH_SIZE="4")
    assert stale.returncode == 1
    assert "mini-clip: " in stale.stderr
    alone = run("--only", "tensorrt", **shared, **environment(whole))
    assert alone.returncode == 1
    assert "run this in Conch's tensorrt image" in alone.stderr


def test_a_failed_trtexec_leaves_nothing(image: TensorRtImage, tmp_path: Path) -> None:
    """The log contains its output; the bundle is absent."""
    (image.root / "etc/gpus.json").write_text('[["NVIDIA H100", "9.0", 81559]]')
    text = image.trtexec.read_text()
    image.trtexec.write_text(text.replace("main(Path", "trtexec.OPERATORS.pop('Softmax')\nmain(Path").replace(
        "from trtexec import main", "import trtexec\nfrom trtexec import main"))  # fmt: skip
    places = Places(tmp_path / "weights", tmp_path / "engines")
    with pytest.raises(BuildError, match=r"tensorrt\.log"):
        build(CATALOG["mini-clip"], "tensorrt", places, note=lambda _: None)
    assert "no importer for Softmax" in (tmp_path / "engines/mini-clip/tensorrt.log").read_text()
    assert not places.bundle("mini-clip", "tensorrt").exists()


def test_plans_of_a_family(captions: Made) -> None:
    """From one row and one token to the most; what is favoured never exceeds it."""
    made: Plan = plan(captions.graph, Sizes(8, 16, 12, 64))
    assert [(t.least, t.favoured, t.most) for t in made.inputs] == [((1, 1), (8, 12), (8, 12))] * 2
    assert {t.datatype for t in made.inputs} == {"TYPE_INT32"}
    assert Plans((made,)).plans[0].file == "text.plan"
