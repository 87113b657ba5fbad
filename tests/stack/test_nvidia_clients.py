"""The requests of NVIDIA's and sherpa's own clients, written again from what they send, to both targets:
OpenVINO engines, and the strict stand-in of TensorRT-LLM's backend under the same façades. The two must say
the same.

inflight_batcher_llm_client.py and end_to_end_test.py (tensorrtllm_backend), tools/whisper/client.py,
yuekaizhang/Triton-ASR-Client's client.py.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as aio
import tritonclient.http as http
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tests.ports import first_port

from .clients import tensors, wave
from .conftest import ROOT, TEXT_MODELS, Stack, build_engines
from .gpus import gpu_machine, served

PORT = first_port("nvidia-clients")
PROMPT = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
TEXTS = {
    "mini-t5": [
        "summarize: The mayor opened a new bridge in the harbour on Monday.",
        "sort: lamp kitchen boat",
    ],
    "mini-bart": ["The mayor opened a new bridge in the harbour.", "On Monday"],
    "mini-gpt2": ["On Monday the old mayor opened a new bridge in the", "On"],
}
IDS = {"mini-t5": (1, 0), "mini-bart": (2, 1), "mini-gpt2": (1999, 1999)}  # end, pad


@pytest.fixture(scope="module")
def contract_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The four miniatures with TARGET=trtllm, a GPU each."""
    gpus = {f"TRITON_{i}_GPUS": str(i) for i in range(4)}
    variables = gpu_machine(
        tmp_path_factory.mktemp("contract"), TEXT_MODELS, "{model}", PORT, **gpus, INSTANCES="4"
    )
    build_engines(variables)
    with served(variables) as stack:
        yield stack


@pytest.fixture(scope="module", params=["openvino", "trtllm"])
def target(request: pytest.FixtureRequest) -> Stack:
    stack: Stack = request.getfixturevalue("text_stack" if request.param == "openvino" else "contract_stack")
    return stack


def one(value: Any, dtype: Any) -> NDArray[Any]:
    return np.array([[value]], dtype)


def to(model: str) -> dict[str, str]:
    """Which of several models: gRPC metadata."""
    return {"x-model-id": model}


def tokenizer(model: str) -> Tokenizer:
    return Tokenizer.from_file(str(ROOT / "miniatures" / model.removeprefix("mini-") / "tokenizer.json"))


def engine_inputs(model: str, text: str, *, tokens: int = 16, streaming: bool = False) -> list[Any]:
    """What inflight_batcher_llm_client.py sends: every scalar [1, 1], top_p 0 next to top_k 1."""
    ids, (end, pad) = tokenizer(model).encode(text).ids, IDS[model]
    arrays = {
        "input_ids": np.array([ids], np.int32),
        "input_lengths": one(len(ids), np.int32),
        "request_output_len": one(tokens, np.int32),
        "beam_width": one(1, np.int32),
        "temperature": one(1.0, np.float32),
        "streaming": one(streaming, bool),
        "end_id": one(end, np.int32),
        "pad_id": one(pad, np.int32),
        "runtime_top_k": one(1, np.int32),
        "runtime_top_p": one(0.0, np.float32),
        "return_log_probs": one(True, bool),
    }
    return tensors(grpc, **arrays)


def sent(client: Any, model: str, inputs: list[Any], **options: Any) -> queue.Queue[Any]:
    """`async_infer` with a callback, as the client does it."""
    results: queue.Queue[Any] = queue.Queue()
    client.async_infer(
        "tensorrt_llm",
        inputs,
        callback=lambda result, error: results.put(error or result),
        headers=to(model),
        **options,
    )
    return results


def answered(client: Any, model: str, inputs: list[Any], **options: Any) -> Any:
    found = sent(client, model, inputs, **options).get(timeout=60)
    assert not isinstance(found, Exception), found
    return found


def ids_of(answer: Any) -> list[int]:
    """Of the only row's only beam."""
    ids: list[int] = answer.as_numpy("output_ids")[0, 0, : answer.as_numpy("sequence_length")[0, 0]].tolist()
    return ids


