"""Fields of the audio routes: languages, other servers' names, keywords, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from conch.deployment import Pool
from conch.errors import ApiError
from gateway.audio.languages import check_languages, language_code
from gateway.audio.schema import options, parse_transcription, parse_translation

DIARIZED = {"response_format": "diarized_json"}
VERBOSE = {"response_format": "verbose_json"}
REFERENCES = {"known_speaker_references[]": ["x", "y"]}
SERVER_VAD = {"chunking_strategy[type]": "server_vad"}


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
    ("fields", "said"),
    [
        ({"word_timestamps": "true"}, "timestamp_granularities[]=word"),
        ({"task": "translate"}, "/v1/audio/translations"),
        ({"vad_parameters": "{}"}, "use chunking_strategy"),
        ({"no_speech_threshold": "0.2"}, "is not a setting here"),
        ({"keywords": ["b"], "hotwords": "a"}, "is keywords by another name"),
        ({"keywords[]": ["a"] * 101}, "has 101 items; send 100 at most"),
        ({"audio_track": "0"}, "greater than or equal to 1"),
        ({"frobnicate": "1"}, "unknown field"),
        ({"diarize": "true"}, "needs a format with speakers"),
        ({"response_format": "text", "diarize": "true"}, "use diarized_json, verbose_json"),
        ({"num_speakers": "2"}, "needs response_format=diarized_json or diarize=true"),
        ({"known_speaker_names[]": "a"}, "needs response_format=diarized_json"),
        ({**DIARIZED, "num_speakers": "0"}, "greater than or equal to 1"),
        ({**DIARIZED, "max_speakers": "51"}, "less than or equal to 50"),
        ({**DIARIZED, "max_speakers": "3", "num_speakers": "2"}, "cannot be combined"),
        ({**DIARIZED, "max_speakers": "3", "min_speakers": "4"}, "lower it"),
        ({**DIARIZED, **REFERENCES, "known_speaker_names[]": ["a", "a"]}, "has a name twice"),
        ({**DIARIZED, "known_speaker_names[]": ["a", ""]}, "has 0 characters; send at least 1"),
        ({**DIARIZED, "known_speaker_names[]": ["a"] * 21}, "send 20 at most"),
        ({**DIARIZED, "include[]": "logprobs"}, "requires response_format=json"),
        ({"response_format": "xml"}, ""),
        ({"language": "klingon"}, ""),
        *[({"temperature": given}, "") for given in ("hot", "2", "-1", "nan")],
        ({"stream": "perhaps"}, ""),
        ({"response_format": "vtt", "stream": "true"}, ""),
        *[({"timestamp_granularities[]": given}, "verbose_json") for given in ("word", "segment")],
        ({**VERBOSE, "timestamp_granularities[]": "phoneme"}, ""),
        ({**VERBOSE, "timestamp_granularities[]": "words"}, "must be 'word' or 'segment', not \"words\""),
        ({"include[]": "all"}, ""),
        ({"include": "logprobs", "include[]": "logprobs"}, ""),
        ({"prompt": "<|endoftext|>"}, ""),
        ({"prompt[]": "a"}, ""),
        ({"chunking_strategy": "manual"}, ""),
        ({"chunking_strategy": "{broken"}, ""),
        ({"chunking_strategy": '{"a":' + "[" * 30000}, ""),
        ({"chunking_strategy": '{"type": "server_vad", "colour": 1}'}, ""),
        ({"chunking_strategy": "auto", "chunking_strategy[type]": "server_vad"}, ""),
        ({"best_of": "3"}, ""),
        ({"beam_width": "99"}, ""),
        ({"temperature": "0.5", "beam_width": "4"}, ""),
        *[({"max_tokens": given}, "") for given in ("0", "100000", "4294967297", "1" * 30)],
    ],
)
def test_a_field_that_is_wrong_or_not_supported_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    """The last one."""
    refuses(fields, [*fields][-1], said)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({**DIARIZED, "known_speaker_names[]": ["a", "b"]}, "known_speaker_references[]", "2 names, 0"),
        ({**DIARIZED, "known_speaker_references[]": ["data:,"]}, "known_speaker_names[]", "0 names, 1"),
        ({"keywords[]": "<|en|>"}, "keywords", "special tokens"),
        ({**SERVER_VAD, "chunking_strategy[threshold]": "2"}, "chunking_strategy", ""),
    ],
)
def test_another_field_is_named(fields: dict[str, Any], param: str, said: str) -> None:
    """One that is missing, or what several belong to."""
    refuses(fields, param, said)


def refuses(fields: dict[str, Any], param: str, said: str) -> None:
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
