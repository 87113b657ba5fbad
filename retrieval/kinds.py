"""Determine a file's kind from its content, then its name, then its declared media type."""

from __future__ import annotations

import mimetypes
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

PLAIN = {".c", ".cc", ".cpp", ".cs", ".css", ".csv", ".go", ".h", ".java", ".js", ".json", ".jsonl", ".log"}
PLAIN |= {".md", ".markdown", ".php", ".py", ".rb", ".rs", ".rst", ".sh", ".sql", ".srt", ".tex", ".toml"}
PLAIN |= {".ts", ".tsv", ".txt", ".vtt", ".xml", ".yaml", ".yml"}
OFFICE = {".docx", ".eml", ".epub", ".ipynb", ".odp", ".ods", ".odt", ".pptx", ".rtf", ".xls", ".xlsx"}
KINDS = PLAIN | OFFICE | {".htm", ".html", ".pdf"}
PICTURES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"})
HEAD = 1024  # bytes that tell
# Beginnings that no other kind has.
SIGNATURES = {
    b"%PDF-": ".pdf",
    b"{\\rtf": ".rtf",
    b"\xd0\xcf\x11\xe0": ".ole",
    b"PK\x03\x04": ".zip",
    b"\x89PNG\r\n": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"BM": ".bmp",
}
# What a zip file of an office program has (ECMA-376; OpenDocument 1.3, part 2; EPUB 3.3).
PARTS = {"word/document.xml": ".docx", "ppt/presentation.xml": ".pptx", "xl/workbook.xml": ".xlsx"}
PARTS |= {"xl/workbook.bin": ".xls"}
MIMETYPES = {
    b"application/vnd.oasis.opendocument.text": ".odt",
    b"application/vnd.oasis.opendocument.spreadsheet": ".ods",
    b"application/vnd.oasis.opendocument.presentation": ".odp",
    b"application/epub+zip": ".epub",
}
TYPES = {
    "text/markdown": ".md",
    "application/x-ipynb+json": ".ipynb",
    "text/vtt": ".vtt",
    "text/plain": ".txt",
    "application/xml": ".xml",
    "text/xml": ".xml",
}
TYPES |= {"application/x-subrip": ".srt", "application/rtf": ".rtf", "application/epub+zip": ".epub"}


def suffix(name: str) -> str:
    """Return the last suffix in lower case."""
    return PurePath(name).suffix.lower()


def signature(head: bytes) -> str:
    """Return the kind that a file's first bytes show; empty if unknown."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return ".webp"
    found = next((kind for start, kind in SIGNATURES.items() if head.startswith(start)), "")
    if found == ".bmp" and head[6:10] != b"\0\0\0\0":  # reserved (BITMAPFILEHEADER); a text may begin so
        return ""
    return found


def kind_of(path: Path, name: str, media_type: str = "") -> str:
    """Return a suffix of KINDS, PICTURES, or another one; empty for a text of unknown kind."""
    with path.open("rb") as file:
        head = file.read(HEAD)
    found, own = signature(head), suffix(name)
    if found == ".zip":
        return _of_zip(path) or own
    if found == ".ole":
        return ".xls" if own == ".xls" else own if own in (".doc", ".ppt", ".msg") else ".ole"
    if found or own in KINDS | PICTURES:
        return found or own
    if b"%PDF-" in head:  # readers allow for something before it
        return ".pdf"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return ".html"
    declared = media_type.partition(";")[0].strip().lower()
    guess = TYPES.get(declared) or mimetypes.guess_extension(declared) or ""
    return guess if guess in KINDS | PICTURES else own


def _of_zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            written = archive.read("mimetype")[:100].strip() if "mimetype" in names else b""
    except (zipfile.BadZipFile, NotImplementedError, OSError, RuntimeError):
        return ""
    return MIMETYPES.get(written) or next((kind for part, kind in PARTS.items() if part in names), "")


def drawn(head: bytes, name: str) -> bool:
    """Tell whether a file with these first bytes and this name is a picture."""
    found = signature(head)
    return found in PICTURES or (not found and suffix(name) in PICTURES)


def is_picture(body: Mapping[str, Any]) -> bool:
    """Tell whether the record of a file, or of an attachment, is of a picture, which has no own text."""
    return bool(body.get("picture", suffix(body["filename"]) in PICTURES))
