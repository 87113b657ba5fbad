"""Who spoke when, through a stack with real weights and OpenAI's own client."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as kserve
from openai import BadRequestError

from speech import media
from tests.ports import first_port

from .blocks import Block, those_of
from .clients import figure, pcm, tensors
from .conftest import RECORDINGS, ROOT, Stack, portable, started
from .processes import tritonserver

CONVERSATION = RECORDINGS / "conversation.flac"
TURNS = json.loads((RECORDINGS / "conversation.json").read_text("utf-8"))["turns"]
AUTHORS = json.loads((ROOT / "tests" / "contract" / "speakers.json").read_text("utf-8"))
NOISE = 0.1 * np.random.default_rng(1).standard_normal(16_000 * 5).astype(np.float32)
LETTERS = {"Emma": "A", "Adam": "B", "Sarah": "C"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    home, port = tmp_path_factory.mktemp("speakers"), first_port("speakers")
    with started(portable(home, port, "tiny.en,speakers", 2, build=True)) as found:
        yield found


def said(segments: Any) -> dict[str, str]:
    """The words of each speaker."""
    found: dict[str, list[str]] = {}
    for segment in segments:
        found.setdefault(segment.speaker, []).append(segment.text)
    return {speaker: plain(" ".join(texts)) for speaker, texts in found.items()}


def plain(text: str) -> str:
    return " ".join("".join(c for c in text.lower() if c.isalnum() or c.isspace()).split())


def truth(names: dict[str, str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for turn in TURNS:
        found.setdefault(names.get(turn["speaker"], turn["speaker"]), []).append(turn["text"])
    return {speaker: plain(" ".join(texts)) for speaker, texts in found.items()}


def alike(found: dict[str, str], wanted: dict[str, str]) -> bool:
    """The same speakers, and nearly all words of each, in order."""
    return list(found) == list(wanted) and all(
        sum(word in wanted[name].split() for word in found[name].split()) >= 0.9 * len(wanted[name].split())
        for name in wanted
    )


def reference(name: str) -> str:
    """A data URL of what somebody says: their longest turn."""
    turn = max((turn for turn in TURNS if turn["speaker"] == name), key=lambda one: one["end"] - one["start"])
    samples = media.decode(CONVERSATION, max_seconds=60, time_limit=60)
    return data_url(samples[round(turn["start"] * 16_000) : round(turn["end"] * 16_000)])


def data_url(samples: Any) -> str:
    return "data:audio/wav;base64," + base64.b64encode(pcm(samples)).decode()


def test_networks_are_their_authors(stack: Stack) -> None:
    """Log probabilities and vectors of a made sound, as the authors' PyTorch code gives them."""
    rng, times = np.random.default_rng(5), np.arange(160_000) / 16_000
    tone = 0.2 * np.sin(2 * np.pi * (120 + 40 * np.sin(times)) * times) * (np.sin(3 * times) > 0)
    wav = (tone + 0.02 * rng.standard_normal(160_000)).astype(np.float32)
    client = kserve.InferenceServerClient(f"{stack.url.removeprefix('http://')}/models/speakers")

    def asked(model: str, output: str, samples: Any) -> Any:
        return client.infer(model, tensors(kserve, WAV=samples[None])).as_numpy(output)[0]

    found = asked("speaker_segmentation", "log_probabilities", wav)[AUTHORS["frames"]]
    assert np.abs(found - np.array(AUTHORS["log_probabilities"])).max() < 1e-3
    for length, vector in AUTHORS["vectors"].items():
        assert np.abs(asked("speaker_embedding", "embedding", wav[: int(length)]) - vector).max() < 1e-3


def test_diarized_json(stack: Stack) -> None:
    with CONVERSATION.open("rb") as file:
        answer = stack.openai().audio.transcriptions.create(
            model="gpt-4o-transcribe-diarize",
            file=file,
            response_format="diarized_json",
            chunking_strategy="auto",
        )
    assert type(answer).__name__ == "TranscriptionDiarized"
    assert alike(said(answer.segments), truth(LETTERS)), answer.segments
    assert plain(" ".join(segment.text for segment in answer.segments)) == plain(answer.text)
    for earlier, later in zip(answer.segments, answer.segments[1:], strict=False):
        assert earlier.start <= earlier.end <= later.start + 0.5


