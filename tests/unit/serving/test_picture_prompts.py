"""Pictures with questions: what the façade makes of them, against transformers' own processors."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from build.catalog import ROOT
from conch.bundle import EngineFacts, PictureFacts, PicturePrompt
from serving.engine.encoding import PromptTableEndpoint
from serving.errors import BadRequest
from serving.text.endpoint import preprocessing
from serving.text.facade import complete
from serving.text.model import TextModel
from serving.text.processing import preprocess
from serving.triton.rows import refuse_table
from serving.vision.questions import pictures_of
from tests.fakes.triton_python import UTILS, answers_of, request

MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
VOCABULARY, ROWS, SIZE, WIDTH = 2001, 3, 32, 4
PROMPTS = {
    "llava": PicturePrompt(ROWS, "<image>", 2000, "USER:\n<image>{text} ASSISTANT:"),
    "blip2": PicturePrompt(ROWS, "<image>", 2000, "<image>{text}", leads=True),
}
FACTS = {"llava": PictureFacts(SIZE, SIZE, MEAN, DEVIATION), "blip2": PictureFacts(SIZE, 0, MEAN, DEVIATION)}
Arrays = dict[str, NDArray[Any]]


@pytest.fixture(params=["llava", "blip2"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> TextModel:
    """A bundle without an engine: mini-gpt2's tokenizer with a placeholder and a first token."""
    return bundle(request.param, tmp_path)


