"""Messages and docstrings in idiomatic English: patterns that were found in them, and must not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache

from build.catalog import ROOT
from scripts.house import sources
from scripts.messages import messages

SOURCES = sources()
# What is wrong, what to write instead, and a text that was found.
COMPARED = "longer|more|less|such|later|earlier|larger|wider|smaller|room"
NO = rf"(?<!\bthere )(?<!\bThere )\b(is|are) no (?!({COMPARED})\b)\w+"
PATTERNS = {
    NO: ("X is not a Y, X is not valid Y", "the body is no JSON"),
    r"\bmeans? nothing to\b": ("is not supported by", "IMAGE_URL means nothing to this text model; omit it"),
    r"\b(is|are) being worked on\b|\bare worked on\b": (
        "run concurrently; at capacity",
        "are being worked on",
    ),
    r"\bwhich is (this|its)\b.*\bcapacity\b": (
        "at capacity (…); retry in N s",
        "which is this deployment's capacity",
    ),
    r"\b(do|does) not go with\b": ("cannot be combined with …; omit one", "best_of does not go with"),
    r"\bleave (it|one of them|them) out\b": ("omit it", "combined with temperature; leave one of them out"),
    r"\bof no known (kind|type)\b": ("has an unknown …", "source x is of no known kind"),
    r"\bgave up in the middle\b": ("failed mid-stream", "the engine gave up in the middle of this text"),
    r"\bare there already\b|\bis there already\b": ("already exists", "x is there already"),
    r"\bis not heard\b|\bare not heard\b": ("is ignored", "temperature is not heard"),
    r"\bit would stand in\b": ("expected …", "family x does not exist; it would stand in"),
    r"\bends are banned\b": ("EOS is suppressed", "ends are banned, so that each makes exactly what is"),
    r"\beverybody may come in\b": ("no key is required", "one a line; without keys everybody may come in"),
    r"\bsend it itself\b": ("send the picture itself", "picture 3 could not be fetched; send it itself"),
    r"\bone too many\b": ("exceeds the limit of …", "picture 3 is one too many: all together may have 2 MiB"),
    r"\breads? text alone\b": ("takes text only", "mini reads text alone; send text"),
    r"\ball the time; try\b": ("concurrent …; retry", "'x' is changed by others all the time; try again"),
    r"\bin OpenAI's dialect\b|\bdialect of\b": ("OpenAI API", "A gateway in OpenAI's dialect"),
    r"\bnobody answers\b|\bnothing answers at\b": ("no answer from", "nobody answers at 127.0.0.1:9"),
    r"\bwho may come in\b": ("a subject and a verb", "who may come in"),
    r"\bis read wrongly\b|\bare read wrongly\b": ("is not supported by …", "TOP_P_MIN is read wrongly by"),
    r"\bis not one of \S+'s\b": ("unknown …; X takes: …", "input 'A' is not one of model's: B"),
    r"\bsend (them|it) apart\b": ("send separate requests", "the rows of one request; send them apart"),
    r"\bis not understood\b": ("is not a …; write …", "RATE_LIMIT='x' is not understood; write it as 10r/s"),
}
GOOD = (
    "the body is not valid JSON",
    "at capacity (32 recordings at this gateway); retry in 3 s",
    "best_of cannot be combined with stream=true; omit one",
    "this model is no longer served; use another",
    "there is no disk space for another recording; try again later",
)


def findings(text: str) -> list[str]:
    """The patterns that a text has, as `found: better`."""
    return [
        f"{found[0]!r}: write {better!r}"
        for pattern, (better, _) in PATTERNS.items()
        if (found := re.search(pattern, text))
    ]


@cache
def docstrings() -> list[str]:
    """`file:line: text` of every docstring of the product."""
    return list(documented())


def documented() -> Iterator[str]:
    for source in SOURCES:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    place = source.path.relative_to(source.root)
                    yield f"{place}:{getattr(node, 'lineno', 1)}: {' '.join(text.split())}"


def test_patterns_find_what_they_are_for() -> None:
    assert [better for better, old in PATTERNS.values() if not findings(old)] == []
    assert [good for good in GOOD if findings(good)] == []


def test_messages() -> None:
    """Short ones among them."""
    listed = list(messages())
    assert not [f"{text[:160]}  {wrong}" for text in listed if (wrong := findings(text))]
    assert any("stream=true" in text for text in listed)
    assert not any("select {NAMES}" in text for text in listed)


def test_docstrings() -> None:
    assert not [f"{text[:160]}  {wrong}" for text in docstrings() if (wrong := findings(text))]


# Words for software that a reader could not find by the field's own terms, and where they are right.
CALQUES = re.compile(r"\b(beside|anew|whoever|heard|hears|doors?)\b", re.IGNORECASE)
RIGHT = re.compile(r"`[^`]*`|people who hear[^.]*")


def commented() -> Iterator[str]:
    """Comments and docstrings of all Python files, and lines of the documentation."""
    for source in SOURCES:
        text = source.path.read_text("utf-8")
        if not CALQUES.search(text):  # a tokenizer takes its time
            continue
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield f"{source.path}: {token.string}"
    yield from docstrings()
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        yield from (f"{page}: {line}" for line in page.read_text("utf-8").splitlines())


def test_standard_terms() -> None:
    """Next to, again, a client that, received, listener."""
    found = [text for text in commented() if CALQUES.search(RIGHT.sub("", text.partition(": ")[2]))]
    assert len(found) <= 10, found
