"""The whole audio API as the official SDK sees it: every format, granularity and task, streamed or not."""

from __future__ import annotations

import io
import itertools
from typing import Any

import httpx
import jiwer
import numpy as np
import openai
import pytest
import srt
import webvtt

from .clients import RECORDINGS, events, wav, wave
from .conftest import Stack

Rows = dict[str, dict[str, Any]]
FORMATS = ("json", "text", "srt", "vtt", "verbose_json")
GRANULARITIES = (["segment"], ["word"], ["word", "segment"])
ENGLISH = (
    "The red letter costs sixty-five euros. Where is the big blanket? Stop now, Victor. The cow is eating in "
    "front of the chair. Bring the wallet."
)


def sound(name: str) -> tuple[str, bytes]:
    return name, (RECORDINGS / name).read_bytes()


@pytest.mark.parametrize(
    ("response_format", "granularities", "stream"),
    [
        *((response_format, None, False) for response_format in FORMATS),
        *(("verbose_json", wanted, False) for wanted in GRANULARITIES),
        *((response_format, None, True) for response_format in ("json", "text")),
    ],
)
def test_transcriptions(
    client: openai.OpenAI, recordings: Rows, response_format: Any, granularities: Any, stream: bool
) -> None:
    """Each way is answered in full; what is refused: tests/unit/gateway/test_audio_form.py."""
    extra = {"timestamp_granularities": granularities} if granularities else {}
    call = {
        "file": sound("demo.flac"),
        "model": "mini-whisper",
        "response_format": response_format,
        "stream": stream,
        **extra,
    }
    if stream:
        check_stream(list(client.audio.transcriptions.create(**call)), recordings["demo.flac"]["text"])
    else:
        check(
            client.audio.transcriptions.create(**call),
            response_format,
            recordings["demo.flac"],
            granularities or ["segment"],
        )


@pytest.mark.parametrize("response_format", FORMATS)
def test_translations(client: openai.OpenAI, recordings: Rows, response_format: Any) -> None:
    """Spanish in, English out, in the same formats; times are the recording's."""
    answer = client.audio.translations.create(
        file=sound("cocina.mp3"), model="mini-whisper", response_format=response_format
    )
    row = {**recordings["cocina.mp3"], "text": ENGLISH}
    check(answer, response_format, row, ["segment"])


def check(answer: Any, response_format: str, row: dict[str, Any], granularities: list[str]) -> None:
    if response_format == "text":
        assert answer.strip() == row["text"]
    elif response_format == "srt":
        check_cues(
            [(cue.start.total_seconds(), cue.end.total_seconds(), cue.content) for cue in srt.parse(answer)],
            row,
        )
    elif response_format == "vtt":
        check_cues(
            [
                (cue.start_in_seconds, cue.end_in_seconds, cue.text)
                for cue in webvtt.from_buffer(io.StringIO(answer))
            ],
            row,
            whole_seconds=True,
        )
    else:
        assert answer.text == row["text"]
        usage = answer.model_dump()["usage"]  # the SDK's translations do not name it
        assert usage["type"] == "duration"
        assert usage["seconds"] == pytest.approx(row["seconds"], abs=0.2)
        if response_format == "verbose_json":
            assert (answer.duration, answer.language) == (usage["seconds"], "english")
            check_times(answer, granularities)
            if granularities == ["segment"]:
                found = [(segment.start, segment.end, segment.text.strip()) for segment in answer.segments]
                check_cues(found, row)
                assert all(one.avg_logprob <= 0 <= one.no_speech_prob <= 1 for one in answer.segments)


def check_cues(
    cues: list[tuple[float, float, str]], row: dict[str, Any], *, whole_seconds: bool = False
) -> None:
    assert " ".join(text for *_, text in cues) == row["text"]
    for (start, end, _), true in zip(cues, row["segments"], strict=True):
        slack = 1.0 if whole_seconds else 0.2  # webvtt-py gives whole seconds here
        assert start == pytest.approx(true["start"], abs=slack)
        assert end == pytest.approx(true["end"], abs=slack)


def check_times(answer: Any, granularities: list[str]) -> None:
    assert (answer.segments is not None) is ("segment" in granularities)
    words = getattr(answer, "words", None)
    assert (words is not None) is ("word" in granularities)
    if answer.segments and words:
        check_words_in_segments(answer.words, answer.segments)


def check_words_in_segments(words: list[Any], segments: list[Any]) -> None:
    """Every word of the text is there once, times never run backwards, and each word lies inside
    its segment.
    """
    wanted = (
        jiwer.RemovePunctuation()(" ".join(segment.text for segment in segments)).replace("-", "").split()
    )
    assert [jiwer.RemovePunctuation()(word.word) for word in words] == wanted
    assert all(word.start <= word.end for word in words)
    assert all(earlier.end <= later.start + 1e-6 for earlier, later in itertools.pairwise(words))
    rest = iter(words)
    for segment in segments:
        for word in itertools.islice(rest, len(segment.text.split())):
            assert segment.start - 1e-6 <= word.start <= word.end <= segment.end + 1e-6


