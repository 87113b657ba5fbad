"""The README says what is there."""

from __future__ import annotations

import json
import re

import pytest

from build.catalog import ROOT
from scripts.models import README, renewed


def test_the_table_of_models_is_the_catalogs() -> None:
    """`python -m scripts.models` writes it again."""
    text = README.read_text("utf-8")
    assert renewed(text) == text


def test_the_answer_is_that_of_the_recording() -> None:
    """The curl's answer; that a stack gives it is tested in tests/stack/test_docs.py."""
    found = re.search(r"```json\n(.*)\n```", README.read_text("utf-8"))
    assert found
    rows = json.loads((ROOT / "miniatures/recordings/recordings.json").read_text("utf-8"))
    recording = next(row for row in rows if row["name"] == "demo.flac")
    answer = json.loads(found[1])
    assert answer["text"] == recording["text"]
    assert answer["usage"] == {"seconds": recording["seconds"], "type": "duration"}


def test_every_promise_names_tests_that_exist() -> None:
    """Of reliability.md: the table has all promises, and each test of it is in its file."""
    text = (ROOT / "docs/reliability.md").read_text("utf-8")
    table = re.findall(r"^\| (\d) \| [^|]+ \| (`.*`) \|$", text, re.MULTILINE)
    assert {number for number, _ in table} == set(re.findall(r"^(\d)\. \*\*", text, re.MULTILINE))
    for _, names in table:
        for file, name in re.findall(r"`([^`]+)::([^`]+)`", names):
            assert f"def {name}(" in (ROOT / "tests" / file).read_text("utf-8"), f"{file}::{name}"


PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link of a page."""
    path = ROOT / page
    for link in re.findall(r"\]\(([^)#]+)", path.read_text("utf-8")):
        if not link.startswith("http"):
            assert (path.parent / link).exists(), link
