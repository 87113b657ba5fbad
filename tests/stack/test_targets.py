"""A target that the product does not know goes the whole way: build, plan, render, serve, answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx

from tests.fakes.tiny_target import SENTENCE
from tests.ports import first_port

from .conftest import portable, restarted, run, started

PORT = first_port("targets")


def build(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables, "TARGET": "tiny", "MODEL_ID": "mini-gpt2"}
    return run(sys.executable, "-m", "build", "engines", "--weights", folder, env=environment)


def test_a_third_target_needs_no_other_file(tmp_path: Path) -> None:
    """Only tests/fakes/tiny_*.py know it, through CONCH_TARGETS. A restart with a bundle that must not
    be served leaves the servers that run.
    """
    asked = {"CONCH_TARGETS": "tests.fakes.tiny_target", "ENGINES_DIR": str(tmp_path / "engines")}
    for state in ("built", "unchanged"):
        done = build(tmp_path, **asked)
        assert done.returncode == 0, done.stderr
        assert state in done.stdout.splitlines()[-1]
    with started(portable(tmp_path / "home", PORT, "mini-gpt2", 2) | asked | {"TARGET": "tiny"}) as stack:
        body = {"model": "mini-gpt2", "prompt": "Hello", "max_tokens": 60, "temperature": 0}
        for _ in range(4):  # both instances
            answer = httpx.post(f"{stack.url}/v1/completions", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["text"].strip() == SENTENCE
        manifest = tmp_path / "engines" / "mini-gpt2" / "tiny" / "manifest.json"
        good = manifest.read_text("utf-8")
        manifest.write_text(good.replace('"toolchain": "tiny"', '"toolchain": "another"'), "utf-8")
        done = restarted(stack, **asked)
        assert done.returncode == 1
        assert "triton-0 was not restarted" in done.stderr
        assert httpx.post(f"{stack.url}/v1/completions", json=body, timeout=60).status_code == 200
        manifest.write_text(good, "utf-8")
        assert restarted(stack, **asked).returncode == 0
        assert httpx.post(f"{stack.url}/v1/completions", json=body, timeout=60).status_code == 200
    sentence = "TARGET 'tiny' is unknown; choose one of: torch, trtllm, tensorrt, openvino"
    assert sentence in build(tmp_path).stderr
