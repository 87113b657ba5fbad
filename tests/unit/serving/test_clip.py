"""CLIP compared with transformers on the same weights, and pixels compared with its processor."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from build.catalog import ROOT
from build.checkpoints import clip
from conch.bundle import ENGINE, PictureFacts
from serving.engine.encoding import AT_ONCE, PictureEncoderEndpoint, embed, encoded
from serving.errors import BadRequest
from serving.text.embedding import EmbeddingModel
from serving.vision import decoding, embedding, preprocessing
from serving.vision.decoding import decoded

from ...fakes.pictures import broken, noise, png, saved
from ...fakes.triton_python import UTILS, answers_of, request
from ..engines import encoder_of, export

pytestmark = pytest.mark.slow  # imports torch and transformers, exports
MINI = ROOT / "miniatures" / "clip"
FACTS = PictureFacts(224, 224, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
PROCESSOR = CLIPImageProcessorPil()
SIDES = {"size": 32, "crop_size": 32, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}


def checkpoint(folder: Path, processor: dict[str, Any] | None = None, end: int = 29, **options: Any) -> Path:
    """A random CLIP in transformers' layout, with a tokenizer of nothing but ids."""
    torch.manual_seed(3)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, **options}
    picture = {**sizes, "hidden_size": 24, "image_size": 32, "patch_size": 8}
    text = {**sizes, "hidden_size": 16, "vocab_size": 30, "max_position_embeddings": 12, "eos_token_id": end}
    config = CLIPConfig(text_config=text, vision_config=picture, projection_dim=20)
    model = CLIPModel(config)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim:
                weights.normal_(std=0.3)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**SIDES, **(processor or {})}))
    (folder / "tokenizer.json").write_text((MINI / "tokenizer.json").read_text("utf-8"))
    return folder


