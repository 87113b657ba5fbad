"""LLaVA and BLIP-2 on the portable engines against transformers: small models of the true architectures with
random weights; pictures and texts in one running batch.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    GenerationConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
)

from conch.bundle import PicturePrompt
from serving.engine.collected import Collected
from serving.engine.encoding import EncoderRuntime
from serving.engine.inputs import parse
from serving.engine.runtime import Runtime

from .. import engines
from ..engines import encoder_of, exported, runtime
from .test_text_engines import COMMON, LLAMA, OPT, VOCABULARY

pytestmark = pytest.mark.long

PLACEHOLDER, SIZE = VOCABULARY - 1, 32
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LONGEST, ASKED = 16, 12
VISION = {
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": SIZE,
    "patch_size": 8,
}
TEXT = {**COMMON, "hidden_size": 64, "num_hidden_layers": 2, **ENDS}
FORMER = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "encoder_hidden_size": 48,
    "cross_attention_frequency": 2,
}
Question = tuple[list[int], NDArray[np.float32] | None]


class Engine(NamedTuple):
    """What the builder made."""

    target: str
    folder: Path

    def runtime(self) -> Runtime:
        return runtime(self.target, self.folder)

    def encoder(self) -> EncoderRuntime:
        return encoder_of(self.target, self.folder, "picture")


def llava(**own: Any) -> PreTrainedModel:
    text = {**TEXT, **LLAMA, "num_key_value_heads": 4, "initializer_range": 0.3, "model_type": "llama"}
    vision = {**VISION, "initializer_range": 0.3}
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=PLACEHOLDER, **own)
    return LlavaForConditionalGeneration(config)


def blip2() -> PreTrainedModel:
    config = Blip2Config(
        vision_config=VISION,
        qformer_config=FORMER,
        text_config={**TEXT, **OPT, "model_type": "opt"},
        num_query_tokens=8,
        image_token_index=PLACEHOLDER,
    )
    return Blip2ForConditionalGeneration(config)


MODELS = {"llava": llava, "blip2": blip2}
ENGINES = [f"{name} {target}" for name in MODELS for target in ("openvino", "torch")]
PROCESSOR = {
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.25, 0.3, 0.2],
    "resample": 3,
    "size": {"height": SIZE, "width": SIZE, "shortest_edge": SIZE},
    "crop_size": {"height": SIZE, "width": SIZE},
}


def shaken(model: PreTrainedModel) -> PreTrainedModel:
    """Random everywhere, norms and biases as well: what is zero or one hides mistakes."""
    for tensor in model.parameters():
        tensor.data += 0.1 * torch.randn_like(tensor)
    return model.eval()


def built(folder: Path, name: str, model: PreTrainedModel, target: str, *options: str) -> Engine:
    """The engine of a model, by the builder's own command."""
    (folder / "weights").mkdir()
    (folder / "weights" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return Engine(target, exported(target, name, model, folder, *options))


@pytest.fixture(scope="module", autouse=True)
def without_gradients() -> Iterator[None]:
    """For transformers' models, and none of another module's."""
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", params=ENGINES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PreTrainedModel, Engine]:
    """transformers' model, and our engine."""
    torch.manual_seed(11)
    name, target = request.param.split()
    model = shaken(MODELS[name]())
    return model, built(tmp_path_factory.mktemp(name), name, model, target)


def rows_of(model: PreTrainedModel, pixels: NDArray[np.float32]) -> torch.Tensor:
    """transformers' rows of the table, [pictures * rows, width]."""
    found = model.get_image_features(torch.from_numpy(pixels)).pooler_output
    return torch.cat(list(found))


def test_rows_equal_transformers(pair: tuple[PreTrainedModel, Engine]) -> None:
    """Of one picture and of several at once."""
    model, engine = pair
    pixels = np.random.default_rng(3).standard_normal((5, 3, SIZE, SIZE)).astype(np.float32)
    encoder, rows = engine.encoder(), PicturePrompt.load(engine.folder).rows
    for some in (pixels[:1], pixels):
        ours, theirs = encoder.encode(pixels=some), rows_of(model, some).numpy()
        assert ours.shape == (len(some), rows, 64)
        np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, atol=2e-4 * np.abs(theirs).max())


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_the_q_former_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str) -> None:
    """Queries and Q-Former stay float32 among halves, on file and in memory; rows are as near to the exact
    ones as those of transformers in that precision.
    """
    from serving.engine.torch import encoder
    from serving.engine.torch.device import Device

    torch.manual_seed(13)
    model, dtype = shaken(blip2()), getattr(torch, precision)
    engine = built(tmp_path, "blip2", model, "torch", "--precision", precision)
    exact = load_file(engine.folder / encoder.PICTURE_WEIGHTS)
    monkeypatch.setattr(Device, "find", lambda _: Device("cpu", dtype))
    made = encoder.TorchEncoder(engine.folder, {"precision": precision}, "picture")
    for state in (exact, made.model.state_dict()):
        halves = {name.partition(".")[0] for name, tensor in state.items() if tensor.dtype == dtype}
        assert halves == {"seen", "project"}
    pixels = np.random.default_rng(3).standard_normal((5, 3, SIZE, SIZE)).astype(np.float32)
    wanted = rows_of(model, pixels)
    half = Blip2ForConditionalGeneration.from_pretrained(tmp_path / "weights", dtype=dtype)
    theirs = torch.cat(list(half.get_image_features(torch.from_numpy(pixels).to(dtype)).pooler_output))
    ours = torch.from_numpy(made.encode(pixels=pixels)).view_as(wanted)
    assert (ours - wanted).norm() <= 1.1 * (theirs - wanted).norm()
    assert (ours - theirs).norm() <= 1.5 * (theirs - wanted).norm()