@pytest.mark.parametrize("model", list(TEXTS))
def test_inflight_batcher_llm_client(target: Stack, model: str) -> None:
    """Ids in, ids out; decoder ids and their lengths are left out, as by that client."""
    with grpc.InferenceServerClient(target.grpc) as client:
        result = answered(
            client,
            model,
            engine_inputs(model, TEXTS[model][0]),
            request_id="1",
            parameters={"Streaming": False},
        )
        length = int(result.as_numpy("sequence_length")[0][0])
        assert 0 < length <= 16
        assert result.as_numpy("output_ids").shape[:2] == (1, 1)
        probs = result.as_numpy("output_log_probs")[0, 0, :length]
        assert (probs <= 0).all()
        assert probs.min() < -1e-6, "log probabilities among one token would all be 0"
        assert result.as_numpy("sequence_index") is None


@pytest.mark.parametrize("model", ["mini-t5", "mini-gpt2"])
def test_inflight_batcher_llm_client_streams(target: Stack, model: str) -> None:
    """With --streaming, to the decoupled face: responses carry what is new, and add up to the whole. (Without
    decoder ids TensorRT-LLM itself begins BART with the padding token; the unary face and the façades begin
    it as it was trained.)
    """
    with grpc.InferenceServerClient(target.grpc) as client:
        expected = ids_of(answered(client, model, engine_inputs(model, TEXTS[model][0])))
        results: queue.Queue[Any] = queue.Queue()
        client.start_stream(callback=lambda result, error: results.put(error or result), headers=to(model))
        client.async_stream_infer(
            "tensorrt_llm_stream", engine_inputs(model, TEXTS[model][0], streaming=True), request_id="7"
        )
        client.stop_stream()
    ids: list[int] = []
    while not results.empty():
        result = results.get()
        assert not isinstance(result, Exception), result
        if result.as_numpy("output_ids") is not None and result.as_numpy("sequence_length")[0][0] > 0:
            ids += result.as_numpy("output_ids")[0][0].tolist()
    assert ids == expected


def stop_signals() -> list[Any]:
    """A request that stops another: shapes alone matter."""
    arrays = {
        "input_ids": one(0, np.int32),
        "input_lengths": one(0, np.int32),
        "request_output_len": one(0, np.int32),
        "stop": one(True, bool),
    }
    return tensors(grpc, **arrays)


def test_inflight_batcher_llm_client_stops(target: Stack, request: pytest.FixtureRequest) -> None:
    """--stop-after-ms: the stop request is answered, and the stopped one ends with the tokens so far
    (TensorRT-LLM's backend: early, with an empty answer or an error of its own); the id may be used again at
    once, as upstream's own tests do.
    """
    model = "mini-gpt2"
    inputs = [
        *engine_inputs(model, TEXTS[model][0], tokens=400),
        *tensors(grpc, min_tokens=one(400, np.int32)),
    ]
    with grpc.InferenceServerClient(target.grpc) as client:
        results = sent(client, model, inputs, request_id="55")
        answered(client, model, engine_inputs(model, TEXTS[model][0], tokens=4))  # begun later, so 55 runs
        answered(client, model, stop_signals(), request_id="55")
        ended = results.get(timeout=20)
        lengths = None if isinstance(ended, Exception) else ended.as_numpy("sequence_length")
        if request.node.callspec.params["target"] == "openvino":
            assert lengths is not None, ended
            assert lengths[0][0] > 0
        assert lengths is None or lengths[0][0] < 400
        again = answered(client, model, engine_inputs(model, TEXTS[model][0], tokens=8), request_id="55")
        assert int(again.as_numpy("sequence_length")[0][0]) > 0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", list(TEXTS))
