"""The README says what is there."""

from __future__ import annotations

import re

import pytest

from build.catalog import ROOT
from scripts.models import README, renewed


def test_the_table_of_models_is_the_catalogs() -> None:
    """`python -m scripts.models` writes it anew."""
    text = README.read_text("utf-8")
    assert renewed(text) == text


PAGES = sorted(str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link of a page."""
    path = ROOT / page
    for link in re.findall(r"\]\(([^)#]+)", path.read_text("utf-8")):
        if not link.startswith("http"):
            assert (path.parent / link).exists(), link
