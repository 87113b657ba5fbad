"""The way of a GPU, on a CPU: weights from a hub, TensorRT-LLM's tools and backend as stand-ins, everything
else as it is.

Nothing here says that TensorRT-LLM runs; it says that Conch asks it for what its contract allows, and serves
what comes of it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc
from numpy.typing import NDArray

from tests.fakes.hub import serving
from tests.fakes.nvidia_image import environment
from tests.ports import first_port

from .clients import RECORDINGS, events, grpc_inputs, infer, tensors, wave
from .conftest import ROOT, Stack, build_engines, restarted, until
from .gpus import gpu_machine, served

PORT, TP_PORT = first_port("trtllm"), first_port("trtllm-tp")
MODEL = (
    "distil-large-v3"  # on the hub of this test it is the miniature; its layout has a converter of its own
)

DEMO = (RECORDINGS / "demo.flac").read_bytes()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """After `make engines`, with weights from a hub."""
    variables = gpu_machine(tmp_path_factory.mktemp("trtllm"), MODEL, "mini-whisper", PORT)
    files = {path.name: path.read_bytes() for path in (ROOT / "miniatures/whisper").iterdir()}
    with serving({"distil-whisper/distil-large-v3": files}) as hub:
        build_engines({**variables, "HF_ENDPOINT": hub.url})
    yield variables


@pytest.fixture(scope="module")
def gpu_stack(built: dict[str, str]) -> Iterator[Stack]:
    """Two instances, each with a pair of GPUs, behind nginx."""
    with served(built) as stack:
        yield stack


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The T5 miniature with TP_SIZE=2: one server for each GPU of a pair, the first of which listens."""
    variables = {
        **gpu_machine(tmp_path_factory.mktemp("pairs"), "mini-t5", "mini-t5", TP_PORT),
        "TP_SIZE": "2",
    }
    build_engines(variables)
    with served(variables) as stack:
        time.sleep(4)  # nginx leaves a server alone for 3 s that refused a connection while it started
        yield stack


def test_an_answer_through_nginx(gpu_stack: Stack, recordings: dict[str, dict[str, Any]]) -> None:
    """The miniature's words, by way of the hub, two converters, trtllm-build, the image's template and the
    backend's tensors.
    """
    answer = gpu_stack.transcribe(DEMO, model=MODEL)
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"] == recordings["demo.flac"]["text"]


def test_a_stream_through_nginx(gpu_stack: Stack, recordings: dict[str, dict[str, Any]]) -> None:
    """The backend sends what is new; the façade and the gateway make the same text of it."""
    form = {"model": MODEL, "stream": "true", "include[]": "logprobs"}
    found = events(gpu_stack.transcribe(DEMO, **form))
    deltas = [event["delta"] for event in found if event["type"] == "transcript.text.delta"]
    assert "".join(deltas) == recordings["demo.flac"]["text"]
    assert found[-1]["type"] == "transcript.text.done"
    probs = [row["logprob"] for row in found[-1]["logprobs"]]
    assert all(-20 < prob <= 0 for prob in probs)
    assert min(probs) < -1e-6, "normalised among the likeliest token alone, each would be 0"


def _heard(stack: Stack, **scalars: Any) -> dict[str, Any]:
    """whisper_bls by gRPC, with what the façade says about how sure it is."""
    arrays = {name: np.array([[value]], dtype) for name, (value, dtype) in scalars.items()}
    prompt = "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>"
    names = ("TRANSCRIPTS", "AVG_LOGPROB", "TOKEN_LOGPROBS")
    wanted = [grpc.InferRequestedOutput(name) for name in names]
    with grpc.InferenceServerClient(stack.grpc) as client:
        inputs = grpc_inputs(wave("order.wav"), prompt, **arrays)
        answer = client.infer("whisper_bls", inputs, outputs=wanted)
    return {name: answer.as_numpy(name) for name in names}


def test_confidence_is_the_models_at_any_temperature(gpu_stack: Stack) -> None:
    """TensorRT-LLM's log probabilities at a low temperature are nearly 0; the façade's are those of the
    model, so that temperatures can be compared. Temperature 0 is greedy.
    """
    greedy = _heard(gpu_stack)
    cold = _heard(gpu_stack, TEMPERATURE=(0.1, np.float32), SEED=(3, np.uint64))
    zero = _heard(gpu_stack, TEMPERATURE=(0.0, np.float32))
    assert zero["TRANSCRIPTS"] == greedy["TRANSCRIPTS"] == cold["TRANSCRIPTS"]
    assert cold["TOKEN_LOGPROBS"] == pytest.approx(greedy["TOKEN_LOGPROBS"], abs=1e-3)
    assert cold["AVG_LOGPROB"].item() == pytest.approx(greedy["AVG_LOGPROB"].item(), abs=5e-3)
    assert (zero["TOKEN_LOGPROBS"] == greedy["TOKEN_LOGPROBS"]).all()


