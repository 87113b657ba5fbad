"""What is measured: documented, well named, and found where Prometheus looks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from build.catalog import ROOT
from gateway.metrics import GatewayMetrics, StreamTimer
from ops.guard.metrics import GuardMetrics
from scripts.metrics import PAGE, declared, nginx_page, renewed

PROMTOOL = ROOT / ".venv" / "prometheus" / "usr" / "bin" / "promtool"
STATISTICS = {
    "model_stats": [
        {
            "name": "whisper_bls",
            "execution_count": "4",
            "inference_stats": {
                "success": {"count": 3, "ns": 5},
                "fail": {"count": "1"},
                "queue": {"count": 4, "ns": 2_500_000_000},
                "compute_input": {},
            },
        }
    ]
}
# As in a Python stub: a request waits, has its first token, and is done.
STUB = """
from serving.engine.metrics import EngineMetrics
found = EngineMetrics()
found.queue.observe(0.02)
found.encode.observe(0.02)
found.first.observe(0.2)
found.token.observe(0.01)
found.read.inc(4)
found.rows.set(3)
found.rows_most.set(16)
"""


def complaints(page: str) -> str:
    """What promtool has to say; it exits with 0 even where it has."""
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=page, text=True, capture_output=True, check=False
    )
    return f"{done.stdout}{done.stderr}" + (f"exit status {done.returncode}" if done.returncode else "")


def engine_page(folder: Path) -> str:
    """A guard's page after a stub has measured something."""
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    subprocess.run([sys.executable, "-c", STUB], cwd=ROOT, env=environment, check=True)
    metrics = GuardMetrics("mini-whisper", folder)
    metrics.note("whisper_bls", "http", "200", 0.2)
    return metrics.page(STATISTICS).decode()


def test_the_page_says_what_there_is() -> None:
    """`python -m scripts.metrics` writes it again."""
    text = PAGE.read_text("utf-8")
    assert renewed(text) == text
    assert all(f"`{one.name}`" in text for metrics in declared().values() for one in metrics)


def test_names_follow_one_scheme() -> None:
    """conch_<part>_…; the same name never twice."""
    parts = {
        "gateway": ("gateway",),
        "guard": ("kserve", "triton"),
        "engine": ("engine",),
        "nginx": ("nginx",),
    }
    names = [one.name for metrics in declared().values() for one in metrics]
    assert len(set(names)) == len(names)
    for part, metrics in declared().items():
        assert all(one.name.startswith(tuple(f"conch_{p}_" for p in parts[part])) for one in metrics)


def test_promtool_has_nothing_to_say(tmp_path: Path) -> None:
    """Of any page, each with samples in it."""
    gateway = GatewayMetrics()
    gateway.requests.labels("/v1/completions", 200, "mini-t5").inc()
    gateway.text_usage("mini-t5", 3, 4)
    timer = StreamTimer(gateway, "mini-t5")
    timer.piece()
    timer.ended(3)
    pages = {"gateway": gateway.text(), "guard": engine_page(tmp_path), "nginx": nginx_page()}
    assert {name: complaints(page) for name, page in pages.items()} == dict.fromkeys(pages, "")
    assert "no help text" in complaints("conch_bad 1\n")  # the check can fail


def test_a_guards_page_has_the_engine_and_triton(tmp_path: Path) -> None:
    """Read from the stub's files, and out of the statistics; everything with the instance's MODEL_ID."""
    lines = engine_page(tmp_path).splitlines()
    assert 'conch_engine_queue_seconds_count{model="mini-whisper"} 1.0' in lines
    assert 'conch_engine_queue_seconds_bucket{le="0.01",model="mini-whisper"} 0.0' in lines
    assert 'conch_engine_rows_in_use{model="mini-whisper"} 3.0' in lines
    assert 'conch_engine_tokens_total{kind="read",model="mini-whisper"} 4.0' in lines
    named = 'model="mini-whisper",triton_model="whisper_bls"'
    queued = 'model="mini-whisper",phase="queue",triton_model="whisper_bls"'
    assert f"conch_triton_request_seconds_total{{{queued}}} 2.5" in lines
    assert f"conch_triton_executions_total{{{named}}} 4.0" in lines
    assert all('model="mini-whisper"' in line for line in lines if not line.startswith("#"))


def test_a_dead_server_leaves_the_guards_own(tmp_path: Path) -> None:
    """No statistics, no folder: what the guard itself counts is still there."""
    page = GuardMetrics("m", tmp_path / "none").page(None).decode()
    assert 'conch_triton_serving{model="m"} 0.0' in page
    assert "conch_engine" not in page


@pytest.mark.parametrize("tokens", [0, 1])
def test_one_token_has_no_time_between(tokens: int) -> None:
    metrics = GatewayMetrics()
    timer = StreamTimer(metrics, "m")
    timer.piece()
    timer.ended(tokens)
    assert "conch_gateway_token_seconds_count" not in metrics.text()
