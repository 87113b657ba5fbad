"""Documents as people have them: every kind, in letters of any encoding, under any name, whole or damaged."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path

import pytest
from pypdf import PdfWriter

from retrieval.extraction import NoText, extract, extracted
from retrieval.formats import from_html
from retrieval.kinds import drawn, is_picture, kind_of
from retrieval.letters import Unreadable, read
from tests.fakes.documents import pdf

WORDS = "The kitchen was painted green last summer."
GERMAN = "Das Café liegt an der Straße; die Küche öffnet um neun Uhr.\n"
RUSSIAN = "Магазин открывается в девять часов утра. Кухня закрыта до вечера.\n"
JAPANESE = "店は九時に開きます。台所は夕方まで閉まっています。\n"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (
            "<title>T</title><style>x{}</style><h1>A <b>b</b></h1>c<br>d&amp;e<script>no</script><li>f<li>g",
            "T\nA b\nc\nd&e\nf\ng",
        ),
        # End tags that HTML5 lets one omit, and elements that end others (html.spec.whatwg.org, 13.1.2.4).
        ("<html lang=en><head><title>T</title><body><p>one<p>two", "T\none\ntwo"),
        ("<head><title>T</title><p>one</p>", "T\none"),
        ("<body>a<noscript>no</noscript>b<template>no<p>no</template>c", "abc"),
        ("<head><noscript><link rel=x></noscript><body>a", "a"),
        ("<script>if (a < b) document.write('</p>')</script>a", "a"),
        ("<!-- <p>no --><p>a<!-->b", "ab"),
        ("<style>p{}</style", ""),
        ("<table><tr><td>a<td>b<tr><td>c</table>d", "a\nb\nc\nd"),
        ("<p>hy<wbr>phen<b>a</b>ted <i>words</i>", "hyphenated words"),
        ("<svg><title>no</title><text>drawn</text></svg><p>a", "no\ndrawn\na"),
        ("<select><option>a<option>b</select>", "a\nb"),
        ("&nbsp;a&shy;b &copy; &#x41;", "a\xadb © A"),
        ("<div>" * 5000 + "deep", "deep"),
    ],
)
def test_html_as_a_browser_reads_it(page: str, words: str) -> None:
    assert from_html(page) == words


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        *[(text, name) for text in (GERMAN, RUSSIAN, JAPANESE, WORDS) for name in ("utf-8", "utf-8-sig")],
        *[(text, name) for text in (GERMAN, RUSSIAN, JAPANESE, WORDS) for name in ("utf-16", "utf-32")],
        *[(text * 3, f"utf-16-{end}") for text in (GERMAN, RUSSIAN, JAPANESE, WORDS) for end in ("le", "be")],
        *[(text * 3, f"utf-32-{end}") for text in (GERMAN, RUSSIAN, WORDS) for end in ("le", "be")],
    ],
)
def test_unicode_with_and_without_a_mark(text: str, encoding: str) -> None:
    assert read(text.encode(encoding))[0].removeprefix("\ufeff") == text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (f"<meta charset=iso-8859-1>{GERMAN}".encode("cp1252"), f"<meta charset=iso-8859-1>{GERMAN}"),
        (f"<?xml version='1.0' encoding='windows-1251'?>{RUSSIAN}".encode("cp1251"), RUSSIAN),
        (f"<meta content='text/html; charset=Shift_JIS'>{JAPANESE}".encode("shift_jis"), JAPANESE),
        (f"<meta charset=iso-2022-jp>{JAPANESE}".encode("iso2022_jp"), JAPANESE),
        (f"<meta charset=latin1>{GERMAN}".encode(), GERMAN),  # it is UTF-8, whatever it says
    ],
)
def test_an_encoding_that_a_file_declares(data: bytes, text: str) -> None:
    found, guessed = read(data)
    assert found.endswith(text)
    assert not guessed


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        *[(GERMAN, "cp1252"), (RUSSIAN, "cp1251"), (JAPANESE * 4, "cp932")],
        ("El señor Núñez comió jamón en la cocina.", "cp1252"),
        ("Żółta kuchnia została pomalowana latem, to źle.", "cp1250"),
        ("Η κουζίνα βάφτηκε πράσινη το περασμένο καλοκαίρι.", "cp1253"),
    ],
)
def test_a_guess_is_told(text: str, encoding: str) -> None:
    assert read(text.encode(encoding)) == (text, encoding)


def test_text_with_odd_characters_is_kept() -> None:
    for text in (
        "It\x92s the café, \x93quoted\x94.",
        "日本語 text \x92 and more 日本語",
    ):  # converted wrongly once
        assert read(text.encode()) == (text, "")
    assert read(b"a\x00b\x08c\x1b[0m" + b"d" * 200)[0].startswith("a b")
    with pytest.raises(Unreadable):
        read(bytes(range(128, 256)) * 30 + bytes(4000))


def archive(files: dict[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        for name, data in files.items():
            made.writestr(name, data)
    return out.getvalue()


W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
DOCX = {
    "[Content_Types].xml": "<Types xmlns='http://schemas.openxmlformats.org/package/2006/content-types'>"
    "<Default Extension='xml' ContentType='application/xml'/><Override PartName='/word/document.xml' "
    "ContentType='application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml'/></Types>",
    "_rels/.rels": "<Relationships xmlns='http://schemas.openxmlformats.org/package/2006/relationships'>"
    "<Relationship Id='1' Type='http://schemas.openxmlformats.org/officeDocument/2006/relationships/"
    "officeDocument' Target='word/document.xml'/></Relationships>",
    "word/document.xml": f"<w:document {W}><w:body><w:p><w:r><w:t>{WORDS}</w:t></w:r></w:p>"
    "<w:p><w:ins><w:r><w:t>inserted</w:t></w:r></w:ins><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>"
    "</w:p><w:sdt><w:sdtContent><w:p><w:r><w:t>field</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    "<w:tbl><w:tr><w:tc><w:p><w:r><w:t>cell</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:body></w:document>",
}
A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
PPTX = {
    "ppt/presentation.xml": "<p/>",
    "ppt/slides/slide10.xml": f"<s {A}><a:p><a:r><a:t>last</a:t></a:r></a:p></s>",
    "ppt/slides/slide2.xml": f"<s {A}><a:p><a:r><a:t>The kit</a:t></a:r><a:r><a:t>chen</a:t></a:r></a:p></s>",
    "ppt/notesSlides/notesSlide2.xml": f"<s {A}><a:p><a:r><a:t>a note</a:t></a:r></a:p></s>",
}
T = 'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
ODT = {
    "mimetype": "application/vnd.oasis.opendocument.text",
    "content.xml": f"<o {T}><text:h>Head</text:h><text:p>The "
    "<text:span>kit</text:span>chen<text:tab/>green</text:p></o>",
}
EPUB = {
    "mimetype": "application/epub+zip",
    "META-INF/container.xml": "<c><rootfile full-path='OPS/book.opf'/></c>",
    "OPS/book.opf": "<p><item id='b' href='two.xhtml'/><item id='a' href='one%20x.xhtml'/>"
    "<itemref idref='a'/><itemref idref='b'/></p>",
    "OPS/one x.xhtml": "<?xml version='1.0' encoding='utf-8'?><html xmlns='http://www.w3.org/1999/xhtml'>"
    "<head><title/><script src='x.js'/></head><body><p>first</p></body></html>",
    "OPS/two.xhtml": "<p>second</p>",
}


def mail() -> bytes:
    message = EmailMessage()
    message["From"], message["Subject"] = "a@example.org", "Küche"
    message.set_content("<p>Die Küche ist grün.</p>", subtype="html", charset="iso-8859-1")
    return message.as_bytes()


NOTEBOOK = b'{"cells":[{"source":["The ","kitchen"],"outputs":[{"text":["green"]}]},{"source":"x = 1"}]}'


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("a.docx", archive(DOCX), f"{WORDS}\ninserted\nfield\ncell"),
        ("a.pptx", archive(PPTX), "The kitchen\n\na note\n\nlast"),
        ("a.odt", archive(ODT), "Head\nThe kitchen\tgreen"),
        ("a.epub", archive(EPUB), "first\n\nsecond"),
        ("a.rtf", rb"{\rtf1\ansi{\b The} kitchen \'fcber\par green}", "The kitchen über\ngreen"),
        ("a.eml", mail(), "From: a@example.org\nSubject: Küche\n\nDie Küche ist grün."),
        ("a.ipynb", NOTEBOOK, "The kitchen\n\ngreen\n\nx = 1"),
        ("a.vtt", b"WEBVTT\n\n00:01.000 --> 00:02.000\nHello", "WEBVTT\n\n00:01.000 --> 00:02.000\nHello"),
        ("Table.CSV", b"a,b\r\nc,d", "a,b\nc,d"),
        ("README", b"plain words", "plain words"),
        ("blob", b"<!DOCTYPE html><title>T</title><p>a", "T\na"),
        ("a.txt", archive(DOCX), f"{WORDS}\ninserted\nfield\ncell"),
        ("a.md", b"<html> is a tag", "<html> is a tag"),
        ("a.md", b"A PDF begins with %PDF-1.7", "A PDF begins with %PDF-1.7"),
    ],
)
def test_every_kind_gives_its_text(tmp_path: Path, name: str, data: bytes, text: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert extract(path, name)[0].strip() == text


def test_a_media_type_stands_for_a_name(tmp_path: Path) -> None:
    """As browsers send what has none."""
    path = tmp_path / "file"
    path.write_bytes(b"<p>one<p>two")
    assert extract(path, "blob", "text/html; charset=utf-8")[0] == "one\ntwo"
    assert extract(path, "blob")[0] == "<p>one<p>two"
    assert extract(path, "README", "application/octet-stream")[0] == "<p>one<p>two"
    assert extract(path, "Minutes 12.5", "text/plain")[0] == "<p>one<p>two"
    assert extract(path, "feed", "application/xml")[0] == "<p>one<p>two"


def locked_pdf() -> bytes:
    """A PDF with a password."""
    writer, out = PdfWriter(io.BytesIO(pdf("secret"))), io.BytesIO()
    writer.encrypt("a password", algorithm="RC4-128")
    writer.write(out)
    return out.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data,
        lambda data: data[:-20],  # without its end
        lambda data: data.replace(b"startxref\n", b"startxref\n9"),
        lambda data: b"junk before\n" + data,
        lambda data: data + b"\njunk behind",
    ],
)
def test_a_damaged_pdf_is_repaired_as_viewers_do(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "file"
    path.write_bytes(change(pdf(WORDS)))
    assert extract(path, "a.pdf")[0].strip() == WORDS


@pytest.mark.parametrize(
    ("name", "data", "code", "said"),
    [
        ("a.exe", b"MZ", "unsupported_file", "files of kind '.exe' are not supported"),
        ("a.doc", b"\xd0\xcf\x11\xe0" + bytes(600), "unsupported_file", "save it as docx"),
        ("a.docx", b"\xd0\xcf\x11\xe0" + bytes(600), "invalid_file", "is encrypted, or of an old kind"),
        ("a.docx", b"PK\x03\x04broken", "invalid_file", "cannot be read as DOCX"),
        ("a.xlsx", b"PK..", "invalid_file", "cannot be read as XLSX"),
        ("a.xlsx", archive({"xl/workbook.xml": "<x"}), "invalid_file", "cannot be read as XLSX"),
        ("a.pdf", b"%PDF-1.4\n", "invalid_file", "the PDF cannot be read"),
        ("a.pdf", locked_pdf(), "invalid_file", "encrypted"),
        ("a.pdf", pdf(""), "invalid_file", "pages that are pictures need OCR"),
        ("a.txt", b"  \n ", "invalid_file", "no text"),
        ("a.html", b"<script>x</script>", "invalid_file", "has no text"),
        ("a.txt", bytes(range(128, 256)) * 30 + bytes(4000), "invalid_file", "convert it to UTF-8"),
    ],
)
def test_the_true_reason(tmp_path: Path, name: str, data: bytes, code: str, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(NoText, match=said) as failed:
        extract(path, name)
    assert failed.value.code == code


def test_pictures_are_known_by_their_content(tmp_path: Path) -> None:
    assert drawn(b"\x89PNG\r\n\x1a\n", "blob")
    assert drawn(b"no picture", "a.png")  # it fails as one
    assert not drawn(b"%PDF-1.4", "a.png")
    assert not drawn(b"BMW and other cars", "cars.txt")
    assert is_picture({"filename": "blob", "picture": True})
    assert is_picture({"filename": "a.PNG"})  # records of older versions
    (tmp_path / "x").write_bytes(b"GIF89a")
    assert kind_of(tmp_path / "x", "a.txt") == ".gif"


def test_a_file_ends_in_its_own_process(tmp_path: Path) -> None:
    """Time and memory of one file are bounded; what it breaks is not the gateway."""
    path = tmp_path / "a.txt"
    path.write_text("words")
    assert asyncio.run(extracted(path, "a.txt", 60)) == ("words", "")
    with pytest.raises(NoText, match="longer than"):
        asyncio.run(extracted(path, "a.txt", 0.001))
    with path.open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(NoText, match="memory"):
        asyncio.run(extracted(path, "a.txt", 60))
