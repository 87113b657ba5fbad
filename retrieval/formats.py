"""Extract text from each kind of document."""

from __future__ import annotations

import ctypes
import email
import json
import posixpath
import zipfile
from collections.abc import Callable, Iterator
from email import policy
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .letters import read

MOST_PARTS = 10_000  # of an archive that are read
MOST_PART = 200 << 20  # bytes of one, unpacked
SILENT = ["script", "style", "template", "noscript"]
# What a browser sets on lines of its own (https://html.spec.whatwg.org/#flow-content-3), and cells.
BLOCKS = (
    "address,article,blockquote,br,dd,div,dl,dt,fieldset,figcaption,figure,footer,form,h1,h2,h3,h4,h5,h6,header,hr,"
    "li,main,nav,ol,option,p,pre,section,summary,table,td,th,title,tr,ul"
)
LINE = "\x1e"  # stands for a line's end that is none of the source's


class NoText(Exception):
    """No text can be extracted; `code` is OpenAI's, the message gives reason and remedy."""

    def __init__(self, message: str, code: str = "invalid_file") -> None:
        super().__init__(message)
        self.code, self.message = code, message


def from_html(text: str) -> str:
    """Return a page's words as an HTML5 parser sees them, title first."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(text)
    title = tree.css_first("head title")
    words = [title.text() if title else ""]
    tree.strip_tags([*SILENT, "head"])
    for node in tree.css(BLOCKS):
        node.insert_before(LINE)
        node.insert_after(LINE)
    words.append(tree.root.text(deep=True, separator="") if tree.root else "")
    lines = (" ".join(line.split()) for part in words for line in part.split(LINE))
    return "\n".join(line for line in lines if line)


def from_pdf(path: Path) -> str:
    """Return the text of all pages, separated by blank lines, with the contents of form fields.

    Raises:
        NoText: it is encrypted, broken, or has pictures only.
    """
    import pypdfium2 as pdfium

    try:
        document = pdfium.PdfDocument(path)
    except pdfium.PdfiumError as error:
        if "password" in str(error).lower():
            raise NoText("the PDF is encrypted; upload it without a password") from error
        raise NoText("the PDF cannot be read; it is damaged, or not a PDF") from error
    if document.get_formtype():
        document.init_forms()
    text = "\n\n".join(_page(document, number) for number in range(len(document)))
    if not text.strip():
        raise NoText("the PDF has no text; pages that are pictures need OCR first")
    return text


def _page(document: Any, number: int) -> str:
    import pypdfium2 as pdfium

    try:
        page = document[number]
    except pdfium.PdfiumError:
        return ""
    found = page.get_textpage().get_text_bounded(errors="replace")
    plain = (
        found.replace("\r\n", "\n").replace("\ufffe\n", "").replace("\x02\n", "")
    )  # hyphens at lines' ends
    return "\n".join([plain, *_fields(document, page)]).strip()


def _fields(document: Any, page: Any) -> Iterator[str]:
    """Return names and values of a page's form (PDFium's fpdf_annot.h)."""
    import pypdfium2.raw as pdfium

    form = getattr(document, "formenv", None)
    for i in range(pdfium.FPDFPage_GetAnnotCount(page) if form else 0):
        annotation = pdfium.FPDFPage_GetAnnot(page, i)
        if pdfium.FPDFAnnot_GetSubtype(annotation) == pdfium.FPDF_ANNOT_WIDGET:
            name = _string(partial(pdfium.FPDFAnnot_GetFormFieldAlternateName, form, annotation))
            value = _string(partial(pdfium.FPDFAnnot_GetFormFieldValue, form, annotation))
            if value.strip() not in ("", "Off"):
                yield f"{name}: {value}" if name else value
        pdfium.FPDFPage_CloseAnnot(annotation)


def _string(ask: Callable[[Any, int], int]) -> str:
    size = ask(None, 0)
    buffer = ctypes.create_string_buffer(size)
    ask(ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), size)
    return buffer.raw[:size].decode("utf-16-le", "replace").rstrip("\0")


def from_docx(path: Path) -> str:
    """Return paragraphs, lists, tables, notes."""
    import mammoth

    with path.open("rb") as file:
        return from_html(
            mammoth.convert_to_html(file, convert_image=mammoth.images.img_element(lambda _: {})).value
        )


def from_sheets(path: Path) -> str:
    """Return each row of each sheet as a line, cells separated by tabs."""
    from python_calamine import CalamineWorkbook

    book = CalamineWorkbook.from_path(str(path))
    lines = []
    for name in book.sheet_names:
        rows = book.get_sheet_by_name(name).to_python()
        written = ["\t".join(_cell(cell) for cell in row).rstrip() for row in rows]
        lines += [name, *(row for row in written if row.strip()), ""]
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).replace("\n", " ")


def from_slides(path: Path) -> str:
    """Return slides in order, each with its notes (ECMA-376: a:p are paragraphs, a:t is text)."""
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if name.endswith(".xml")}
        numbered = sorted(
            (int(number), name)
            for name in names
            if name.startswith("ppt/slides/slide") and (number := name[16:-4]).isdecimal()
        )
        parts = [
            part
            for number, name in islice(numbered, MOST_PARTS)
            for part in (name, f"ppt/notesSlides/notesSlide{number}.xml")
            if part in names
        ]
        return "\n\n".join("\n".join(_paragraphs(_part(archive, part), {"p"}, {"t"})) for part in parts)


def from_opendocument(path: Path) -> str:
    """Return paragraphs and headings (OpenDocument 1.3, part 3)."""
    with zipfile.ZipFile(path) as archive:
        return "\n".join(_paragraphs(_part(archive, "content.xml"), {"p", "h"}, None))


def _paragraphs(data: bytes, blocks: set[str], written: set[str] | None) -> Iterator[str]:
    """Return the text of each block element of an XML document: of elements called `written`, or of all."""
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, recover=True, huge_tree=True)
    root = etree.fromstring(data, parser)
    gaps = {"tab": "\t", "s": " ", "br": "\n", "line-break": "\n"}
    for block in root.iter() if root is not None else ():
        if not isinstance(block.tag, str) or etree.QName(block).localname not in blocks:
            continue
        words = []
        for node in block.iter():
            name = etree.QName(node).localname if isinstance(node.tag, str) else ""
            words.append(gaps.get(name, ""))
            words.append(node.text or "" if written is None or name in written else "")
            words.append(node.tail or "" if written is None and node is not block else "")
        if line := "".join(words).strip():
            yield line


def from_epub(path: Path) -> str:
    """Return chapters in the order of the spine (EPUB 3.3, 5.7)."""
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, recover=True)
    with zipfile.ZipFile(path) as archive:
        root = etree.fromstring(_part(archive, "META-INF/container.xml"), parser)
        package = root.xpath("string(//*[local-name()='rootfile']/@full-path)")
        book = etree.fromstring(_part(archive, package), parser)
        places = {item.get("id"): item.get("href") for item in book.xpath("//*[local-name()='item']")}
        spine = [places.get(item.get("idref")) for item in book.xpath("//*[local-name()='itemref']")]
        folder, names = posixpath.dirname(package), set(archive.namelist())
        parts = [posixpath.normpath(posixpath.join(folder, unquote(place))) for place in spine if place]
        found = [_part(archive, part) for part in islice(parts, MOST_PARTS) if part in names]
    chapters = [
        etree.tostring(etree.fromstring(one, parser), method="html", encoding="unicode") for one in found
    ]
    return "\n\n".join(from_html(chapter) for chapter in chapters)


def _part(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > MOST_PART:
        raise NoText(f"{name[:80]} in the file is too large; split the file")
    return archive.read(name)


def from_rtf(path: Path) -> str:
    """Return the text without control words."""
    from striprtf.striprtf import rtf_to_text

    return str(rtf_to_text(path.read_bytes().decode("latin-1"), errors="replace"))


def from_mail(path: Path) -> str:
    """Return main headers and text, the plain part if there are two (RFC 5322, 2045)."""
    with path.open("rb") as file:
        message = email.message_from_binary_file(file, policy=policy.default)
    heads = [f"{name}: {message[name]}" for name in ("From", "To", "Cc", "Date", "Subject") if message[name]]
    body = message.get_body(("plain", "html"))
    text = "" if body is None else str(body.get_content())
    if body is not None and body.get_content_subtype() == "html":
        text = from_html(text)
    return "\n".join([*heads, "", text])


def from_notebook(path: Path) -> str:
    """Return cells and their output (nbformat 4)."""
    book = json.loads(read(path.read_bytes())[0])
    parts = []
    for cell in book.get("cells", ()):
        printed = cell.get("outputs", ())
        texts = [one.get("text", one.get("data", {}).get("text/plain", "")) for one in printed]
        parts += ["".join(text) for text in (cell.get("source", ""), *texts)]
    return "\n\n".join(part for part in parts if part.strip())


READERS: dict[str, Callable[[Path], str]] = {
    ".pdf": from_pdf,
    ".docx": from_docx,
    ".xlsx": from_sheets,
    ".xls": from_sheets,
    ".ods": from_sheets,
    ".pptx": from_slides,
    ".odt": from_opendocument,
    ".odp": from_opendocument,
    ".epub": from_epub,
    ".rtf": from_rtf,
    ".eml": from_mail,
    ".ipynb": from_notebook,
}