@pytest.mark.parametrize("target", ["openvino", "torch"])
def test_what_is_summarized(tmp_path: Path, target: str) -> None:
    """`vision_feature_select_strategy: full` and another layer: the summary is a row, too."""
    torch.manual_seed(12)
    model = shaken(llava(vision_feature_layer=-1, vision_feature_select_strategy="full"))
    engine = built(tmp_path, "llava", model, target)
    pixels = np.random.default_rng(3).standard_normal((2, 3, SIZE, SIZE)).astype(np.float32)
    theirs = rows_of(model, pixels).numpy()
    ours = engine.encoder().encode(pixels=pixels)
    assert ours.shape[1] == PicturePrompt.load(engine.folder).rows == 17
    np.testing.assert_allclose(ours.reshape(theirs.shape), theirs, atol=2e-4 * np.abs(theirs).max())


def questions(count: int, rows: int, *, many: bool) -> list[Question]:
    """Ids of mixed lengths with a picture, with two (`many`), or with none."""
    rng, numbers = random.Random(5), np.random.default_rng(5)
    made: list[Question] = []
    for i in range(count):
        ids = [rng.randrange(3, PLACEHOLDER) for _ in range(rng.choice([1, 2, 5, 9, 17]))]
        pictures = (1, 1, 0, 2 if many else 1)[i % 4]
        for _ in range(pictures):
            at = rng.randrange(len(ids) + 1) if many else 0
            ids[at:at] = [PLACEHOLDER] * rows
        pixels = numbers.standard_normal((pictures, 3, SIZE, SIZE)).astype(np.float32)
        made.append((ids, pixels if pictures else None))
    return made


def theirs_of(model: Any, question: Question, beams: int) -> list[int]:
    """transformers' generate."""
    ids, pixels = question
    tokens, text = torch.tensor([ids]), model.config.text_config
    end, pad = text.eos_token_id, text.pad_token_id
    config = GenerationConfig(
        num_beams=beams, do_sample=False, max_new_tokens=LONGEST, eos_token_id=end, pad_token_id=pad
    )
    blip = isinstance(model, Blip2ForConditionalGeneration)
    decoder = model.language_model if blip and pixels is None else model
    seen = {} if pixels is None else {"pixel_values": torch.from_numpy(pixels)}
    made = decoder.generate(
        input_ids=tokens, attention_mask=torch.ones_like(tokens), generation_config=config, **seen
    )[0].tolist()
    made = made[len(ids) :] if made[: len(ids)] == ids else made
    return made[: made.index(end)] if end in made else made


def inputs(
    model: PreTrainedModel, question: Question, encoder: EncoderRuntime, beams: int
) -> dict[str, NDArray[Any]]:
    """The engine's own tensors; a table in float32 is exact, Triton's is in float16."""
    ids, pixels = question
    numbered = np.array(ids)
    holes = numbered == model.config.image_token_id
    numbered[holes] = model.config.text_config.vocab_size + np.arange(holes.sum())
    arrays: dict[str, NDArray[Any]] = {
        "input_ids": numbered[None].astype(np.int32),
        "input_lengths": np.array([[len(ids)]], np.int32),
        "request_output_len": np.array([[LONGEST]], np.int32),
        "beam_width": np.array([[beams]], np.int32),
    }
    if pixels is not None:
        table = encoder.encode(pixels=pixels)
        table = table.reshape(1, -1, table.shape[-1])
        arrays["prompt_embedding_table"] = table
        arrays["prompt_vocab_size"] = np.array([[table.shape[1]]], np.int32)
        arrays["prompt_table_extra_ids"] = holes[None].astype(np.uint64)
    return arrays


def answers(engine: Runtime, asked: Sequence[dict[str, NDArray[Any]]], rows: int) -> list[list[int]]:
    """All of them by one scheduler of so many rows."""
    jobs = [parse(arrays, Collected(), engine.facts) for arrays in asked]
    return engines.answers(engine, jobs, max_rows=rows)


@pytest.mark.parametrize(("rows", "beams"), [(1, 4), (8, 1), (8, 4)])
def test_ids_equal_transformers(pair: tuple[PreTrainedModel, Engine], rows: int, beams: int) -> None:
    """Pictures alone, and alongside texts in a batch that requests join and leave."""
    model, built = pair
    engine, encoder = built.runtime(), built.encoder()
    prompt = PicturePrompt.load(built.folder)
    asked = questions(ASKED if rows > 1 else 8, prompt.rows, many=not prompt.leads)
    ours = answers(engine, [inputs(model, one, encoder, beams) for one in asked], rows * beams)
    assert ours == [theirs_of(model, one, beams) for one in asked]
    assert len({tuple(ids) for ids in ours}) > len(ours) // 2, (
        "they say different things to different pictures"
    )


def test_another_picture_is_another_answer(pair: tuple[PreTrainedModel, Engine]) -> None:
    """The same ids with 16 tables, four at once: each answer is its own table's, as when it is asked alone,
    also where prompts are long enough to be known by their ids.
    """
    model, built = pair
    engine, encoder = built.runtime(), built.encoder()
    rows = PicturePrompt.load(built.folder).rows
    numbers = np.random.default_rng(9)
    ids = [PLACEHOLDER] * rows + list(range(7, 42))
    asked = [
        inputs(model, (ids, numbers.standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)), encoder, 1)
        for _ in range(16)
    ]
    together = answers(engine, asked, 4)
    assert together == [answers(engine, [one], 1)[0] for one in asked]
    assert len({tuple(one) for one in together}) > 8
