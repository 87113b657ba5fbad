"""The GPU report's way through Docker, with a docker that writes down what it is told, and its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.gpu_machine import Failed, InDocker, run, short
from scripts.gpu_report import CLIENTS, MODELS, Report


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What docker was told, a JSON list a line: arguments, MODEL_ID, and how many bytes came in."""
    path = tmp_path / "told"
    (tmp_path / "docker").write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\nsize = len(sys.stdin.buffer.read()) if 'exec' in "
        "sys.argv else 0\n"
        f"print(json.dumps([sys.argv[1:], os.environ.get('MODEL_ID'), size]), file=open({str(path)!r}, "
        "'a'))\nprint('said')\n"
    )
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


def lines(path: Path) -> list[list[object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_compose_is_told_what_users_would_type(told: Path) -> None:
    """A project of its own, four instances on the first GPU, the builder's own check."""
    import os

    deployment = InDocker(MODELS, dict(os.environ))
    assert deployment.check("mini-t5") == "said"
    deployment.up()
    deployment.kill(3)
    deployment.down()
    check, up, _, kill, down = lines(told)
    assert check[0] == [
        "compose",
        "run",
        "--rm",
        "--build",
        "builder",
        "python3",
        "-m",
        "build",
        "check",
        "--target",
        "trtllm",
        "--model-id",
        "mini-t5",
    ]
    assert up[:2] == [["compose", "up", "--build", "--detach", "--wait"], ",".join(MODELS)]
    assert kill[0][:5] == ["compose", "exec", "-T", "triton-3", "/usr/bin/python3"]  # type: ignore[index]
    assert down[0] == ["compose", "down", "--volumes"]
    assert deployment.environment["TRITON_3_GPUS"] == "0"
    assert deployment.environment["COMPOSE_PROJECT_NAME"] == "conch-gpu-report"


@pytest.mark.parametrize("name", list(CLIENTS))
def test_nvidias_clients_are_given_what_they_need(name: str, told: Path) -> None:
    """Files go into the container by its standard input: its image holds no recordings."""
    import os

    deployment = InDocker(MODELS, dict(os.environ))
    instance, command = CLIENTS[name]
    argv = command(deployment)
    assert argv[0].startswith("/app/")
    deployment.inside_run(instance, argv)
    rows = lines(told)
    assert rows[-1][0] == ["compose", "exec", "-T", f"triton-{instance}", "/usr/bin/python3", *argv]
    assert all(row[2] for row in rows[:-1]), "a file came in"


def test_a_step_that_fails_is_a_row(tmp_path: Path) -> None:
    """The next one runs; what could not be tried is no failure; the file is there after each."""
    report = Report(tmp_path / "report.md")
    with report.step("first") as say:
        say("seen")
    with report.step("second"):
        raise Failed("nobody | there", output="log\nof it", skipped=True)
    assert report.succeeded
    with report.step("third"):
        raise Failed("broken")
    assert not report.succeeded
    text = (tmp_path / "report.md").read_text()
    assert "| first | ok | seen; 0 s |" in text
    assert "| second | not done | nobody \\| there; 0 s |" in text
    assert "## second\n\n```\nlog\nof it\n```" in text
    assert "not ok: second, third" in text


def test_what_is_not_installed_is_skipped() -> None:
    with pytest.raises(Failed) as failed:
        run(["no-such-program"])
    assert failed.value.skipped
    assert short("a\nb | c" + "x" * 300, 12) == "a b \\| cxxx…"
