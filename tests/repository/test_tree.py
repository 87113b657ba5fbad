"""What is committed."""

from __future__ import annotations

import subprocess

from build.catalog import ROOT


def test_nothing_committed_is_a_link() -> None:
    """A link leads somewhere else on every machine; one named .venv takes the place of an environment."""
    listed = subprocess.run(["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert listed.stdout
    assert not [line for line in listed.stdout.splitlines() if line.startswith("120000")]
