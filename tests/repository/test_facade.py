"""The speech façade against a double that offers exactly the contract's tensors, no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from build.whisper_vocabulary import whisper_tokenizer
from conch.bundle import EngineFacts
from serving.audio.whisper import Whisper
from serving.errors import BadRequest

from .engine_contract import check

SPEECH = "<|0.00|> The red lamp.<|1.20|>"


@dataclass
class Double:
    """Takes only tensors of the contract, of their dtypes; says SPEECH, one token at a time when
    streaming.
    """

    size: int
    calls: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    language: int = 50262
    nothing: bool = False
    stopped: bool = False

    def __call__(self, arrays: dict[str, NDArray[Any]], streaming: bool) -> Iterator[dict[str, NDArray[Any]]]:
        check(arrays)
        assert bool(arrays.get("streaming", np.array([False])).any()) is streaming
        self.calls.append(arrays)
        if "return_generation_logits" in arrays and self.stopped:
            yield {**self._answer([]), "generation_logits": np.zeros((1, 1, 0, self.size), np.float32)}
            return
        if "return_generation_logits" in arrays:
            logits = np.zeros((1, 1, 1, self.size), np.float32)
            logits[..., self.language] = 5.0
            yield {**self._answer([self.language]), "generation_logits": logits}
            return
        for tokens in (
            [[]] if self.nothing else [[token] for token in self.tokens] if streaming else [self.tokens]
        ):  # a stream's responses carry what is new
            yield self._answer(tokens)

    @staticmethod
    def _answer(tokens: list[int]) -> dict[str, NDArray[Any]]:
        probs = np.full((1, 1, len(tokens)), -0.5, np.float32)
        ids = np.array([[tokens]], np.int32)
        return {
            "output_ids": ids,
            "sequence_length": np.array([[len(tokens)]], np.int32),
            "cum_log_probs": probs.sum(-1),
            "output_log_probs": probs,
        }


Facade = tuple[Whisper, Double]


@pytest.fixture(params=[(99, 80, [220]), (100, 128, [])], ids=["v2", "v3"])
def facade(request: pytest.FixtureRequest, tmp_path: Path) -> Facade:
    """A bundle's facts and vocabulary, without an engine."""
    languages, mels, suppress = request.param
    tokenizer = whisper_tokenizer(languages)
    size = tokenizer.get_vocab_size()
    (tmp_path / "engine").mkdir()
    tokenizer.save(str(tmp_path / "engine" / "tokenizer.json"))
    EngineFacts("whisper", 448, size, 50257, mels=mels, suppress=tuple(suppress)).save(tmp_path / "engine")
    (tmp_path / "parameters.json").write_text(json.dumps({"zero_pad": False}))
    return Whisper(tmp_path), Double(size, tokens=tokenizer.encode(SPEECH, add_special_tokens=False).ids)


def ask(
    facade: Facade,
    prefix: str = "",
    *,
    streaming: bool = False,
    wanted: set[str] | None = None,
    **inputs: Any,
) -> list[dict[str, Any]]:
    whisper, double = facade
    given = {
        "WAV": np.zeros((1, 32000), np.float32),
        "TEXT_PREFIX": np.array([[prefix.encode()]], object),
        **inputs,
    }
    return list(whisper.transcribe(given, wanted or {"TRANSCRIPTS"}, double, streaming=streaming))


def test_plain_request(facade: Facade) -> None:
    """One call, the default prompt, more tokens than anybody says in two seconds, features padded to 30 s in
    half precision; the text without times.
    """
    assert ask(facade)[-1]["TRANSCRIPTS"][0] == b"The red lamp."
    (call,) = facade[1].calls
    assert call["encoder_input_features"].shape == (1, 3000, facade[0].facts.mels)
    assert call["decoder_input_ids"].shape == (1, 4)
    assert call["request_output_len"].item() == 90
    assert (call["encoder_output_lengths"].item(), call["input_lengths"].item()) == (1500, 3000)


@pytest.mark.parametrize(
    ("loops", "options", "frames"),
    [
        (False, {}, [1000]),
        (True, {}, [1000, 3000]),  # what repeats itself is transcribed with all of the silence
        (True, {"MAX_TOKENS": np.array([[200]], np.int32)}, [1000, 3000]),
        (False, {"TEMPERATURE": np.array([[0.2]], np.float32)}, [3000]),
        (False, {"streaming": True}, [3000]),
        (False, {"WAV": np.zeros((1, 288_001), np.float32)}, [3000]),
    ],
)
def test_short_sounds(facade: Facade, loops: bool, options: dict[str, Any], frames: list[int]) -> None:
    whisper, double = facade
    whisper.lengths = (1000, 2000, 3000)
    double.tokens = double.tokens * (12 if loops else 1)
    ask(facade, **options)
    assert [call["input_lengths"].item() for call in double.calls] == frames
    assert [len(call["encoder_input_features"][0]) for call in double.calls] == frames