def test_words_have_no_times_here(gpu_stack: Stack) -> None:
    """TensorRT-LLM gives no cross-attention; the refusal says so."""
    form = {"model": MODEL, "response_format": "verbose_json", "timestamp_granularities[]": "word"}
    answer = gpu_stack.transcribe(DEMO, **form)
    assert answer.status_code == 400, answer.text
    assert "word" in answer.json()["error"]["message"]


def words(stack: Stack, text: str, instance: str = "") -> str:
    """What the model makes of a text."""
    url = f"{stack.kserve}{instance}/v2/models/ensemble/generate"
    answer = httpx.post(url, json={"text_input": text, "max_tokens": 24}, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text_output"])


def ranks(index: int) -> dict[int, int]:
    """Processes of the tritonservers of an instance by rank."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = dict(part.split("=", 1) for part in path.read_text().split("\0") if "=" in part)
            command = (path.parent / "cmdline").read_text()
        except OSError:
            continue
        if (
            "OMPI_COMM_WORLD_RANK" in variables
            and "tritonserver\0" in command
            and variables.get("CUDA_VISIBLE_DEVICES") == ("0,1", "2,3")[index]
        ):
            found[int(variables["OMPI_COMM_WORLD_RANK"])] = int(path.parent.name)
    return found


def test_tensor_parallel_pairs_answer(pairs: Stack) -> None:
    """Two instances with two ranks each: the same words from both, by nginx and by each instance's own path;
    only rank 0 has listeners.
    """
    text = "summarize: The mayor opened a new bridge in the harbour on Monday."
    answers = {words(pairs, text), words(pairs, text, "/instances/0"), words(pairs, text, "/instances/1")}
    assert len(answers) == 1
    assert answers != {""}
    for i, gpus in enumerate(("0,1", "2,3")):
        log = pairs.log(f"triton-{i}")
        for rank in (0, 1):
            assert re.search(rf"contract backend: rank {rank} of 2, CUDA_VISIBLE_DEVICES={gpus}$", log, re.M)
        assert sorted(ranks(i)) == [0, 1]
        assert log.count("Started HTTPService") == 1


def test_completions_over_pairs(pairs: Stack) -> None:
    """OpenAI's dialect, whole and streamed, says what the ensemble says."""
    text = "summarize: The mayor opened a new bridge in the harbour on Monday."
    body = {"model": "mini-t5", "prompt": text, "max_tokens": 24, "temperature": 0}
    whole = httpx.post(f"{pairs.url}/v1/completions", json=body, timeout=60)
    assert whole.status_code == 200, whole.text
    streamed = httpx.post(f"{pairs.url}/v1/completions", json={**body, "stream": True}, timeout=60)
    pieces = [event["choices"][0]["text"] for event in events(streamed)]
    assert "".join(pieces) == whole.json()["choices"][0]["text"] == words(pairs, text)


IDS: dict[str, tuple[str, list[list[Any]]]] = {
    "input_ids": ("INT32", [[5, 6, 7, 1]]),
    "input_lengths": ("INT32", [[4]]),
    "request_output_len": ("INT32", [[3]]),
}


def test_requests_that_name_one_output(pairs: Stack) -> None:
    """The backend insists on two more; the client gets what it named."""
    answer = infer(pairs.kserve, "tensorrt_llm", IDS, outputs=[{"name": "sequence_length"}])
    assert answer.status_code == 200, answer.text
    assert [row["name"] for row in answer.json()["outputs"]] == ["sequence_length"]


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_texts_of_different_length_in_one_request(pairs: Stack, model: str) -> None:
    """Each says what it says alone: no row reads another's padding."""
    texts = ["summarize: The mayor opened a new bridge in the harbour on Monday.", "sort: lamp kitchen boat"]
    answer = infer(
        pairs.kserve,
        model,
        {"text_input": ("BYTES", [[text] for text in texts]), "max_tokens": ("INT32", [[24], [24]])},
    )
    assert answer.status_code == 200, answer.text
    found = next(row["data"] for row in answer.json()["outputs"] if row["name"] == "text_output")
    assert found == [words(pairs, text) for text in texts]


def test_a_text_ends_before_its_stop_word(pairs: Stack) -> None:
    """TensorRT-LLM leaves the word at the end of the text; whole and streamed, by every façade, it is cut
    off.
    """
    ask = {"text_input": "sort: lamp kitchen boat", "max_tokens": 24, "stop_words": ["lamp"]}
    models = f"{pairs.kserve}/v2/models"
    for model in ("ensemble", "tensorrt_llm_bls"):
        whole = httpx.post(f"{models}/{model}/generate", json=ask, timeout=60)
        assert whole.json()["text_output"].strip() == "boat kitchen"
    url = f"{models}/tensorrt_llm_bls_stream/generate_stream"
    streamed = events(httpx.post(url, json={**ask, "stream": True}, timeout=60))
    assert "".join(event["text_output"] for event in streamed).strip() == "boat kitchen"


def test_logits_beyond_shared_memory_are_refused(pairs: Stack) -> None:
    """200 MB in one response; the sentence says how many tokens fit."""
    asked = {
        "text_input": ("BYTES", [["sort: a b"]] * 8),
        "max_tokens": ("INT32", [[1020]] * 8),
        "return_generation_logits": ("BOOL", [[True]] * 8),
    }
    answer = infer(pairs.kserve, "tensorrt_llm_bls", asked)
    assert answer.status_code == 400, answer.text
    assert "MiB; ask for" in answer.json()["error"]


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"end_id": ("INT32", [[99999]])}, "EndId (99999) is not within acceptable range"),
        ({"runtime_top_p": ("FP32", [[2.0]])}, "topP.value() <= 1.f"),
        ({"beam_width": ("INT32", [[4]])}, "beam_width is 4, this deployment serves 1"),
        ({"early_stopping": ("BOOL", [[True]])}, "early_stopping is not supported by this release"),
        ({"runtime_top_p_min": ("FP32", [[0.1]])}, "runtime_top_p_min is not supported by this release"),
        ({"return_context_logits": ("BOOL", [[True]])}, "gather_context_logits"),
        ({"embedding_bias": ("FP32", [[0.0] * 7])}, "embedding bias shape"),
        (
            {"decoder_input_ids": ("INT32", [[0] * 70])},
            "Prompt length (70) exceeds maximum input length (64)",
        ),
    ],
)
def test_tensorrt_llms_refusals_are_400s(
    pairs: Stack, inputs: dict[str, tuple[str, list[list[Any]]]], says: str
) -> None:
    """In its own words, without its backtrace; in ours where it would answer nonsense or say nothing."""
    answer = infer(pairs.kserve, "tensorrt_llm", {**IDS, **inputs})
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]
    assert "jenkins" not in answer.text