def test_streamed_with_known_speakers(stack: Stack) -> None:
    names = ["Sarah", "Adam"]
    with CONVERSATION.open("rb") as file:
        events = list(
            stack.openai().audio.transcriptions.create(
                model="tiny.en",
                file=file,
                response_format="diarized_json",
                stream=True,
                known_speaker_names=names,
                known_speaker_references=[reference(name) for name in names],
            )
        )
    kinds = [event.type for event in events]
    segments = [event for event in events if event.type == "transcript.text.segment"]
    assert kinds[0] == "transcript.text.delta"
    assert kinds[-1] == "transcript.text.done"
    assert alike(said(segments), truth({"Emma": "A"})), segments


@pytest.mark.parametrize("form", ["verbose_json", "srt", "vtt"])
def test_other_formats(stack: Stack, form: str) -> None:
    answer = asked_by_hand(stack, response_format=form, diarize="true", num_speakers="3")
    assert answer.status_code == 200, answer.text
    if form == "verbose_json":
        assert [segment["speaker"] for segment in answer.json()["segments"]][:2] == ["A", "B"]
    else:
        assert {"srt": "\nA: So,", "vtt": "\n<v A>So,"}[form] in answer.text


def asked_by_hand(stack: Stack, content: bytes | None = None, **fields: Any) -> httpx.Response:
    file = content if content is not None else CONVERSATION.read_bytes()
    return stack.transcribe(file, model="tiny.en", **fields)


def test_without_speakers_an_answer_is_what_it_was(stack: Stack) -> None:
    answer = asked_by_hand(stack, response_format="verbose_json", **{"timestamp_granularities[]": "word"})
    assert all("speaker" not in word and "overlap" not in word for word in answer.json()["words"])


def test_silence_has_no_speakers(stack: Stack) -> None:
    silence = pcm(np.zeros(16_000 * 12, np.float32))
    answer = asked_by_hand(stack, silence, response_format="diarized_json")
    assert (answer.status_code, answer.json()["segments"], answer.json()["text"]) == (200, [], "")


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros(16_000 * 5, np.float32), "has 0.0 s of speech"),
        (NOISE, "has 0.0 s of speech"),
        (media.decode(CONVERSATION, max_seconds=60, time_limit=60)[: 16_000 * 9], "has more than one voice"),
    ],
)
def test_references_without_one_voice(stack: Stack, samples: Any, message: str) -> None:
    with CONVERSATION.open("rb") as file, pytest.raises(BadRequestError) as refused:
        stack.openai().audio.transcriptions.create(
            model="tiny.en",
            file=file,
            response_format="diarized_json",
            known_speaker_names=["Ann"],
            known_speaker_references=[data_url(samples)],
        )
    assert refused.value.param == "known_speaker_references[]"
    assert message in refused.value.message


def test_a_killed_server_loses_no_speakers(stack: Stack) -> None:
    """The one that tells speakers apart dies under a recording of minutes, which waits until it is back."""
    whole = media.decode(CONVERSATION, max_seconds=60, time_limit=60)
    long = pcm(np.tile(whole, 6))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(asked_by_hand, stack, long, response_format="diarized_json")
        time.sleep(1.5)
        assert not answer.done()
        os.kill(tritonserver(stack, 1), signal.SIGKILL)
        found = answer.result(120)
    assert found.status_code == 200, found.text
    assert {segment["speaker"] for segment in found.json()["segments"]} == {"A", "B", "C"}


def test_figures(stack: Stack) -> None:
    """The dashboard's panels of speakers have something to show."""
    asked_by_hand(stack, response_format="diarized_json", num_speakers="3")
    text = httpx.get(f"{stack.url}/metrics", timeout=30).text
    for name in ("conch_gateway_diarization_seconds", "conch_gateway_recording_speakers"):
        assert figure(text, f"{name}_count", model="speakers") > 0


@those_of("speakers")
def test_the_example_of_the_guide(stack: Stack, tmp_path: Path, block: Block) -> None:
    """What stands below it."""
    assert "A: So, where do we stand" in block.run(stack, tmp_path, {"base": "tiny.en"})
