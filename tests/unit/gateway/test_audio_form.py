"""Fields of the audio routes: languages, other servers' names, keywords, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from conch.deployment import Pool
from conch.errors import ApiError
from gateway.audio.languages import check_languages, language_code
from gateway.audio.schema import options, parse_transcription, parse_translation

DIARIZED = {"response_format": "diarized_json"}


def parsed(**fields: Any) -> Any:
    rows = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
    request = parse_transcription({"model": ["m"], **rows})
    return request, options(request, "transcribe")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        *[("en", "en"), ("en_US", "en"), ("EN-gb", "en"), ("eng", "en"), ("English", "en")],
        *[("auto", None), ("", None), ("und", None)],
        *[("nb", "no"), ("nob", "no"), ("nn", "nn"), ("cmn", "zh"), ("zh-Hant-HK", "zh")],
        *[("zh-yue", "yue"), ("iw", "he"), ("in", "id"), ("jv", "jw"), ("fil", "tl"), ("tgl", "tl")],
        *[("ger", "de"), ("deu", "de"), ("Deutsch", "de"), ("mandarin", "zh"), ("valencian", "ca")],
        *[("haitian creole", "ht"), ("burmese", "my"), ("thai", "th"), ("pt_BR", "pt")],
    ],
)
def test_languages_as_clients_write_them(given: str, code: str | None) -> None:
    assert language_code(given) == code


@pytest.mark.parametrize("given", ["gsw", "wuu", "xx", "Klingon", "e", "'en'", "a" * 5000, "<|en|>"])
def test_a_variant_never_becomes_another_language(given: str) -> None:
    with pytest.raises(ApiError, match="is unknown; send an ISO 639-1 code") as refused:
        language_code(given)
    assert refused.value.param == "language"


def test_a_model_says_what_it_does_not_know() -> None:
    english = Pool("tiny.en", "whisper", (0,), languages=("en",))
    check_languages(english, "en", (), "language")
    with pytest.raises(ApiError, match=r"tiny\.en understands English only; leave language out") as refused:
        check_languages(english, "de", (), "language")
    assert refused.value.param == "language"
    with pytest.raises(ApiError, match="does not know cantonese"):
        check_languages(Pool("v2", "whisper", (0,), languages=("en", "zh")), "yue", (), "language")


def test_keywords_are_the_end_of_the_prompt() -> None:
    """Of a prompt that is too long the model leaves out the beginning."""
    _, chosen = parsed(prompt="A talk. ", **{"keywords[]": ["Conch", " Triton "]})
    assert chosen.prompt == "A talk. Conch, Triton."
    assert parsed(hotwords="Conch")[1].prompt == "Conch."
    with pytest.raises(ApiError, match="keywords must not contain special tokens"):
        parsed(keywords="<|en|>")


def test_detection_among_languages() -> None:
    assert parsed(**{"languages[]": ["de", "en-US", "de"]})[1].languages == ("de", "en")
    one = parsed(**{"languages[]": ["de"]})[1]
    assert (one.language, one.languages) == ("de", ())
    assert parsed(language="en", **{"languages[]": ["de", "en"]})[1].language == "en"
    with pytest.raises(ApiError, match="is not among languages") as refused:
        parsed(language="fr", **{"languages[]": ["de", "en"]})
    assert refused.value.param == "language"


def test_names_of_other_servers() -> None:
    """faster-whisper's, whisper.cpp's and vLLM's: what changes nothing is taken, what is ours is renamed."""
    _, chosen = parsed(
        vad_filter="true",
        batch_size="8",
        beam_size="3",
        initial_prompt="Hello.",
        task="transcribe",
        no_speech_threshold="0.6",
        diarize="false",
        word_timestamps="false",
        user="me",
    )
    assert (chosen.beam_width, chosen.prompt, chosen.words) == (3, "Hello.", False)
    assert parsed(word_timestamps="true", response_format="verbose_json")[1].words


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"word_timestamps": "true"}, "word_timestamps", "timestamp_granularities[]=word"),
        ({"task": "translate"}, "task", "/v1/audio/translations"),
        ({"vad_parameters": "{}"}, "vad_parameters", "use chunking_strategy"),
        ({"no_speech_threshold": "0.2"}, "no_speech_threshold", "is not a setting here"),
        ({"hotwords": "a", "keywords": ["b"]}, "hotwords", "is keywords by another name"),
        ({"keywords[]": ["a"] * 101}, "keywords[]", "has 101 items; send 100 at most"),
        ({"audio_track": "0"}, "audio_track", "greater than or equal to 1"),
        ({"frobnicate": "1"}, "frobnicate", "unknown field"),
        ({"diarize": "true"}, "diarize", "needs a format with speakers"),
        ({"diarize": "true", "response_format": "text"}, "diarize", "use diarized_json, verbose_json"),
        ({"num_speakers": "2"}, "num_speakers", "needs response_format=diarized_json or diarize=true"),
        ({"known_speaker_names[]": "a"}, "known_speaker_names[]", "needs response_format=diarized_json"),
        ({**DIARIZED, "num_speakers": "0"}, "num_speakers", "greater than or equal to 1"),
        ({**DIARIZED, "max_speakers": "51"}, "max_speakers", "less than or equal to 50"),
        ({**DIARIZED, "num_speakers": "2", "max_speakers": "3"}, "num_speakers", "cannot be combined"),
        ({**DIARIZED, "min_speakers": "4", "max_speakers": "3"}, "min_speakers", "lower it"),
        ({**DIARIZED, "known_speaker_names[]": ["a", "b"]}, "known_speaker_references[]", "2 names, 0"),
        ({**DIARIZED, "known_speaker_references[]": ["data:,"]}, "known_speaker_names[]", "0 names, 1"),
        (
            {**DIARIZED, "known_speaker_names[]": ["a", "a"], "known_speaker_references[]": ["x", "y"]},
            "known_speaker_names[]",
            "has a name twice",
        ),
        (
            {**DIARIZED, "known_speaker_names[]": ["a", ""]},
            "known_speaker_names[]",
            "has 0 characters; send at least 1",
        ),
        ({**DIARIZED, "known_speaker_names[]": ["a"] * 21}, "known_speaker_names[]", "send 20 at most"),
        ({**DIARIZED, "include[]": "logprobs"}, "include[]", "requires response_format=json"),
        ({"response_format": "xml"}, "response_format", ""),
        ({"language": "klingon"}, "language", ""),
        *[({"temperature": given}, "temperature", "") for given in ("hot", "2", "-1", "nan")],
        ({"stream": "perhaps"}, "stream", ""),
        ({"stream": "true", "response_format": "vtt"}, "stream", ""),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]", "verbose_json"),
        ({"timestamp_granularities[]": "segment"}, "timestamp_granularities[]", ""),
        (
            {"timestamp_granularities[]": "phoneme", "response_format": "verbose_json"},
            "timestamp_granularities[]",
            "",
        ),
        (
            {"timestamp_granularities[]": "words", "response_format": "verbose_json"},
            "timestamp_granularities[]",
            "must be 'word' or 'segment', not \"words\"",
        ),
        ({"include[]": "all"}, "include[]", ""),
        ({"include": "logprobs", "include[]": "logprobs"}, "include[]", ""),
        ({"keywords[]": "<|en|>"}, "keywords", ""),
        ({"prompt": "<|endoftext|>"}, "prompt", ""),
        ({"prompt[]": "a"}, "prompt[]", ""),
        ({"chunking_strategy": "manual"}, "chunking_strategy", ""),
        ({"chunking_strategy": "{broken"}, "chunking_strategy", ""),
        ({"chunking_strategy": '{"a":' + "[" * 30000}, "chunking_strategy", ""),
        ({"chunking_strategy": '{"type": "server_vad", "colour": 1}'}, "chunking_strategy", ""),
        (
            {"chunking_strategy[type]": "server_vad", "chunking_strategy[threshold]": "2"},
            "chunking_strategy",
            "",
        ),
        (
            {"chunking_strategy": "auto", "chunking_strategy[type]": "server_vad"},
            "chunking_strategy[type]",
            "",
        ),
        ({"best_of": "3"}, "best_of", ""),
        ({"beam_width": "99"}, "beam_width", ""),
        ({"beam_width": "4", "temperature": "0.5"}, "beam_width", ""),
        *[({"max_tokens": given}, "max_tokens", "") for given in ("0", "100000", "4294967297", "1" * 30)],
    ],
)
def test_a_field_that_is_wrong_or_not_supported_is_refused_by_name(
    fields: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(ApiError) as refused:
        parsed(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert said in refused.value.message


@pytest.mark.parametrize(
    "field", ["keywords", "stream", "timestamp_granularities[]", "include[]", "chunking_strategy", "diarize"]
)
def test_translations_have_fewer_fields(field: str) -> None:
    with pytest.raises(ApiError, match="unknown field") as refused:
        parse_translation({"model": ["m"], field: ["true"]})
    assert refused.value.param == field


def test_translations_have_no_speakers() -> None:
    with pytest.raises(ApiError) as refused:
        parse_translation({"model": ["m"], "response_format": ["diarized_json"]})
    assert refused.value.param == "response_format"