def test_end_to_end_test(target: Stack, model: str, protocol: str) -> None:
    """preprocessing, tensorrt_llm and postprocessing one after the other say what `ensemble` and
    `tensorrt_llm_bls` say at once, of one text and of several of different lengths.
    """
    library: Any = http if protocol == "http" else grpc
    client = library.InferenceServerClient(
        (target.kserve if protocol == "http" else target.grpc).removeprefix("http://")
    )
    for i, texts in enumerate((TEXTS[model][:1], TEXTS[model])):
        say = {"headers": to(model), "request_id": str(i)}
        words, length = np.array([texts], object).T, np.full((len(texts), 1), 20, np.int32)
        none = np.full((len(texts), 1), "", object)
        given = {
            "QUERY": words,
            "BAD_WORDS_DICT": none,
            "STOP_WORDS_DICT": none,
            "REQUEST_OUTPUT_LEN": length,
        }
        before = client.infer("preprocessing", tensors(library, **given), **say)
        names = {
            "input_ids": "INPUT_ID",
            "decoder_input_ids": "DECODER_INPUT_ID",
            "input_lengths": "REQUEST_INPUT_LEN",
            "request_output_len": "REQUEST_OUTPUT_LEN",
            "end_id": "OUT_END_ID",
            "pad_id": "OUT_PAD_ID",
        }
        engine = client.infer(
            "tensorrt_llm",
            tensors(library, **{name: before.as_numpy(theirs) for name, theirs in names.items()}),
            **say,
        )
        ids = {
            "TOKENS_BATCH": engine.as_numpy("output_ids").astype(np.int32),
            "SEQUENCE_LENGTH": engine.as_numpy("sequence_length"),
        }
        by_hand = client.infer("postprocessing", tensors(library, **ids), **say).as_numpy("OUTPUT")
        asked = {"text_input": words, "max_tokens": length, "bad_words": none, "stop_words": none}
        for facade in ("ensemble", "tensorrt_llm_bls"):
            outputs = [library.InferRequestedOutput("text_output")]
            at_once = client.infer(
                facade,
                tensors(library, **asked),
                outputs=outputs,
                **say,
            )
            assert at_once.as_numpy("text_output").ravel().tolist() == by_hand.ravel().tolist()
        assert by_hand.ravel()[0].decode().strip()


def test_both_targets_say_the_same(text_stack: Stack, contract_stack: Stack) -> None:
    """Ids of the portable engine and of the stand-in, which share no code but the graphs. GPT-2 goes on
    freely: where two words are nearly as likely, the portable engine's bfloat16 may decide otherwise than the
    stand-in's float32.
    """
    for model, texts in TEXTS.items():
        said = []
        for stack in (text_stack, contract_stack):
            with grpc.InferenceServerClient(stack.grpc) as client:
                said.append([ids_of(answered(client, model, engine_inputs(model, text))) for text in texts])
        sure, kept = (slice(None), len(texts)) if model != "mini-gpt2" else (slice(5), 1)
        assert [ids[sure] for ids in said[0][:kept]] == [ids[sure] for ids in said[1][:kept]], model


def padded(name: str) -> tuple[NDArray[np.float32], int]:
    """Sound in a multiple of ten seconds, as both speech clients send it."""
    sound = wave(name)
    samples = np.zeros((1, 10 * 16000 * (int(len(sound) / 16000) // 10 + 1)), np.float32)
    samples[0, : len(sound)] = sound
    return samples, len(sound)


async def transcript(stack: Stack, model: str, *, lengths: bool, task: int) -> str:
    samples, count = padded("demo.flac")
    async with aio.InferenceServerClient(stack.grpc) as client:
        arrays = {
            "WAV": samples,
            **({"WAV_LENS": one(count, np.int32)} if lengths else {}),
            "TEXT_PREFIX": np.array([[PROMPT]], object),
        }
        answer = await client.infer(
            model,
            tensors(aio, **arrays),
            request_id=str(100000000 + task * 10),
            outputs=[aio.InferRequestedOutput("TRANSCRIPTS")],
            headers=to("mini-whisper"),
        )
    found = answer.as_numpy("TRANSCRIPTS")[0]
    return (b" ".join(found) if isinstance(found, np.ndarray) else found).decode("utf-8")


@pytest.mark.parametrize(
    ("model", "lengths"), [("whisper_bls", True), ("infer_bls", False), ("whisper", False)]
)
async def test_whisper_clients(
    target: Stack, recordings: dict[str, dict[str, Any]], model: str, lengths: bool
) -> None:
    """tools/whisper/client.py sends WAV_LENS, Triton-ASR-Client none, under sherpa's two names; four tasks at
    once.
    """
    tasks = [transcript(target, model, lengths=lengths, task=n) for n in range(4)]
    assert set(await asyncio.gather(*tasks)) == {recordings["demo.flac"]["text"]}


def test_sherpas_data_set_client_reads_what_conch_reads(tmp_path: Path) -> None:
    """A folder of Triton-ASR-Client: wav.scp and trans.txt."""
    from scripts.clients.manifests import read

    (tmp_path / "wav").mkdir()
    (tmp_path / "wav/a.wav").write_bytes(b"")
    (tmp_path / "wav.scp").write_text("a wav/a.wav\n")
    (tmp_path / "trans.txt").write_text("a THE RED LAMP\n")
    (row,) = read(tmp_path)
    assert (row.name, row.text, row.path) == ("a", "THE RED LAMP", tmp_path / "wav/a.wav")