def bundle(kind: str, folder: Path) -> TextModel:
    engine = folder / "engine"
    engine.mkdir()
    tokenizer = Tokenizer.from_file(str(ROOT / "miniatures" / "gpt2" / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<image>", special=True, normalized=False)])
    tokenizer.save(str(engine / "tokenizer.json"))
    EngineFacts(
        family=kind, positions=128, vocabulary=VOCABULARY, end_id=1999, pad_id=1999, prompt_width=WIDTH
    ).save(engine)
    PROMPTS[kind].save(engine)
    FACTS[kind].save(engine)
    (folder / "parameters.json").write_text(json.dumps({}))
    return TextModel.load(folder)


def picture(colour: str = "red", size: tuple[int, int] = (50, 40)) -> Image.Image:
    made = Image.new("RGB", size, colour)
    made.paste("blue", (5, 5, 20, 30))
    return made


def url(one: Image.Image, kind: str = "PNG") -> bytes:
    file = BytesIO()
    one.save(file, kind)
    return b"data:image/png;base64," + base64.b64encode(file.getvalue())


def objects(*rows: list[bytes]) -> NDArray[Any]:
    return np.array(rows, object)


def asked(model: TextModel, text: str | list[str], **inputs: NDArray[Any]) -> tuple[Arrays, list[Any]]:
    """What the engine is asked for, and the pixels that were looked at."""
    texts = [text] if isinstance(text, str) else text
    calls: list[Arrays] = []
    looked: list[Any] = []

    def engine(arrays: Arrays, streaming: bool) -> Iterator[Arrays]:
        calls.append(arrays)
        rows = len(arrays["input_ids"])
        yield {
            "output_ids": np.full((rows, 1, 1), 5, np.int32),
            "sequence_length": np.ones((rows, 1), np.int32),
        }

    def see(pixels: NDArray[np.float16]) -> Arrays:
        looked.append(pixels)
        rows, n = pixels.shape[:2]
        table = np.repeat(pixels.mean((2, 3, 4))[:, :, None], ROWS * WIDTH, 2)
        return {
            "OUT_PROMPT_EMBEDDING_TABLE": table.reshape(rows, n * ROWS, WIDTH).astype(np.float16),
            "OUT_PROMPT_VOCAB_SIZE": np.full((rows, 1), n * ROWS, np.int32),
        }

    given = {
        "text_input": objects(*[[one.encode()] for one in texts]),
        "max_tokens": np.full((len(texts), 1), 4, np.int32),
        **inputs,
    }
    list(complete(model, given, engine, see))
    return calls[0], looked


def expected(model: TextModel, text: str) -> list[int]:
    """Ids of a text whose placeholders become numbered rows."""
    ids, rows = [], iter(range(VOCABULARY, VOCABULARY + 1000))
    for token in model.tokenizer.ids(text):
        ids += [next(rows) for _ in range(ROWS)] if token == 2000 else [token]
    return ids


def test_a_question_that_says_nothing_of_its_picture(model: TextModel) -> None:
    """Guide 002: LLaVA's text is wrapped, BLIP-2's follows the picture."""
    request, (pixels,) = asked(model, "which city is this?", image_urls=objects([url(picture())]))
    ids = request["input_ids"][0].tolist()
    assert model.prompt is not None
    if model.prompt.leads:
        assert ids == [*range(VOCABULARY, VOCABULARY + ROWS), *model.tokenizer.ids("which city is this?")]
    else:
        assert ids == expected(model, "USER:\n<image>which city is this? ASSISTANT:")
    assert request["input_lengths"].tolist() == [[len(ids)]]
    assert request["prompt_embedding_table"].shape == (1, ROWS, WIDTH)
    assert request["prompt_embedding_table"].dtype == np.float16
    assert request["prompt_vocab_size"].tolist() == [[ROWS]]
    assert pixels.shape == (1, 1, 3, SIZE, SIZE)


def test_text_alone(model: TextModel) -> None:
    """No picture: the text as it is, no table."""
    request, looked = asked(model, "On Monday")
    assert request["input_ids"][0].tolist() == model.tokenizer.ids("On Monday")
    assert "prompt_embedding_table" not in request
    assert not looked


def test_several_pictures_where_the_text_says(tmp_path: Path) -> None:
    """Rows are numbered in the order of the pictures."""
    model = bundle("llava", tmp_path)
    text = "USER: <image>\nand <image>\nwhich is red? ASSISTANT:"
    request, (pixels,) = asked(model, text, image_urls=objects([url(picture()), url(picture("green"))]))
    assert request["input_ids"][0].tolist() == expected(model, text)
    assert pixels.shape[:2] == (1, 2)
    assert request["prompt_vocab_size"].tolist() == [[2 * ROWS]]
    wrapped, _ = asked(model, "which?", image_urls=objects([url(picture()), url(picture("green"))]))
    assert wrapped["input_ids"][0].tolist() == expected(model, "USER:\n<image><image>which? ASSISTANT:")


def test_rows_of_a_request_have_their_own_pictures(model: TextModel) -> None:
    """Texts of different lengths; the table of each is its own picture's."""
    pictures = objects([url(picture("red"))], [url(picture("green"))])
    request, _ = asked(model, ["what?", "which city is this?"], image_urls=pictures)
    assert request["prompt_embedding_table"].shape == (2, ROWS, WIDTH)
    assert request["prompt_embedding_table"][0, 0, 0] != request["prompt_embedding_table"][1, 0, 0]
    assert request["input_ids"].shape[0] == 2


def key(model: TextModel, colour: str, **inputs: NDArray[Any]) -> int:
    """What stands for a picture's rows in `prompt_table_extra_ids`; 0 stands for each word."""
    request, _ = asked(model, "what?", image_urls=objects([url(picture(colour))]), **inputs)
    ids, extra = request["input_ids"][0], request["prompt_table_extra_ids"][0]
    assert extra.dtype == np.uint64
    (found,) = set(extra[ids >= VOCABULARY].tolist())
    assert extra.tolist() == [found if one >= VOCABULARY else 0 for one in ids.tolist()]
    return int(found)


def test_extra_ids_tell_pictures_apart(model: TextModel) -> None:
    """Equal for equal pictures alone, whatever `prompt_table_extra_id` the caller gives them."""
    own = {"prompt_table_extra_id": np.array([[77]], np.uint64)}
    found = [key(model, "red"), key(model, "green"), key(model, "red", **own), key(model, "green", **own)]
    assert 0 not in found
    assert len(set(found)) == 4
    assert key(model, "red", **own) == found[2]


def test_each_picture_of_a_text_has_its_own_extra_id(tmp_path: Path) -> None:
    model = bundle("llava", tmp_path)
    text, seen = "<image> and <image>?", objects([url(picture("red")), url(picture("green"))])
    request, _ = asked(model, text, image_urls=seen)
    ids, extra = request["input_ids"][0], request["prompt_table_extra_ids"][0]
    starts = VOCABULARY, VOCABULARY + ROWS
    (first,), (second,) = (set(extra[(ids >= at) & (ids < at + ROWS)].tolist()) for at in starts)
    assert (first, second) == (key(model, "red"), key(model, "green"))


def test_upstreams_preprocessing_gives_the_callers_id(model: TextModel) -> None:
    """Asked alone, it has no picture to make one of, and the tensor is what upstream's is."""
    given = {"QUERY": objects([b"what?"]), "REQUEST_OUTPUT_LEN": np.array([[4]], np.int32)}
    made = preprocess(model, {**given, "PROMPT_TABLE_EXTRA_ID": np.array([[77]], np.uint64)}, 1)
    ids, extra = made["INPUT_ID"][0], made["OUT_PROMPT_TABLE_EXTRA_IDS"][0]
    assert extra.tolist() == [77 if one >= VOCABULARY else 0 for one in ids.tolist()]


def test_an_engine_says_how_many_pictures_it_takes(tmp_path: Path) -> None:
    """Built for two of a request: the third is refused before anything is looked at."""
    model = replace(bundle("llava", tmp_path), pictures=2)
    for inputs in (
        {"image_urls": objects([url(picture())] * 3)},
        {"image_input": np.zeros((1, 3, 3, SIZE, SIZE), np.float16)},
        {"image_bytes_input": np.zeros((1, 3, 9, 9, 3), np.uint8)},
    ):
        with pytest.raises(BadRequest, match="has 3 pictures; send 2 at most"):
            asked(model, "what?", **inputs)


TABLE = np.zeros((1, ROWS, WIDTH), np.float16)


@pytest.mark.parametrize(
    ("table", "token", "says"),
    [
        (np.zeros((1, ROWS + 1, WIDTH), np.float16), 5, r"\[4, 4\]; this engine takes \[rows, 4\], 3 rows"),
        (np.zeros((1, ROWS, WIDTH + 1), np.float16), 5, r"\[3, 5\]; this engine takes"),
        (
            TABLE + np.float16(np.nan),
            5,
            "prompt_embedding_table has NaN or infinite values; send finite ones",
        ),
        (TABLE - np.float16(np.inf), 5, "has NaN or infinite values"),
        (TABLE, VOCABULARY + ROWS, "has 2004; this model has 2001 words, and the request 3 rows"),
        (None, VOCABULARY, "has 2001; this model has 2001 words, and the request 0 rows"),
    ],
)
def test_what_tensorrt_llm_would_misread(table: NDArray[Any] | None, token: int, says: str) -> None:
    """Where an engine says how many rows it takes; another looks itself."""
    facts = EngineFacts("llava", 128, VOCABULARY, 1, prompt_width=WIDTH, prompt_rows=ROWS)
    given = {"input_ids": np.array([[3, token]], np.int32)}
    given |= {} if table is None else {"prompt_embedding_table": table}
    with pytest.raises(BadRequest, match=says):
        refuse_table(given, facts)
    refuse_table(given, replace(facts, prompt_rows=0))
    fine = np.array([[3, VOCABULARY + ROWS - 1]], np.int32)
    refuse_table({"input_ids": fine, "prompt_embedding_table": TABLE}, facts)


@pytest.mark.parametrize(
    ("text", "inputs", "says"),
    [
        ("<image> what?", {}, "<image> 1 times, and 0 pictures"),
        ("what?", {"image_urls": objects([b"https://example.org/a.png"])}, "not a data URL"),
        ("what?", {"image_urls": objects([b"data:image/png,abc"])}, "without base64"),
        ("what?", {"image_urls": objects([b"data:image/png;base64,a"])}, "invalid base64"),
        ("what?", {"image_urls": objects([b"data:image/png;base64,aGVsbG8="])}, "picture 1 is not a picture"),
        ("what?", {"image_url_input": objects([b"file:///etc/passwd"])}, "not a data URL"),
        ("what?", {"image_urls": objects([b"data:;base64,"] * 33)}, "33 pictures; send 32"),
        ("what?", {"image_input": np.zeros((1, 1, 3, 8, 8), np.float16)}, r"reads \[rows, pictures, 3, 32"),
        ("what?", {"image_input": np.full((1, 1, 3, 32, 32), np.nan, np.float16)}, "NaN"),
        ("what?", {"image_bytes_input": np.zeros((1, 1, 8, 8, 4), np.uint8)}, "height, width, 3"),
        (
            "what?",
            {
                "image_input": np.zeros((1, 1, 3, 32, 32), np.float16),
                "image_urls": objects([b"data:;base64,"]),
            },
            "cannot be combined",
        ),
        ("what?", {"image_input": np.zeros((2, 1, 3, 32, 32), np.float16)}, "2 rows of pictures"),
        ("what?", {"video_bytes_input": np.zeros((1, 1, 8, 8, 3), np.uint8)}, "VIDEO_BYTES"),
    ],
)
def test_what_is_refused(model: TextModel, text: str, inputs: Arrays, says: str) -> None:
    """Each names what is wrong."""
    with pytest.raises(BadRequest, match=says):
        asked(model, text, **inputs)


def test_a_first_token_that_the_template_wrote(tmp_path: Path) -> None:
    """It is not doubled by the tokenizer's own; where the tokenizer has none, it stays."""
    tokenizer = bundle("llava", tmp_path).tokenizer
    assert tokenizer.prompt("<image>hello") == tokenizer.ids("<image>hello")
    tokenizer.tokenizer.post_processor = TemplateProcessing("<image> $A", special_tokens=[("<image>", 2000)])
    assert tokenizer.ids("<image>hello")[:2] == [2000, 2000]
    assert tokenizer.prompt("<image>hello") == tokenizer.ids("hello")
    assert tokenizer.prompt("hello") == tokenizer.ids("hello")


def test_one_picture_for_blip2(tmp_path: Path) -> None:
    """It has no place for a second."""
    with pytest.raises(BadRequest, match="2 pictures were sent; this model takes one"):
        asked(bundle("blip2", tmp_path), "what?", image_urls=objects([url(picture())] * 2))


def test_every_way_is_the_same_picture(model: TextModel) -> None:
    """A data URL, decoded bytes, and pixels made ready."""
    assert model.picture is not None
    one = picture()
    by_url = pictures_of({"image_url_input": objects([url(one)])}, model.picture)
    by_bytes = pictures_of({"image_bytes_input": np.asarray(one)[None, None]}, model.picture)
    assert by_url is not None
    assert by_bytes is not None
    ready = pictures_of({"image_input": by_url}, model.picture)
    assert ready is not None
    for other in (by_bytes, ready):
        np.testing.assert_array_equal(by_url, other)


SHAPES = [(50, 40), (1, 1), (7, 300), (300, 7), (32, 32), (640, 480)]


@pytest.mark.slow
@pytest.mark.parametrize("size", SHAPES)
def test_pixels_of_blip2_equal_transformers(size: tuple[int, int]) -> None:
    """Its Pillow processor, to the rounding of half floats. LLaVA's is CLIP's: test_clip.py."""
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

    one = Image.effect_noise(size, 90).convert("RGB")
    processor = BlipImageProcessorPil(size={"height": SIZE, "width": SIZE})
    theirs = processor(one, return_tensors="np")["pixel_values"][0]
    ours = pictures_of({"image_urls": objects([url(one)])}, FACTS["blip2"])
    assert ours is not None
    np.testing.assert_allclose(ours[0, 0].astype(np.float32), theirs, atol=1.1e-3)


def test_the_encoder_keeps_requests_apart() -> None:
    """Several requests with several pictures in one call; what is wrong with one is its own answer."""
    counted: list[int] = []

    def encode(pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        counted.append(len(pixels))
        return np.repeat(pixels.mean((1, 2, 3))[:, None, None], 6, 1).repeat(2, 2)

    endpoint = PromptTableEndpoint(SimpleNamespace(encode=encode), 4, UTILS)  # type: ignore[arg-type]
    first = np.full((1, 2, 3, 4, 4), 1.0, np.float16)
    first[0, 1] = 2.0
    second = np.full((2, 1, 3, 4, 4), 3.0, np.float16)
    answers = answers_of(
        endpoint,
        [
            request(IMAGE=first),
            request(pixel_values=np.zeros((1, 1, 3, 5, 4), np.float16)),
            request(pixel_values=second),
            request(),
        ],
    )
    table = answers[0].arrays["OUT_PROMPT_EMBEDDING_TABLE"]
    assert table.shape == (1, 12, 2)
    assert table[0, :, 0].tolist() == [1.0] * 6 + [2.0] * 6
    assert answers[0].arrays["OUT_PROMPT_VOCAB_SIZE"].tolist() == [[12]]
    assert answers[2].arrays["OUT_PROMPT_EMBEDDING_TABLE"].shape == (2, 6, 2)
    assert answers[2].arrays["OUT_PROMPT_EMBEDDING_TABLE"].dtype == np.float16
    assert "this model takes [rows, pictures, 3, 4, 4]" in answers[1].error.message
    assert "either IMAGE or pixel_values" in answers[3].error.message
    assert counted == [4]


def test_preprocessing_gives_pixels_and_ids(model: TextModel) -> None:
    """The Triton model by itself, for ensembles of others."""
    names = ("INPUT_ID", "PIXEL_VALUES", "REQUEST_INPUT_LEN")
    given = {"QUERY": objects([b"what?"]), "REQUEST_OUTPUT_LEN": np.array([[4]], np.int32)}
    asking = request(names, **given, IMAGE_URL=objects([url(picture())]))
    (answer,) = preprocessing(model, UTILS).execute([asking])
    assert answer.error is None
    assert answer.arrays["PIXEL_VALUES"].shape == (1, 1, 3, SIZE, SIZE)
    assert (answer.arrays["INPUT_ID"] >= VOCABULARY).sum() == ROWS