def test_more_than_32_requests_run_at_once(pairs: Stack) -> None:
    """The Python backend's default pool of 32 threads would hold the others up."""
    ask = {"text_input": "summarize: The mayor opened a new bridge.", "max_tokens": 24, "min_tokens": 24}
    url = f"{pairs.kserve}/instances/0/v2/models/tensorrt_llm_bls/generate"
    with ThreadPoolExecutor(60) as threads:
        answers = list(threads.map(lambda _: httpx.post(url, json=ask, timeout=120), range(60)))
    assert {answer.status_code for answer in answers} == {200}
    inside = re.findall(r"contract backend: (\d+) requests inside", pairs.log("triton-0"))
    assert max(map(int, inside)) > 40


def _unary(stack: Stack, model: str, **inputs: NDArray[Any]) -> Any:
    """A gRPC call that can be cancelled."""
    client = grpc.InferenceServerClient(stack.grpc)
    return client, client.async_infer(model, tensors(grpc, **inputs), callback=lambda *_: None)


def stopped_requests(stack: Stack) -> int:
    return sum(stack.log(f"triton-{i}").count("was cancelled after") for i in (0, 1))


@pytest.mark.parametrize("model", ["tensorrt_llm", "tensorrt_llm_bls"])
def test_an_abandoned_request_stops_in_the_engine(pairs: Stack, model: str) -> None:
    """A unary one, without an id of the client's: the engine does not make 900 tokens for nobody. (`ensemble`
    cannot be stopped within a step: Triton's own scheduler tells its steps nothing.)
    """
    before = stopped_requests(pairs)
    many = np.array([[900]], np.int32)
    text = {"text_input": np.array([[b"sort: lamp kitchen boat"]], object), "max_tokens": many}
    ids = {
        "input_ids": np.array([[5, 6, 7, 1]], np.int32),
        "input_lengths": np.array([[4]], np.int32),
        "request_output_len": many,
    }
    client, call = _unary(pairs, model, min_tokens=many, **(ids if model == "tensorrt_llm" else text))
    time.sleep(0.5)
    call.cancel()
    until("it stops", lambda: stopped_requests(pairs) > before, 5)
    client.close()


def test_a_lost_rank_restarts_its_instance(pairs: Stack) -> None:
    """Rank 1 dies: its instance is ended whole and comes back, while the other answers everything."""
    before, text = ranks(1), "summarize: The mayor opened a new bridge."
    os.kill(before[1], signal.SIGKILL)

    def back() -> bool:
        assert words(pairs, text)
        return len(ranks(1)) == 2 and not set(ranks(1).values()) & set(before.values())

    until("both ranks are new", back, 60)
    ready = f"{pairs.kserve}/instances/1/v2/models/ensemble/ready"
    until("it is ready", lambda: httpx.get(ready, timeout=30).status_code == 200, 60)
    assert words(pairs, text, "/instances/1")


def test_every_rank_stops(pairs: Stack) -> None:
    """A planned restart drains rank 0, and no process of the old ranks stays."""
    before = ranks(0)
    assert pairs.home
    done = restarted(pairs, MODEL_ID="mini-t5", **environment(pairs.home.parent / "image"))
    assert done.returncode == 0, done.stderr
    after = ranks(0)
    assert sorted(after) == [0, 1]
    assert not set(after.values()) & set(before.values())
    assert words(pairs, "summarize: The mayor opened a new bridge.")