@pytest.fixture(
    scope="module",
    params=[{}, {"hidden_act": "gelu"}, {"end": 2}, None],
    ids=["new", "gelu", "legacy", "mini"],
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint (random ones, and the miniature) and its engine."""
    folder = MINI
    if request.param is not None:
        folder = checkpoint(tmp_path_factory.mktemp("weights"), **request.param)
    engine = tmp_path_factory.mktemp("bundle") / ENGINE
    for target in ("openvino", "torch"):
        (engine / target).mkdir(parents=True)
    export("openvino", "clip", folder, engine / "openvino")
    export("torch", "clip", folder, engine / "torch")
    return folder, engine


TARGETS = pytest.mark.parametrize("target", ["openvino", "torch"])


def cosines(found: np.ndarray, expected: Any) -> np.ndarray:
    """Of vectors of length 1, which ours must be, and transformers' outputs, which are not."""
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    theirs = getattr(expected, "pooler_output", expected)
    cosine: np.ndarray = (found * torch.nn.functional.normalize(theirs, dim=-1).numpy()).sum(1)
    return cosine


@TARGETS
def test_text_is_transformers(made: tuple[Path, Path], target: str) -> None:
    """Rows of different lengths together; the end of text inside a row, and after it more."""
    theirs = CLIPModel.from_pretrained(made[0], dtype=torch.float32).eval()
    encoder, draw = encoder_of(target, made[1] / target, "text"), np.random.default_rng(1)
    last = encoder.facts.vocabulary - 1
    rows = [np.array([*draw.integers(3, last, n), last], np.int32) for n in (1, 11, 3, 6, 6, 2)]
    rows += [np.array([5, last, 7, last, 4], np.int32), np.array([last, 4], np.int32)]
    found = embed(encoder, rows)
    for row, vector in zip(rows, found, strict=True):
        with torch.no_grad():
            expected = theirs.get_text_features(torch.from_numpy(row[None].astype(np.int64)))
        assert cosines(vector[None], expected).min() >= 0.9999
        np.testing.assert_allclose(embed(encoder, [row])[0], vector, atol=2e-5)


@TARGETS
def test_pictures_are_transformers(made: tuple[Path, Path], target: str) -> None:
    """More than are computed together."""
    theirs = CLIPModel.from_pretrained(made[0], dtype=torch.float32).eval()
    encoder, size = encoder_of(target, made[1] / target, "image"), PictureFacts.load(made[1] / target).size
    rows = np.random.default_rng(2).normal(size=(AT_ONCE + 3, 3, size, size)).astype(np.float32)
    with torch.no_grad():
        expected = theirs.get_image_features(torch.from_numpy(rows))
    assert cosines(np.stack(encoded(encoder, "pixels", list(rows))), expected).min() >= 0.9999


def test_a_pickled_checkpoint_is_the_same(tmp_path: Path) -> None:
    """Older ones have no safetensors, and position ids as tensors."""
    folder = checkpoint(tmp_path)
    state = clip.stored(folder)
    buffers = {name: torch.arange(4)[None] for name in clip.UNUSED}
    torch.save({**state, **buffers}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert all(torch.equal(clip.stored(folder)[name], tensor) for name, tensor in state.items())
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(clip.Unsupported, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        clip.load(folder)


@pytest.mark.parametrize("left_out", [("hidden_act", "layer_norm_eps"), ("num_attention_heads",)])
def test_what_a_config_leaves_out_is_transformers(tmp_path: Path, left_out: tuple[str, ...]) -> None:
    """Published files name only what differs from transformers' defaults."""
    path = checkpoint(tmp_path) / "config.json"
    config = json.loads(path.read_text())
    for part in ("text_config", "vision_config"):
        config[part] = {name: value for name, value in config[part].items() if name not in left_out}
    path.write_text(json.dumps(config))
    theirs, ours = CLIPConfig.from_pretrained(tmp_path), clip.shape(tmp_path)
    for tower, part in ((ours.text, theirs.text_config), (ours.picture, theirs.vision_config)):
        assert (tower.heads, tower.activation, tower.epsilon) == (
            part.num_attention_heads, part.hidden_act, part.layer_norm_eps,
        )  # fmt: skip


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(clip.Unsupported, match="asks for something else"):
        export("openvino", "clip", checkpoint(tmp_path / "a", {"crop_size": 16}), out)
    with pytest.raises(clip.Unsupported, match="the activation is relu; this family has quick_gelu, gelu"):
        export("openvino", "clip", checkpoint(tmp_path / "d", hidden_act="relu"), out)
    (tmp_path / "a" / "config.json").write_text('{"model_type": "siglip"}')
    with pytest.raises(clip.Unsupported, match="model type is siglip; it must be clip"):
        export("openvino", "clip", tmp_path / "a", out)


@pytest.mark.parametrize("made", [None], indirect=True, ids=["mini"])
def test_the_tokenizer_is_transformers(made: tuple[Path, Path], tmp_path: Path) -> None:
    """Of the miniature, whose files are made here: what CLIPTokenizer reads from them, and what we read."""
    from transformers import CLIPTokenizer

    theirs = CLIPTokenizer.from_pretrained(MINI)
    (tmp_path / ENGINE).symlink_to(made[1] / "openvino")
    model = EmbeddingModel(tmp_path)
    texts = [
        "A  red\nCIRCLE!!",
        "",
        "naïve 日本 🎉 it's",
        "42 teal stars",
        "<|endoftext|> x",
        "a " * 90,
        "\u00a0ÀÉ",
    ]
    seen: list[np.ndarray] = []

    def encode(rows: dict[str, np.ndarray]) -> np.ndarray:
        seen.extend(
            row[mask == 1] for row, mask in zip(rows["input_ids"], rows["attention_mask"], strict=True)
        )
        return np.zeros((len(seen), 1), np.float32)

    asked = {
        "text": np.array([[text.encode()] for text in texts], object),
        "truncate": np.ones((len(texts), 1), bool),
    }
    model.embed(asked, encode)
    for text, ids in zip(texts, seen, strict=True):
        assert ids.tolist() == theirs(text, truncation=True, max_length=77)["input_ids"], text
    assert Tokenizer.from_file(str(MINI / "tokenizer.json")).get_vocab_size() == model.facts.vocabulary


# Pictures


def prepared(data: bytes) -> np.ndarray:
    """By ours."""
    return decoded(data, lambda picture: preprocessing.pixels(picture, FACTS))


def theirs(picture: Image.Image) -> np.ndarray:
    """By transformers' processor."""
    found: np.ndarray = PROCESSOR(picture, return_tensors="np")["pixel_values"][0]
    return found


SIZES = [
    (1, 1), (1, 2), (2, 1), (1, 50), (50, 1), (3, 700), (223, 224), (224, 224), (225, 224), (224, 225),
    (224, 1000), (333, 500), (500, 333), (447, 449), (640, 480), (1023, 767), (1920, 1080), (30, 31), (100,
7), (4000, 16), ]  # fmt: skip


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "LA"])
def test_pixels_are_transformers(size: tuple[int, int], mode: str) -> None:
    """Of PNG files, which keep all of these."""
    data = saved(noise(*size, mode), "PNG")
    expected = theirs(Image.open(BytesIO(data)))
    np.testing.assert_allclose(prepared(data), expected, atol=1e-3)


OTHERS: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: saved(noise(301, 199), "JPEG", quality=90),
    "progressive": lambda: saved(noise(301, 199), "JPEG", progressive=True),
    "gray jpeg": lambda: saved(noise(301, 199, "L"), "JPEG"),
    "cmyk": lambda: saved(noise(301, 199, "CMYK"), "JPEG"),
    "webp": lambda: saved(noise(301, 199), "WEBP"),
    "webp with alpha": lambda: saved(noise(301, 199, "RGBA"), "WEBP", lossless=True),
    "gif": lambda: saved(noise(301, 199, "P"), "GIF"),
    "bmp": lambda: saved(noise(301, 199), "BMP"),
    "transparent palette": lambda: saved(noise(60, 50, "P"), "PNG", transparency=3),
    "animated gif": lambda: saved(
        noise(90, 60, "P"), "GIF", save_all=True, append_images=[noise(90, 60, "P", 1)], duration=50
    ),
    "animated webp": lambda: saved(
        noise(90, 60), "WEBP", save_all=True, append_images=[noise(90, 60, seed=1)], lossless=True
    ),
    "animated png": lambda: saved(noise(90, 60), "PNG", save_all=True, append_images=[noise(90, 60, seed=1)]),
    "large": lambda: saved(noise(1000, 800).resize((4000, 3200)), "JPEG"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_transformers(name: str) -> None:
    """The first frame of those that move."""
    data = OTHERS[name]()
    expected = theirs(Image.open(BytesIO(data)))
    np.testing.assert_allclose(prepared(data), expected, atol=1e-3)


def test_sixteen_bits_of_grey_are_scaled() -> None:
    """As transformers reads the same picture in eight bits; Pillow would clip it."""
    grey = np.arange(60_000, dtype=np.uint16).reshape(200, 300)
    twin = Image.fromarray((grey / 257).round().astype(np.uint8))
    np.testing.assert_allclose(prepared(saved(Image.fromarray(grey), "PNG")), theirs(twin), atol=1e-3)
    seen_through = saved(Image.fromarray(grey), "PNG", transparency=0)
    assert decoded(seen_through, lambda picture: picture.getpixel((0, 0))) == (255, 255, 255)


@pytest.mark.parametrize("turn", range(10))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_turns(turn: int, kind: str) -> None:
    """As Pillow's own exif_transpose; an orientation that does not exist turns nothing."""
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = turn
    data = saved(noise(80, 50), kind, exif=exif)
    upright = ImageOps.exif_transpose(Image.open(BytesIO(data)))
    np.testing.assert_allclose(prepared(data), theirs(upright), atol=1e-3)


def test_pictures_like_threads() -> None:
    """Whole they would be 1.8 billion pixels; of others, the middle alone differs by one step."""
    assert prepared(saved(noise(1, 8000), "PNG")).shape == (3, 224, 224)
    for size in ((7, 900), (1000, 9), (3, 100)):
        picture = noise(*size)
        whole = np.asarray(preprocessing.middle(picture, FACTS), int)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(preprocessing, "MOST_RESIZED", 0)
            alone = np.asarray(preprocessing.middle(picture, FACTS), int)
        assert np.abs(whole - alone).max() <= 1


def test_nothing_long_is_made_of_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a picture is, Pillow never makes more pixels of it than a whole resized one has."""
    made, resize = [], Image.Image.resize

    def counted(picture: Image.Image, size: tuple[int, int], *others: Any) -> Image.Image:
        made.append(size[0] * size[1])
        return resize(picture, size, *others)

    monkeypatch.setattr(Image.Image, "resize", counted)
    for size in ((1, decoding.MOST_SIDE), (2, 60_000), (decoding.MOST_SIDE, 1)):
        preprocessing.middle(Image.new("RGB", size), FACTS)
    assert max(made) <= preprocessing.MOST_RESIZED / 16


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "send PNG, JPEG, WebP, GIF or BMP"),
        (b"hello", "send PNG, JPEG, WebP, GIF or BMP"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "send PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "send PNG"),
        (saved(noise(9, 9), "TIFF"), "send PNG"),
        (saved(noise(9, 9), "PPM"), "send PNG"),
        (saved(noise(9, 9), "ICO"), "send PNG"),
        (png(9000, 9000), "more than 67108864 pixels"),
        (png(2**31 - 1, 2**31 - 1), "more than 67108864 pixels"),
        (png(1, 4_000_000), "is 4000000 pixels long; a side may have 65535"),
        (png(0, 5), "is"),
        (png(50, 50, b"\0" * 9), "is a damaged PNG picture"),
        (png(5, 5, depth=77), "is"),
        (saved(noise(99, 99), "JPEG")[:1500], "is a damaged JPEG picture"),
        (saved(noise(99, 99), "PNG")[:1500], "is a damaged PNG picture"),
        (saved(noise(99, 99), "WEBP")[:1500], "is"),
        (b"\0" * (decoding.MOST_BYTES + 1), "a picture may have 20 MiB"),
    ],
    ids=range(17),
)
def test_what_is_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        prepared(data)


def test_broken_files_are_refused_or_read() -> None:
    """Nothing but a BadRequest ever comes out."""
    outcomes = {"read": 0, "refused": 0}
    for data in broken():
        try:
            prepared(data)
            outcomes["read"] += 1
        except BadRequest:
            outcomes["refused"] += 1
    assert sum(outcomes.values()) == 300
    assert outcomes["refused"] >= 150


def test_broken_exif_turns_nothing() -> None:
    data = saved(noise(20, 10), "PNG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage")
    assert decoded(data, lambda picture: picture.size) == (20, 10)


def sums(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = rows.mean((2, 3))
    return found


def test_the_facade_reads_both_inputs() -> None:
    """Files as text or as numbers; the broken one is named."""
    data = saved(noise(50, 40), "PNG")
    expected = sums(prepared(data)[None])
    texts = np.array([[data]] * 40, object)
    np.testing.assert_allclose(
        embedding.embed({"image": texts}, FACTS, sums), np.repeat(expected, 40, 0), rtol=1e-5
    )
    numbers = np.frombuffer(data, np.uint8)[None]
    np.testing.assert_allclose(embedding.embed({"image_bytes": numbers}, FACTS, sums), expected, rtol=1e-5)
    texts[7] = b"no"
    with pytest.raises(BadRequest, match="image 7 is not a picture that can be read"):
        embedding.embed({"image": texts}, FACTS, sums)
    for inputs in ({}, {"image": texts, "image_bytes": numbers}):
        with pytest.raises(BadRequest, match="send either image or image_bytes"):
            embedding.embed(inputs, FACTS, sums)


def asked(pixels: Any) -> Any:
    return request(pixel_values=np.array(pixels, np.float32))


def test_raw_pixels_are_checked() -> None:
    """A bad request among others is refused alone."""
    encoder: Any = SimpleNamespace(encode=lambda pixels: sums(pixels)[:, :1])
    endpoint = PictureEncoderEndpoint(encoder, 2, UTILS)
    good = np.ones((2, 3, 2, 2))
    answers = answers_of(
        endpoint, [asked(good), asked(np.ones((1, 3, 2, 4))), asked(good * np.nan), asked(good[:1] * 5)]
    )
    assert [answers[n].arrays["embedding"].tolist() for n in (0, 3)] == [[[1], [1]], [[5]]]
    assert "it must be [3, 2, 2]" in answers[1].error.message
    assert "finite" in answers[2].error.message


def test_large_pictures_one_at_a_time() -> None:
    """Eight threads with pictures of 8192 x 8192: what is in memory is never more than one of them."""
    data, inside, most = saved(Image.new("1", (8192, 8192)), "PNG"), 0, 0

    def make(picture: Image.Image) -> tuple[int, int]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        small = picture.resize((64, 64), Image.Resampling.NEAREST)
        inside -= 1
        return small.size

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda _: decoded(data, make), range(8))) == {(64, 64)}
    assert most == 1
