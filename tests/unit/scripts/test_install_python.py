"""The CPython that `make databases` unpacks on a Debian that has none new enough: environments of it, and the
processes that they start, find themselves.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from build.catalog import ROOT

UNPACKED = ROOT / ".venv/python3.13/root/usr/bin/python3.13"
TELLS = "import json, sqlite3, ssl, sys; print(json.dumps([sys.executable, sys.prefix]))"
ASKS = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TELLS!r}], check=True)"


@pytest.mark.skipif(not UNPACKED.exists(), reason="the system has its own, or make databases was not run")
@pytest.mark.parametrize("code", [TELLS, ASKS])
def test_an_environment_is_its_own(code: str, tmp_path: Path) -> None:
    subprocess.run([UNPACKED, "-m", "venv", "--without-pip", tmp_path / "a b"], check=True)
    python = tmp_path / "a b/bin/python"
    told = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout
    assert json.loads(told) == [str(python), str(tmp_path / "a b")]


@pytest.mark.skipif(not UNPACKED.exists(), reason="the system has its own, or make databases was not run")
def test_its_pip_is_its_own() -> None:
    """Not one of the system's, which may be too old for it."""
    code = "import ensurepip; print(ensurepip._WHEEL_PKG_DIR)"
    told = subprocess.run([UNPACKED, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.strip() == str(UNPACKED.resolve().parents[1] / "share/python-wheels")
