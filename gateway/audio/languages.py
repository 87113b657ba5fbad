"""Languages by ISO code and English name (openai/whisper tokenizer.py, LANGUAGES)."""

from __future__ import annotations

import re
from contextlib import suppress

from langcodes import Language, find, standardize_tag, tag_is_valid

from conch.deployment import Pool
from conch.errors import ApiError, invalid
from conch.whisper import languages

NAMES = languages()
CODES = {name: code for code, name in NAMES.items()}
# What Whisper calls otherwise than BCP 47 does, and names of openai/whisper's that are no standard ones.
WHISPER = {"jv": "jw", "nb": "no", "fil": "tl"}
CODES |= {"letzeburgesch": "lb", "valencian": "ca", "sinhalese": "si", "moldavian": "ro", "moldovan": "ro"}
DETECTED = {"", "auto", "und"}
NAME = re.compile(r"[^\W_][\w '’().,-]{0,60}")  # of a language, or a tag


def language_code(language: str, param: str = "language") -> str | None:
    """Return the code of a language given as a tag (BCP 47), a code of ISO 639-1, -2 or -3, or a name; None
    for detection (`auto`). A variant is mapped to its language (`pt-BR`), never to another one (`gsw` is not
    German).

    Raises:
        ApiError: 400 if Whisper knows no such language.
    """
    wanted = language.strip().lower().replace("_", "-")
    if wanted in DETECTED:
        return None
    code = wanted if wanted in NAMES else CODES.get(wanted) or _standard(wanted)
    if code not in NAMES:
        raise invalid(
            param,
            f"language {language[:80]!r} is unknown; send an ISO 639-1 code such as 'en' or 'es', or 'auto'",
        )
    return code


def _standard(wanted: str) -> str:
    """Return Whisper's code for a tag or name that Whisper does not use."""
    found = ""
    if not NAME.fullmatch(wanted):
        return found
    with suppress(LookupError, ValueError, SystemError):  # the last from its tree of names, for odd bytes
        tag = wanted if tag_is_valid(wanted) else find(wanted).to_tag()
        found = Language.get(standardize_tag(tag, macro=True)).language or ""
    return WHISPER.get(found, found)


def check_languages(pool: Pool, language: str | None, languages: tuple[str, ...], param: str) -> None:
    """Refuse languages that a model does not support.

    Raises:
        ApiError: 400 with `param`.
    """
    known = pool.languages
    if not known or not (unknown := [code for code in (language, *languages) if code and code not in known]):
        return
    if known == ("en",):
        message = f"{pool.model_id} understands English only; leave {param} out, or use a multilingual model"
    else:
        message = f"{pool.model_id} does not know {language_name(unknown[0])}; use another model"
    raise ApiError(400, message, param=param, code="unsupported_value")


def language_name(code: str) -> str:
    """Return the English name, as in OpenAI's verbose_json."""
    return NAMES.get(code, code)
