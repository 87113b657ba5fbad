"""A file's text. `python -m gateway.retrieval.extraction PATH NAME` prints it, in a process of its own
that may take so much time and memory and no more: what a file does to its parser ends there.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from html.parser import HTMLParser
from pathlib import Path, PurePath

PLAIN = frozenset(
    [
        ".c",
        ".cc",
        ".cpp",
        ".cs",
        ".css",
        ".csv",
        ".go",
        ".h",
        ".java",
        ".js",
        ".json",
        ".jsonl",
        ".log",
        ".md",
        ".markdown",
        ".php",
        ".py",
        ".rb",
        ".rs",
        ".rst",
        ".sh",
        ".sql",
        ".tex",
        ".toml",
        ".ts",
        ".tsv",
        ".txt",
        ".xml",
        ".yaml",
        ".yml",
    ]
)
KINDS = PLAIN | {".htm", ".html", ".pdf"}
PICTURES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"})
MEMORY = 2 << 30  # bytes of address space
MOST_TEXT = 20_000_000  # characters
SILENT = frozenset({"script", "style", "template", "noscript", "head"})
BLOCKS = frozenset(
    [
        "address",
        "article",
        "blockquote",
        "br",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "td",
        "th",
        "tr",
        "ul",
    ]
)


class NoText(Exception):
    """A file gives no text; `code` is OpenAI's: unsupported_file or invalid_file."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def is_picture(name: str) -> bool:
    """A file of this name is a picture; it has no text of its own."""
    return PurePath(name).suffix.lower() in PICTURES


def decoded(data: bytes) -> str:
    """UTF-8, or UTF-16 with a byte order mark.

    Raises:
        NoText: something else.
    """
    marked = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if marked else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise NoText("invalid_file", f"the file is not UTF-8 text ({error.reason}); convert it") from None
    return text.replace("\r\n", "\n").replace("\0", " ")


class _Html(HTMLParser):
    """Words between tags; blocks stand on lines of their own. The page's title comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.silent = 0
        self.title = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.silent += tag in SILENT
        self.title |= tag == "title"
        if tag in BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self.silent = max(0, self.silent - (tag in SILENT))
        if tag == "title":
            self.title = False
            self.parts.append("\n\n")
        if tag in BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if self.title or not self.silent:
            self.parts.append(data if self.title else " ".join(data.split()) + " " if data.strip() else " ")


def from_html(text: str) -> str:
    """The words of a page."""
    parser = _Html()
    parser.feed(text)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)


def from_pdf(path: Path) -> str:
    """The text of all pages, a blank line between them.

    Raises:
        NoText: it is encrypted, broken, or has pictures only.
    """
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise NoText("invalid_file", "the PDF is encrypted; upload it without a password")
        text = "\n\n".join(page.extract_text() for page in reader.pages)
    except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise NoText("invalid_file", f"the PDF cannot be read: {str(error)[:200]}") from error
    if not text.strip():
        raise NoText("invalid_file", "the PDF has no text; pages that are pictures need OCR first")
    return text.encode("utf-8", "replace").decode("utf-8")


def extract(path: Path, name: str) -> str:
    """The text of a file called `name`.

    Raises:
        NoText: of this kind, broken, empty or too long.
    """
    kind = PurePath(name).suffix.lower()
    if kind not in KINDS:
        raise NoText(
            "unsupported_file",
            f"files of kind {kind or 'without an extension'!r} are not supported; use one of "
            f"{', '.join(sorted(KINDS | PICTURES))}",
        )
    if kind == ".pdf":
        text = from_pdf(path)
    else:
        text = decoded(path.read_bytes())
        text = from_html(text) if kind in (".htm", ".html") else text
    if not text.strip():
        raise NoText("invalid_file", "the file has no text")
    if len(text) > MOST_TEXT:
        raise NoText("invalid_file", f"the file has {len(text)} characters; at most {MOST_TEXT} are read")
    return text


async def extracted(path: Path, name: str, seconds: float) -> str:
    """`extract` in another process.

    Raises:
        NoText: also if it takes longer than `seconds`, or more memory than it may.
    """
    command = [sys.executable, "-m", "gateway.retrieval.extraction", str(path), name]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        raise NoText("invalid_file", f"reading the file took longer than {seconds:g} s; cut it") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise NoText("invalid_file", "the file cannot be read within the memory limit for one file; split it")
    found = json.loads(output)
    if "text" not in found:
        raise NoText(found["code"], found["message"])
    return str(found["text"])


def main() -> None:
    """Print JSON: the text, or the code and message of why there is none."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.nice(5)  # answers go first
    try:
        found = {"text": extract(Path(sys.argv[1]), sys.argv[2])}
    except NoText as error:
        found = {"code": error.code, "message": error.message}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
