"""Why a server ended, out of its last lines, and how often in a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.guard.supervise.failures import Failures, cause

NO_DRIVER = 'E1127 14:15:08.847002 16910 server.cc:241] "CudaDriverHelper has not been initialized."'
LOADING = 'I1127 14:15:08.848317 16910 model_lifecycle.cc:472] "loading: vision:1"'
FAILED = (
    "E1127 14:14:58.710173 16508 life.cc:642] \"failed to load 'vision' version 1: Internal: "
    'Exception: Model missing\\n\\nAt:\\n  /a/model.py(9): initialize"'
)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([NO_DRIVER, LOADING, FAILED, "error: creating server: Internal"], "Exception: Model missing"),
        ([NO_DRIVER, LOADING], ""),
        (
            ["Traceback (most recent call last):", "ValueError: a key is too short"],
            "ValueError: a key is too short",
        ),
        ([NO_DRIVER, "error: creating server: Internal - no room"], "creating server: Internal - no room"),
        ([], ""),
    ],
)
def test_the_line_that_tells(lines: list[str], reason: str) -> None:
    assert cause(lines) == reason


def test_failures_outlive_their_guard(tmp_path: Path) -> None:
    path = tmp_path / "failures-0.json"
    Failures(path).note("no room")
    second = Failures(path)
    assert (second.count, second.reason) == (1, "no room")
    second.note("no key")
    assert Failures(path).count == 2
    second.clear()
    assert (Failures(path).count, Failures(path).reason) == (0, "")
    for rubbish in ("", "[]", '{"count": "x"}', '{"count": 5}'):
        path.write_text(rubbish)
        assert Failures(path).count == 0
