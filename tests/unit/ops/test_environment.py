"""What .env says, and what a shell says instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops import environment


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A .env of the user's, read instead of the repository's."""
    (tmp_path / ".env").write_text("PORT=8080\nTARGET='torch'\n# a comment\nPRECISION=\nHF_TOKEN=one\n")
    monkeypatch.setattr(environment, "ENV", tmp_path / ".env")


@pytest.mark.usefixtures("written")
def test_a_shells_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that replace a line of .env; equal or empty ones do not, and a secret is not printed."""
    for name, value in {"PORT": "3000", "TARGET": "torch", "PRECISION": "float32", "HF_TOKEN": "two"}.items():
        monkeypatch.setenv(name, value)
    assert environment.overridden() == [
        "PORT=3000 is taken from the environment, not 8080 from .env",
        "PRECISION=float32 is taken from the environment, not empty from .env",
    ]
    assert environment.settings()["PORT"] == "3000"


@pytest.mark.usefixtures("written")
def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "")
    assert environment.overridden() == []
    assert environment.settings()["PORT"] == "8080"
