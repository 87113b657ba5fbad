"""Decode bytes to text."""

from __future__ import annotations

import codecs
import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import webencodings
    from charset_normalizer import CharsetMatch

MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16's, which it begins with
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# https://html.spec.whatwg.org/#prescan-a-byte-stream-to-determine-its-encoding, and XML's declaration.
DECLARED = re.compile(rb"(?:charset|encoding)\s*=\s*[\"']?\s*([\w:.-]+)", re.IGNORECASE)
PRESCAN = 1024
SEVEN_BITS = ("iso-2022", "hz", "utf-7")  # they look like ASCII
WIDE = ["utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_32_be", "utf_32_le"]  # a line's end has a NUL
# Encodings with several bytes for a letter: their texts are mostly of such.
SEVERAL = ["big5", "big5hkscs", "cp932", "cp949", "cp950", "euc_jis_2004", "euc_jisx0213", "euc_jp", "euc_kr"]
SEVERAL += ["gb18030", "gb2312", "gbk", "johab", "shift_jis", "shift_jis_2004", "shift_jisx0213"]
FEW = 0.25  # of all bytes
GUESSED = 50_000  # bytes that are enough to guess by
WESTERN = "cp1252"  # the web's default, and of encodings that fit a short text equally the likeliest
IN_WORDS = re.compile(r"(?<=\w)[^\w\s\x00-\x7f’‐‑–—·…»”“„]|[^\w\s\x00-\x7f’‐‑–—·…«‘“„¿¡”](?=[^\W\d])")


class Unreadable(Exception):
    """The encoding of these bytes cannot be determined."""


def read(data: bytes) -> tuple[str, str]:
    """Decode a text, and name its encoding where that is a guess. Tried in order: byte order mark, UTF-8, the
    declared encoding, detection.

    Raises:
        Unreadable: none fits.
    """
    if mark := next((name for start, name in MARKS.items() if data.startswith(start)), ""):
        return data.decode(mark, "replace"), ""
    declared = _declared(data)
    if not (declared and declared.name.startswith(SEVEN_BITS)):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            pass
        else:
            if not _controls(text, "\x80"):  # those above are in texts that were converted wrongly once
                return text, ""
    if declared:
        text = declared.codec_info.decode(data, "replace")[0]
        if "\ufffd" not in text:
            return text, ""
    return _guessed(data)


def _declared(data: bytes) -> webencodings.Encoding | None:
    import webencodings

    found = DECLARED.search(data[:PRESCAN])
    known = webencodings.lookup(found[1].decode("ascii", "replace")) if found else None
    return None if known and known.name.startswith("utf-") else known


def _controls(text: str, below: str = "\xa0") -> bool:
    """Tell whether there are characters that no text has, as when every other byte is a NUL."""
    return any(
        one < below and unicodedata.category(one) == "Cc" and one not in "\t\n\r\f\x1b\x85"
        for one in set(text)
    )


def _guessed(data: bytes) -> tuple[str, str]:
    from charset_normalizer import from_bytes

    some = data[:GUESSED]
    single = sum(byte > 127 for byte in some) < FEW * len(some)
    unlikely = [*([] if b"\0" in data else WIDE), *(SEVERAL if single else [])]
    matches = sorted(from_bytes(some, cp_exclusion=unlikely), key=_doubt)
    names = [WESTERN if WESTERN in one.could_be_from_charset else one.encoding for one in matches]
    for name in [*names, *([WESTERN] if single and b"\0" not in data else [])]:
        try:
            text = data.decode(name)
        except (UnicodeDecodeError, LookupError):
            continue
        if not _controls(text):
            return text, name
    try:  # a binary file's strings, or a text with a few stray bytes
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Unreadable from None
    if data.count(0) > len(data) // 100:
        raise Unreadable
    return text.replace("\0", " "), ""


def _doubt(match: CharsetMatch) -> tuple[int, float, bool, float]:
    """Score how improbable a decoding is: a wrong encoding turns letters into symbols."""
    odd = len(IN_WORDS.findall(str(match)))
    return odd, round(match.chaos, 2), WESTERN not in match.could_be_from_charset, -match.coherence
