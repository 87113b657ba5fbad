"""A newcomer's day: environments and folders of any kind, a model that cannot start, and Ctrl-C."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.ports import first_port

from .conftest import PYTHON, RECORDINGS, ROOT, portable, run, started

PORT = first_port("first-day")
ODD = "a b;c%d\"e'f$g[h"  # what a file system allows
PROXIES = {"HTTP_PROXY": "http://127.0.0.1:9", "https_proxy": "foo bar", "ALL_PROXY": "socks5://127.0.0.1:9"}


def process_mode(action: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """What a user sees of `ops.process_mode`, once it has ended."""
    return run(PYTHON, "-m", "ops.process_mode", action, env=environment)


def test_neither_proxies_nor_folders_decide_whether_it_starts(tmp_path: Path) -> None:
    """Proxies that nobody answers at, or that no client can read; engines, state and temporary files in
    folders with blanks, quotes, semicolons, per cent signs; and a page of another origin that is allowed.
    """
    home, engines = tmp_path / ODD / "home", tmp_path / ODD / "engines"
    (tmp_path / ODD / "tmp").mkdir(parents=True)
    shutil.copytree(ROOT / "engines/mini-whisper", engines / "mini-whisper", symlinks=True)
    command = [ROOT / ".venv/build/bin/python", "-m", "build", "engines", "--model-id", "mini-whisper"]
    subprocess.run([*command, "--target", "openvino", "--engines", engines], cwd=ROOT, check=True)
    environment = {
        **portable(home, PORT, "mini-whisper", 1),
        **PROXIES,
        "NO_PROXY": "[::1],ä.de,127.0.0.1:*",
        "ENGINES_DIR": str(engines),
        "TMPDIR": str(tmp_path / ODD / "tmp"),
        "LC_ALL": "C",
        "ALLOWED_ORIGINS": "https://app.example.org",
    }
    with started(environment) as stack:
        sound, origin = (RECORDINGS / "demo.flac").read_bytes(), {"Origin": "https://app.example.org"}
        answer = stack.transcribe(sound, headers=origin, model="gpt-4o-transcribe")
        assert "umbrellas" in answer.json()["text"]
        assert answer.headers["access-control-allow-origin"] == "https://app.example.org"
        asked = {**origin, "Access-Control-Request-Method": "POST"}
        preflight = httpx.options(f"{stack.url}/v1/chat/completions", headers=asked, trust_env=False)
        assert preflight.status_code == 204
        assert "POST" in preflight.headers["access-control-allow-methods"]
        refused = httpx.get(
            f"{stack.url}/v1/models", headers={"Origin": "https://evil.example"}, trust_env=False
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_origin")
        page = httpx.get(f"{stack.url}/docs", trust_env=False)
        assert "<script" not in page.text
        assert "/v1/audio/transcriptions" in page.text


def test_a_model_that_cannot_start_says_why_at_once(tmp_path: Path) -> None:
    """`serve` ends with the server's last words, the place of its log and status 1, long before its limit;
    once the model is repaired, it starts, and a second start and the log say what is so.
    """
    engines = tmp_path / "engines"
    shutil.copytree(ROOT / "engines/mini-t5", engines / "mini-t5", symlinks=True)
    tokenizer = engines / "mini-t5/openvino/engine/tokenizer.json"
    whole = tokenizer.read_bytes()
    tokenizer.unlink()
    tokenizer.write_text("{}")
    environment = {**portable(tmp_path / "home", PORT, "mini-t5", 1), "ENGINES_DIR": str(engines)}
    began = time.monotonic()
    ended = process_mode("serve", environment)
    print(f"\nserve ended after {time.monotonic() - began:.0f} s: {ended.stderr.strip()}")
    assert ended.returncode == 1
    assert "triton-0: the model cannot start (it failed 3 times):" in ended.stderr
    assert "triton-0.log" in ended.stderr
    assert "Model missing" in ended.stderr
    assert "Traceback" not in ended.stderr
    tokenizer.write_bytes(whole)
    with started(environment) as stack:
        again = process_mode("check", environment)
        assert f"a stack is running on PORT={PORT}; stop it with: make stop PORT={PORT}" in again.stderr
        assert httpx.get(f"{stack.url}/v1/models").json()["data"][0]["created"] > 1_700_000_000
    log = (tmp_path / "home" / "serve.log").read_text()
    for words in ("triton-0 serves mini-t5 (1 of 1)", "ready on http://", "stopping;", "conch: stopped"):
        assert words in log


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ALLOWED_ORIGINS", "example.org", "is not an origin"),
        ("PICTURE_PROXY", "proxy:3128", "is not the address of a proxy such as http://proxy:3128"),
        ("MODEL_ID", "mini-wisper", "did you mean mini-whisper?"),
    ],
)
def test_wrong_settings_are_one_sentence_before_anything_is_built(
    tmp_path: Path, name: str, value: str, message: str
) -> None:
    environment = {**portable(tmp_path / "home", PORT, "mini-whisper", 1), name: value}
    ended = process_mode("check", environment)
    assert ended.returncode == 1
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1
