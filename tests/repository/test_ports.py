"""Suites that run next to each other never meet on a port."""

from __future__ import annotations

import re

from build.catalog import ROOT
from tests.ports import FIRST, STEP, SUITES, first_port

USED = range(-80, 61)  # of a stack, next to its PORT
LITERAL = re.compile(r"^\w*PORT\w*(, \w+)* = (9|1[0-8])\d{3}\b.*$|127\.0\.0\.1:9\d{3}/", re.M)


def test_blocks_lie_apart_below_outgoing_connections() -> None:
    assert len(set(SUITES)) == len(SUITES)
    assert len(USED) <= STEP
    assert first_port(SUITES[-1]) + USED[-1] < 32768
    assert first_port(SUITES[0]) == FIRST


def test_no_suite_has_a_port_of_its_own() -> None:
    folders = ("stack", "compose", "attack", "swarm", "console")
    pages = [path for folder in folders for path in (ROOT / "tests" / folder).rglob("*.py")]
    assert not [
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in pages
        if (found := LITERAL.search(path.read_text("utf-8")))
    ]
    text = "".join(path.read_text("utf-8") for path in pages)
    assert not [suite for suite in SUITES if text.count(f'first_port("{suite}")') > 1 and suite != "compose"]