def check_stream(events: list[Any], text: str) -> None:
    *deltas, last = events
    assert {event.type for event in deltas} == {"transcript.text.delta"}
    assert "".join(event.delta for event in deltas) == text == last.text
    assert last.type == "transcript.text.done"
    assert last.usage.total_tokens == last.usage.input_tokens + last.usage.output_tokens > 0


def test_words_of_a_long_recording(client: openai.OpenAI) -> None:
    """Over several windows word times run on, inside segments that run on; most words take the time that
    words take.
    """
    answer: Any = client.audio.transcriptions.create(
        file=sound("largo.flac"),
        model="mini-whisper",
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        language="es",
    )
    check_words_in_segments(answer.words, answer.segments)
    lengths = sorted(word.end - word.start for word in answer.words)
    assert 0.1 < lengths[len(lengths) // 2] < 0.6


def test_a_long_stream_comes_in_pieces(client: openai.OpenAI, recordings: Rows) -> None:
    """A delta for each window, with `auto` as without; with server_vad one for each turn, which a language
    fits that is named or detected.
    """
    text = recordings["minute.wav"]["text"]
    plain = list(
        client.audio.transcriptions.create(file=sound("minute.wav"), model="mini-whisper", stream=True)
    )
    assert len(plain) >= 4
    assert jiwer.wer(text, plain[-1].text) <= 0.05  # type: ignore[union-attr]
    same = list(
        client.audio.transcriptions.create(
            file=sound("minute.wav"), model="mini-whisper", stream=True, chunking_strategy="auto"
        )
    )
    assert len(same) == len(plain)
    vad = {"type": "server_vad"}
    turns = list(
        client.audio.transcriptions.create(
            file=sound("minute.wav"), model="mini-whisper", stream=True, chunking_strategy=vad, language="en"
        )
    )  # type: ignore[arg-type]
    assert len(turns) > len(plain)
    assert jiwer.wer(text, turns[-1].text) <= 0.05  # type: ignore[union-attr]


def test_chunking_strategy_object(client: openai.OpenAI, recordings: Rows) -> None:
    """The SDK's object; true offsets although silence was left out."""
    vad: Any = {"type": "server_vad", "threshold": 0.4, "prefix_padding_ms": 200, "silence_duration_ms": 400}
    answer: Any = client.audio.transcriptions.create(
        file=sound("demo.flac"), model="mini-whisper", response_format="verbose_json", chunking_strategy=vad
    )
    assert answer.text == recordings["demo.flac"]["text"]
    for segment, true in zip(answer.segments, recordings["demo.flac"]["segments"], strict=True):
        assert segment.start == pytest.approx(true["start"], abs=0.2)


def test_log_probabilities(client: openai.OpenAI, recordings: Rows) -> None:
    """include=["logprobs"]: the tokens' bytes put together are the text."""
    answer = client.audio.transcriptions.create(
        file=sound("demo.flac"), model="mini-whisper", include=["logprobs"]
    )
    rows = answer.logprobs or []
    assert (
        bytes(int(byte) for row in rows for byte in row.bytes or []).decode().strip()
        == recordings["demo.flac"]["text"]
    )
    assert all((row.logprob or 0.0) <= 0.0 for row in rows)
    last: Any = list(
        client.audio.transcriptions.create(
            file=sound("demo.flac"), model="mini-whisper", include=["logprobs"], stream=True
        )
    )[-1]
    assert len(last.logprobs) == len(rows)


def test_previous_text_is_an_extension(client: openai.OpenAI, recordings: Rows) -> None:
    """condition_on_previous_text sends windows one after the other, each with the text before it."""
    answer = client.audio.transcriptions.create(
        file=sound("minute.wav"),
        model="mini-whisper",
        language="en",
        extra_body={"condition_on_previous_text": "true"},
    )
    assert jiwer.wer(recordings["minute.wav"]["text"], answer.text) <= 0.1


def test_temperature_ladder_and_seed(client: openai.OpenAI, recordings: Rows) -> None:
    """A fixed temperature is used as it is, and twice the same request gives twice the same words."""
    once, again = (
        client.audio.transcriptions.create(
            file=sound("order.wav"), model="mini-whisper", temperature=0.3, response_format="verbose_json"
        )
        for _ in range(2)
    )
    assert once.text == again.text
    assert [segment.temperature for segment in once.segments or []] == [pytest.approx(0.3)]


def test_a_stream_that_fails_later_says_so(stack: Stack) -> None:
    """A file whose samples turn to NaN after three minutes, after the first stretch: words first, then an
    error event in OpenAI's shape, which the SDK raises.
    """
    sound = np.concatenate([*2 * [wave("largo.flac")], np.full(160_000, np.nan, np.float32)])
    file, url = wav(sound.astype("<f4")), f"{stack.url}/v1/audio/transcriptions"
    with httpx.stream(
        "POST", url, files={"file": file}, data={"model": "mini-whisper", "stream": "true"}, timeout=60
    ) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events(answer)
    assert found[0]["type"] == "transcript.text.delta"
    assert found[-1]["error"]["param"] == "file"
    with pytest.raises(openai.APIError, match="NaN"):
        list(stack.openai().audio.transcriptions.create(file=file, model="mini-whisper", stream=True))
