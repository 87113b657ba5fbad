"""INT8 of the picture encoder: the graph as onnxruntime computes it, on pictures that measured no range."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import nn

from build.checkpoints import clip
from build.pictures import Unsupported, picture_facts
from build.targets.tensorrt import graphs
from build.targets.tensorrt.quantize import KEPT, Quantized, quantize, read
from miniatures.training.pictures.evaluate import PicturePeer
from miniatures.training.pictures.museum import Exhibit, museum, recall

from ...serving import test_clip

pytestmark = pytest.mark.slow  # imports torch and transformers
FACTS = picture_facts(test_clip.MINI, 96, crops=True)
PRECISIONS = (torch.float16, torch.float32)


def drawn(folder: Path, count: int, seed: int = 7) -> Path:
    """A folder of generated pictures; other seeds are other pictures."""
    folder.mkdir()
    for number, exhibit in enumerate(museum(count, seed)):
        exhibit.picture.save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def exhibits() -> Sequence[Exhibit]:
    """Pictures with captions, none of which measured a range."""
    return museum(72)


@pytest.fixture(scope="module", params=PRECISIONS, ids=["float16", "float32"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file of the miniature, in float16 or float32 where it is not INT8."""
    folder, whole = tmp_path_factory.mktemp("int8"), clip.load(test_clip.MINI)
    with torch.no_grad():
        quantize(whole.picture, drawn(folder / "drawn", 64), FACTS)
        network = graphs.lowered(whole.picture, request.param)
        made = graphs.pictures("image", network, whole.shape.size, whole.shape.dimensions, request.param)
        graphs.save(made, folder / "image.onnx")
    return folder / "image.onnx"


def computed(path: Path, pixels: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()  # as written: fused integer kernels saturate on CPUs without VNNI
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    dtype = np.float16 if "float16" in given.type else np.float32
    rows = [session.run(None, {given.name: part.astype(dtype)})[0] for part in np.array_split(pixels, 8)]
    found: np.ndarray = np.concatenate(rows)
    return found


def test_vectors_and_recall(graph: Path, exhibits: Sequence[Exhibit]) -> None:
    """Of a small museum: near transformers' float32, and as many captions find their picture."""
    peer = PicturePeer(test_clip.MINI)
    pictures = [one.picture for one in exhibits]
    theirs, texts = peer.pictures(pictures), peer.texts([one.caption for one in exhibits])
    ours = computed(graph, peer.pixels(pictures))
    cosine = (ours * theirs).sum(1)
    assert cosine.min() >= 0.999
    assert recall(ours, texts) == recall(theirs, texts)


def test_what_is_quantized(graph: Path) -> None:
    """Five of six linear layers of a block, inputs and weights; the rest is float."""
    made = onnx.load(graph)
    kinds = [node.op_type for node in made.graph.node]
    layers = clip.shape(test_clip.MINI).picture.layers
    assert kinds.count("QuantizeLinear") == kinds.count("DequantizeLinear") == 2 * 5 * layers
    scales = {node.input[1] for node in made.graph.node if node.op_type == "QuantizeLinear"}
    assert len(scales) == (5 + 3) * layers, "query, key and value read the same"


def test_ranges_are_measured(tmp_path: Path) -> None:
    """Nothing that is kept in float is replaced, and every layer has its own range."""
    whole = clip.load(test_clip.MINI)
    with torch.no_grad():
        quantize(whole.picture, drawn(tmp_path / "drawn", 16), FACTS)
    names = {name.rpartition(".")[2]: type(layer) for name, layer in whole.picture.named_modules()}
    assert {names[kept] for kept in KEPT} == {nn.Linear}
    assert {names[name] for name in ("query", "key", "value", "mix", "widen")} == {Quantized}
    assert len({float(one.steps) for one in whole.picture.modules() if isinstance(one, Quantized)}) > 8


def test_too_few_pictures(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"needs 16 pictures or more .* has 3; name a folder with calibr"):
        read(drawn(tmp_path / "drawn", 3), FACTS)
    with pytest.raises(Unsupported, match="has 0"):
        read(Path("none"), FACTS)


def test_vectors_that_differ_too_much(tmp_path: Path) -> None:
    """Ranges of black pictures do not hold for others."""
    folder = drawn(tmp_path / "drawn", 16)
    for number, path in enumerate(sorted(folder.iterdir())):
        if number % 2 == 0:
            museum(1)[0].picture.point(lambda _: 0).save(path)
    whole = clip.load(test_clip.MINI)
    for layer in whole.picture.layers:
        layer.widen.weight.data[0] *= 400  # a weight whose steps are too wide for the rest of its inputs
        layer.query.weight.data *= 3
    with (
        torch.no_grad(),
        pytest.raises(Unsupported, match="less than 0.999; use compress=none, or calibrate"),
    ):
        quantize(whole.picture, folder, FACTS)


def test_pictures_are_read_as_clients_send_them(tmp_path: Path) -> None:
    """Turned as EXIF says; a damaged one is named."""
    folder = drawn(tmp_path / "drawn", 16)
    upright, exif = museum(1)[0].picture, Image.Exif()
    exif[0x0112] = 3  # upside down
    for name, picture, options in (("a", upright, {}), ("b", upright.rotate(180), {"exif": exif})):
        picture.save(folder / f"!{name}.png", **options)
    first, second = read(folder, FACTS)[:2]
    torch.testing.assert_close(first, second)
    (folder / "!a.png").write_bytes(b"no picture")
    with pytest.raises(Unsupported, match="!a.png "):
        read(folder, FACTS)


def test_a_channel_without_weights(tmp_path: Path) -> None:
    """Its step is the smallest that float16 holds in full, never 0."""
    whole = clip.load(test_clip.MINI)
    with torch.no_grad():
        whole.picture.layers[0].query.weight[3] = 0
        quantize(whole.picture, drawn(tmp_path / "drawn", 16), FACTS)
    steps = [one.weight_steps.half() for one in whole.picture.modules() if isinstance(one, Quantized)]
    assert min(float(one.min()) for one in steps) > 0
