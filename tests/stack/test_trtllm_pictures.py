"""Questions about pictures by the way of a GPU: TensorRT-LLM's tools and backend and TensorRT are stand-ins,
everything else is as it is. What test_pictures.py asks of the CPU's engine is asked again here.

mini-llava's engine shares cached blocks between requests (`kv_cache_reuse`), mini-blip2's does not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from openai import OpenAI
from tritonclient.utils import InferenceServerException

from miniatures.training.answers.evaluate import AnswerPair
from tests.ports import first_port

from ..fakes.pictures import noise, part, saved
from .clients import tensors
from .conftest import Stack, build_engines
from .gpus import gpu_machine, served
from .test_pictures import (
    LONGEST,
    MODEL,
    OTHER,
    answered,
    described,
    pairs,
    peers,
    said,
    test_answers_are_transformers,
    test_nvidias_client,
    test_one_question_about_forty_pictures,
    test_several_pictures_and_turns,
    test_turns,
)

PORT = first_port("trtllm-pictures")
MODELS = f"{MODEL},{OTHER}"
WIDTH, WORDS, MOST_ROWS = 192, 869, 3 * 144  # mini-llava's


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two instances of each model, each on a GPU of its own."""
    build_engines({**os.environ, "TARGET": "openvino", "MODEL_ID": MODELS})
    gpus = {"INSTANCES": "4", **{f"TRITON_{i}_GPUS": str(i) for i in range(4)}}
    variables = gpu_machine(tmp_path_factory.mktemp("pictures"), MODELS, "{model}", PORT, **gpus)
    build_engines(variables)
    config = Path(variables["ENGINES_DIR"]) / MODEL / "trtllm/repository/tensorrt_llm_stream/config.pbtxt"
    text, shares = re.subn(
        r'("enable_kv_cache_reuse"\s+value\s*\{\s+string_value: )"false"', r'\1"true"', config.read_text()
    )
    assert shares == 1
    config.write_text(text)
    with served(variables) as found:
        yield found


def to(pool: str) -> dict[str, str]:
    return {"x-model-id": pool}


def shared(stack: Stack) -> list[int]:
    """Blocks that each request about a picture had from others at the first instance, so far."""
    return [
        int(n) for n in re.findall(r"contract backend: (\d+) of \d+ blocks shared", stack.log("triton-0"))
    ]


def asked_first(stack: Stack, pair: AnswerPair) -> str:
    """The first instance's answer."""
    body = {
        "text_input": pair.question.text,
        "image_urls": [part(saved(pair.picture, "PNG"))["image_url"]["url"]],
        "max_tokens": LONGEST,
    }
    address = f"{stack.kserve}/instances/0/v2/models/tensorrt_llm_bls/generate"
    answer = httpx.post(address, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text_output"]).strip()


def test_cached_blocks_are_shared_by_equal_pictures_alone(stack: Stack, described: list[AnswerPair]) -> None:
    """The second request about a picture reads none of its rows again; the same question about another
    picture shares nothing.
    """
    first, second = described[-1], described[-2]
    before = len(shared(stack))
    answers = [asked_first(stack, pair) for pair in (first, first, second, second)]
    assert answers == [pair.question.answer for pair in (first, first, second, second)]
    counts = shared(stack)[before:]
    assert [counts[1] >= 4, counts[3] >= 4] == [True, True]
    # Not before the picture: fewer than a block's tokens stand there.
    fresh = saved(noise(50, 50), "PNG"), saved(noise(51, 51), "PNG")
    for data in fresh:
        body = {"text_input": "what?", "image_urls": [part(data)["image_url"]["url"]], "max_tokens": 1}
        address = f"{stack.kserve}/instances/0/v2/models/tensorrt_llm_bls/generate"
        assert httpx.post(address, json=body, timeout=60).status_code == 200
    assert shared(stack)[before:][4:] == [0, 0]


def engine(stack: Stack, model: str, pool: str, rows: int, width: int, ids: list[int]) -> None:
    """Ids with a table of zeros, straight to a face of the engine."""
    numbers = {"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [2], "end_id": [1]}
    arrays: dict[str, Any] = {name: np.array([row], np.int32) for name, row in numbers.items()}
    table = np.zeros((1, rows, width), np.float16)
    inputs = tensors(grpcclient, **arrays, prompt_embedding_table=table)
    with grpcclient.InferenceServerClient(stack.grpc) as triton:
        triton.infer(model, inputs, headers=to(pool))


@pytest.mark.parametrize(
    ("rows", "width", "token", "sentence"),
    [
        (
            MOST_ROWS + 1,
            WIDTH,
            5,
            rf"\[433, 192\]; this engine takes \[rows, 192\], {MOST_ROWS} rows at most",
        ),
        (4, WIDTH - 1, 5, r"\[4, 191\]; this engine takes"),
        (4, WIDTH, WORDS + 4, "input_ids has 873; this model has 869 words, and the request 4 rows"),
        (4, WIDTH, WORDS + 3, "Input token extra ids must be provided when enabling kv cache reuse"),
    ],
)
def test_tables_that_the_engine_would_misread(
    stack: Stack, rows: int, width: int, token: int, sentence: str
) -> None:
    """TensorRT-LLM would fail all that runs, or read another request's rows; the unary face refuses. The last
    is the engine's own sentence, where it shares blocks.
    """
    with pytest.raises(InferenceServerException, match=sentence) as refused:
        engine(stack, "tensorrt_llm", MODEL, rows, width, [0, token])
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_table_without_ids_of_its_own(stack: Stack) -> None:
    """Where nothing is shared, none are needed."""
    engine(stack, "tensorrt_llm", OTHER, 32, WIDTH, [868, 899, 5])


def test_several_pictures_are_seen_in_their_order(client: OpenAI, described: list[AnswerPair]) -> None:
    """Two pictures, then the same two the other way round and once more: cached blocks of one order are not
    taken for the other.
    """
    first, second = (part(saved(pair.picture, "PNG")) for pair in described[:2])

    def ask(*content: Any) -> str:
        return answered(client, [{"role": "user", "content": [*content, said("what is in the picture?")]}])

    once, other = ask(first, second), ask(second, first)
    assert [ask(first, second), ask(second, first)] == [once, other]
