"""The GPU report's way through Docker, with a docker that writes down what it is told, and its file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from scripts.gpu_machine import Failed, InDocker, Round, built, run, short
from scripts.gpu_report import ROUNDS, TARGETS, GpuReport, expected, nvidias, run_round

FIRST = next(one for one in ROUNDS if one.target == "trtllm")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What docker was told, a JSON list a line: arguments, MODEL_ID, and how many bytes came in."""
    path = tmp_path / "told"
    (tmp_path / "docker").write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\nsize = len(sys.stdin.buffer.read()) if 'exec' in "
        "sys.argv else 0\n"
        f"print(json.dumps([sys.argv[1:], os.environ.get('MODEL_ID'), size]), file=open({str(path)!r}, "
        "'a'))\nprint('done')\n"
    )
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return path


def lines(path: Path) -> list[list[object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_compose_is_told_what_users_would_type(told: Path) -> None:
    """A project of its own, all instances on the first GPU, the builder's own check."""
    deployment = InDocker(FIRST, dict(os.environ))
    assert [built(deployment, command, "mini-t5") for command in ("check", "engines")] == ["done"] * 2
    deployment.up()
    deployment.kill(3)
    deployment.down()
    check, build, up, kill, down = lines(told)
    builder = ["compose", "run", "--rm", "--build", "builder", "python3", "-m", "build"]
    assert check[0] == [*builder, "check", "--target", "trtllm", "--model-id", "mini-t5"]
    assert build[0] == [*builder, "engines", "--target", "trtllm", "--model-id", "mini-t5"]
    assert up[:2] == [["compose", "up", "--build", "--detach", "--wait"], ",".join(FIRST.models)]
    assert kill[0][:5] == ["compose", "exec", "-T", "triton-3", "python3"]  # type: ignore[index]
    assert down[0] == ["compose", "down", "--volumes"]
    assert deployment.environment["TRITON_3_GPUS"] == "0"
    assert deployment.environment["COMPOSE_PROJECT_NAME"] == "conch-gpu-report"


def test_every_family_and_target_is_tried() -> None:
    """All families of the README on `torch`, all of them but encoders on `trtllm`, those on `tensorrt`, and
    two GPUs; Compose has profiles for at most four instances.
    """
    by = {target: {m for one in ROUNDS if one.target == target for m in one.models} for target in TARGETS}
    assert by["torch"] == by["trtllm"] | by["tensorrt"] == set(expected())
    assert {one.target for one in ROUNDS if one.ranks == 2} == {"torch", "trtllm"}
    assert max(one.instances for one in ROUNDS) <= 4
    pair = next(one for one in ROUNDS if one.ranks == 2).variables({})
    assert (pair["TRITON_0_GPUS"], pair["TP_SIZE"]) == ("0,1", "2")


def test_nvidias_clients_run_where_they_find_what_they_import(told: Path) -> None:
    """In an image made from the server's, in the network of the tritonservers."""
    deployment = InDocker(FIRST, dict(os.environ))
    for script, arguments in nvidias(deployment).items():
        assert script.startswith("/app/")
        deployment.client(script, arguments)
        build, ran = (row[0] for row in lines(told)[-2:])
        assert build[:2] == ["build", "--quiet"]  # type: ignore[index]
        assert "SERVER=localhost/conch/server:0.2.0-trtllm" in build  # type: ignore[operator]
        assert ran[:4] == ["run", "--rm", "--network", "conch-gpu-report_inner"]  # type: ignore[index]
        assert ran[-len(arguments) - 2 :] == ["done", script, *arguments]  # type: ignore[index]
    assert (
        "/engines/mini-t5/trtllm/engine" in nvidias(deployment)["/app/client/inflight_batcher_llm_client.py"]
    )


def test_a_model_that_cannot_be_built_does_not_hide_the_others(tmp_path: Path) -> None:
    """It is a row that failed; the others start without it."""
    ups = list[Round]()

    class Machine(InDocker):
        def builder(self, *arguments: str) -> str:
            if arguments[-1] == "mini-whisper":
                raise Failed("trtllm-build ended with 1")
            return "built"

        def up(self) -> None:
            ups.append(self.round)
            raise Failed("not ready")

        def down(self) -> None:
            pass

    report = GpuReport(tmp_path / "report.md")
    run_round(lambda served: Machine(served, {}), FIRST, report)
    assert [row[1] for row in report.rows] == ["FAILED", "ok", "ok", "FAILED", "ok"]
    assert [(one.models, one.spare) for one in ups] == [(("mini-t5", "mini-gpt2"), False)]


@pytest.mark.slow
def test_the_file_is_at_most_a_megabyte(tmp_path: Path) -> None:
    report = GpuReport(tmp_path / "report.md")
    for number in range(300):
        with report.step(f"step {number}"):
            raise Failed("broken", output="ü" * 9000)
    assert len((tmp_path / "report.md").read_bytes()) <= 1_000_000
    assert "step 299" in (tmp_path / "report.md").read_text("utf-8")


def test_a_step_that_fails_is_a_row(tmp_path: Path) -> None:
    """The next one runs; what could not be tried is no failure; the file is there after each."""
    report = GpuReport(tmp_path / "report.md")
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