def test_a_full_window_has_all_positions(facade: Facade) -> None:
    """Half a minute may take every position that the prompt leaves."""
    ask(facade, WAV=np.zeros((1, 480_000), np.float32))
    assert facade[1].calls[0]["request_output_len"].item() == 444


def test_language_is_detected_when_the_prompt_names_none(facade: Facade) -> None:
    """A second, one-token call; its answer goes into the prompt."""
    answer = ask(facade, "<|startoftranscript|><|transcribe|>", wanted={"LANGUAGE", "NO_SPEECH_PROB"})[-1]
    probe, call = facade[1].calls
    assert (probe["request_output_len"].item(), probe["decoder_input_ids"].tolist()) == (1, [[50258]])
    assert call["decoder_input_ids"][0, 1] == facade[1].language
    assert answer["LANGUAGE"].item() == b"es"
    assert 0 < answer["NO_SPEECH_PROB"].item() < 1e-3


def test_detection_reads_the_sound_alone(facade: Facade) -> None:
    """Text before the start token would pull the language towards its own; it still leads the decoding."""
    ask(facade, "<|startofprev|> Eine Liste von Wörtern<|startoftranscript|><|transcribe|>")
    probe, call = facade[1].calls
    assert probe["decoder_input_ids"].tolist() == [[50258]]
    assert call["decoder_input_ids"].shape[1] > 4


@pytest.mark.parametrize(("given", "chosen"), [(b"de, fr", "de"), (b"es", "es"), (b"", "es")])
def test_detection_among_languages(facade: Facade, given: bytes, chosen: str) -> None:
    """The likeliest of those that are named, although another one is likelier."""
    asked = {"LANGUAGES": np.array([[given]], object)}
    answer = ask(facade, "<|startoftranscript|><|transcribe|>", wanted={"LANGUAGE"}, **asked)[-1]
    assert answer["LANGUAGE"].item().decode() == chosen
    with pytest.raises(BadRequest, match="LANGUAGES has 'xx'"):
        ask(facade, "<|startoftranscript|><|transcribe|>", LANGUAGES=np.array([[b"de,xx"]], object))


def test_times_are_asked_for_by_bias(facade: Facade) -> None:
    """Without <|notimestamps|> in the prompt that token is forbidden; with it, only the checkpoint's own list
    is.
    """
    answer = ask(facade, "<|startoftranscript|><|en|><|transcribe|>")[-1]
    whisper, double = facade
    assert double.calls[0]["embedding_bias"][0, whisper.vocabulary.no_timestamps] < -1e8
    assert answer["SEGMENT_TIMES"].tolist() == [[[0.0, pytest.approx(1.2)]]]
    assert answer["SEGMENT_SIZES"].sum() == answer["TOKENS"].size
    ask(facade, "<|startoftranscript|><|en|><|transcribe|><|notimestamps|>")
    assert ("embedding_bias" in double.calls[1]) is bool(whisper.facts.suppress)


@pytest.mark.parametrize("streaming", [False, True])
def test_nothing_said(facade: Facade, *, streaming: bool) -> None:
    """A window whose first token is the end: TensorRT-LLM's ids are [1, 1, 0] then."""
    facade[1].nothing = True
    answer = ask(facade, streaming=streaming, wanted={"TRANSCRIPTS", "TOKENS"})[-1]
    assert answer["TRANSCRIPTS"][0] == b""
    assert answer["TOKENS"].shape == answer["TOKEN_LOGPROBS"].shape == (1, 0)
    assert answer["SEGMENT_SIZES"].sum() == 0


def test_stream_gives_the_text_so_far(facade: Facade) -> None:
    """One answer for each token."""
    texts = [answer["TRANSCRIPTS"][0] for answer in ask(facade, streaming=True)]
    assert len(texts) == len(facade[1].tokens)
    assert texts[-1] == b"The red lamp."
    assert all(texts[-1].startswith(text) for text in texts)


def test_wav_lens_is_optional_and_cuts(facade: Facade) -> None:
    """Leaving it out is fine; a wrong one is refused."""
    ask(facade, WAV_LENS=np.array([[16000]], np.int32))
    for wrong in (0, -1, 32001):
        with pytest.raises(BadRequest, match="WAV_LENS"):
            ask(facade, WAV_LENS=np.array([[wrong]], np.int32))


def test_samples_are_finite(facade: Facade) -> None:
    with pytest.raises(BadRequest, match="NaN or infinite"):
        ask(facade, WAV=np.full((1, 16000), np.nan, np.float32))


def test_a_request_stopped_before_its_language_is_known_asks_no_more(facade: Facade) -> None:
    """The engine keeps no stop for what comes under the same id later."""
    facade[1].stopped = True
    (answer,) = ask(facade, "<|startoftranscript|><|transcribe|>", wanted={"TRANSCRIPTS", "TOKENS"})
    assert len(facade[1].calls) == 1
    assert answer["TRANSCRIPTS"][0] == b""
    assert answer["TOKENS"].shape == (1, 0)
