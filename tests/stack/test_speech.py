"""The words come out, whichever listener is used."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as grpc

from serving.audio.log_mel import log_mel
from serving.audio.tokens import WhisperVocabulary

from .clients import RECORDINGS, grpc_inputs, overtakes, streamed, tensors, wave
from .conftest import ROOT, Stack

MINIATURE = ROOT / "miniatures" / "whisper"

Rows = dict[str, dict[str, Any]]


@pytest.mark.parametrize("name", ["order.wav", "telephone.wav", "demo.flac", "cocina.mp3", "letter.m4a"])
def test_sdk_json(client: openai.OpenAI, recordings: Rows, name: str) -> None:
    """The official SDK gets the words of every container, rate and channel count, in either language."""
    with (RECORDINGS / name).open("rb") as file:
        answer = client.audio.transcriptions.create(file=file, model="mini-whisper")
    assert answer.text == recordings[name]["text"]


def read_of_prompt(client: openai.OpenAI, prompt: str) -> tuple[str, int]:
    """The text of order.wav, and how many tokens the decoder read before it wrote."""
    with (RECORDINGS / "order.wav").open("rb") as file:
        events = client.audio.transcriptions.create(
            file=file, model="mini-whisper", prompt=prompt, language="en", stream=True
        )
        *_, last = events
    assert last.type == "transcript.text.done"
    assert last.usage
    assert last.usage.input_token_details
    return last.text, last.usage.input_token_details.text_tokens or 0


def test_a_prompt_is_earlier_text(client: openai.OpenAI, recordings: Rows) -> None:
    """The model reads the previous text; the words of this recording stay."""
    earlier = recordings["letter.m4a"]["text"]
    text, plain = read_of_prompt(client, "")
    same, prompted = read_of_prompt(client, earlier)
    assert text == same == recordings["order.wav"]["text"]
    assert prompted >= plain + len(earlier.split())


def test_long_prompt_is_shortened_to_its_end(client: openai.OpenAI) -> None:
    """A prompt beyond the context is no error: as with OpenAI, its last tokens count, up to half the
    decoder's positions. (So much of it misleads the miniature.)
    """
    (_, short), (_, long) = (read_of_prompt(client, "Hugo has ten keys. " * count) for count in (1, 400))
    assert short < long <= 448 // 2 + 4


def test_grpc_through_nginx(stack: Stack, recordings: Rows) -> None:
    """A plain tritonclient gets the words from whisper_bls and infer_bls through port 8001."""
    client = grpc.InferenceServerClient(stack.grpc)
    for model in ("whisper_bls", "infer_bls"):
        result = client.infer(model, grpc_inputs(wave("demo.flac")), client_timeout=60).as_numpy(
            "TRANSCRIPTS"
        )
        assert result.shape == (1,), "upstream's clients join this array"
        assert result[0].decode() == recordings["demo.flac"]["text"]


def test_batch_of_mixed_lengths(stack: Stack, recordings: Rows) -> None:
    """Several rows in one request, with WAV_LENS and a prompt for each."""
    names = ["order.wav", "demo.flac"]
    sounds = [wave(name) for name in names]
    longest = max(map(len, sounds))
    padded = np.stack([np.pad(sound, (0, longest - len(sound))) for sound in sounds])
    result = grpc.InferenceServerClient(stack.grpc).infer(
        "whisper_bls", grpc_inputs(padded, lengths=list(map(len, sounds))), client_timeout=60
    )
    assert [text.decode() for text in result.as_numpy("TRANSCRIPTS")] == [
        recordings[name]["text"] for name in names
    ]


def test_stream_carries_the_text_so_far(stack: Stack, recordings: Rows) -> None:
    """whisper_bls_stream: each response extends the one before, the first arrives before the last is made."""
    texts = streamed(stack, "whisper_bls_stream", grpc_inputs(wave("demo.flac")), "TRANSCRIPTS")
    assert len(texts) > 2
    assert texts[-1] == recordings["demo.flac"]["text"]
    assert all(later.startswith(earlier.rstrip("\ufffd")) for earlier, later in itertools.pairwise(texts))


def test_short_request_overtakes_a_long_one(stack: Stack) -> None:
    """While a request of hundreds of tokens runs, any that come, a short one that came later on the same
    instance finishes first.
    """
    infer: dict[str, Callable[[], object]] = {}
    with contextlib.ExitStack() as clients:
        for name, (tokens, seconds, temperature) in {"long": (440, 25, 100.0), "short": (3, 2, 0.0)}.items():
            client = clients.enter_context(grpc.InferenceServerClient(stack.instance(0)["grpc"]))
            sound = wave("letter.m4a")[: 16000 * seconds]
            wanted = {"MAX_TOKENS": np.array([[tokens]], np.int32)}
            wanted["TEMPERATURE"] = np.array([[temperature]], np.float32)
            infer[name] = partial(client.infer, "whisper_bls", grpc_inputs(sound, **wanted))
        assert overtakes(stack.kserve, infer["long"], infer["short"])


def test_short_stream_overtakes_a_long_one(stack: Stack) -> None:
    """The same with streams: a short one that started later ends first. Both are ready to be sent, since a
    GPU speaks the long one in a fraction of a second.
    """
    began, ended, done = threading.Event(), list[str](), threading.Semaphore(0)

    def hear(name: str, result: Any, error: Any) -> None:
        assert error is None
        began.set()
        if result.get_response().parameters["triton_final_response"].bool_param:
            ended.append(name)
            done.release()

    lengths = {"long": (440, 25), "short": (2, 2)}
    with contextlib.ExitStack() as streams:
        begin: dict[str, Callable[[], None]] = {}
        for name, (tokens, seconds) in lengths.items():
            client = streams.enter_context(grpc.InferenceServerClient(stack.instance(0)["grpc"]))
            client.start_stream(partial(hear, name))
            sound = wave("letter.m4a")[: 16000 * seconds]
            inputs = grpc_inputs(sound, MAX_TOKENS=np.array([[tokens]], np.int32))
            send = client.async_stream_infer
            begin[name] = partial(send, "whisper_bls_stream", inputs, enable_empty_final_response=True)
        begin["long"]()
        assert began.wait(60)
        begin["short"]()
        assert all(done.acquire(timeout=60) for _ in lengths)
    assert ended == ["short", "long"]


def test_engine_answers_by_hand(stack: Stack, recordings: Rows) -> None:
    """tensorrt_llm alone: features and ids in, four beams with their log probabilities out; a batch of two is
    two rows.
    """
    features = log_mel(wave("demo.flac"), 80).astype(np.float16)
    arrays = {
        "encoder_input_features": np.stack([features, features]),
        "input_lengths": np.array([[3000]] * 2, np.int32),
        "encoder_output_lengths": np.array([[1500]] * 2, np.int32),
        "decoder_input_ids": np.array([[50258, 50259, 50359, 50363]] * 2, np.int32),
        "request_output_len": np.array([[100]] * 2, np.int32),
        "beam_width": np.array([[4]] * 2, np.int32),
        "return_log_probs": np.array([[True]] * 2),
    }
    inputs = tensors(grpc, **arrays)
    result = grpc.InferenceServerClient(stack.grpc).infer("tensorrt_llm", inputs, client_timeout=60)
    ids, lengths, scores = (
        result.as_numpy(name) for name in ("output_ids", "sequence_length", "cum_log_probs")
    )
    assert ids.shape[:2] == lengths.shape == scores.shape == (2, 4)
    assert (ids[0, 0] == ids[1, 0]).all(), "in bf16 the less likely ones may differ"
    text = WhisperVocabulary.load(MINIATURE).text([int(i) for i in ids[0, 0, : lengths[0, 0]]])
    assert text == recordings["demo.flac"]["text"]


def test_models_and_health(stack: Stack, client: openai.OpenAI) -> None:
    """The deployment lists its models, and says that it is live and ready."""
    assert [model.id for model in client.models.list()] == ["mini-whisper"]
    assert httpx.get(f"{stack.url}/health/live").status_code == 200
    assert httpx.get(f"{stack.url}/health/ready").json() == {
        "status": "ready",
        "models": {"mini-whisper": True},
    }
    assert "conch_gateway_requests_total" in httpx.get(f"{stack.url}/metrics").text
