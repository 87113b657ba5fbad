"""The command of an instance's tritonserver."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from conch.bundle import Serving
from conch.deployment import Instance
from conch.http_client import HttpClient
from ops.guard.supervise import server
from ops.guard.supervise.keeper import changed
from ops.guard.supervise.server import Server, TritonAddresses, growth
from tests.fakes.http_server import Handler, answering
from tests.fakes.nvidia_image import make_image


@pytest.mark.parametrize(
    ("size", "told"),
    [(64 << 30, 256 << 20), (8 << 30, 256 << 20), (1 << 30, 32 << 20), (64 << 20, 2 << 20), (16 << 20, 0)],
)
def test_shared_memory_grows_by_a_part_of_what_there_is(
    monkeypatch: pytest.MonkeyPatch, size: int, told: int
) -> None:
    """Six processes take a part each with the first sound."""
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_blocks=size >> 12, f_frsize=1 << 12))
    flags = [f"--backend-config=python,shm-growth-byte-size={told}"] if told else []
    assert growth(Path("/dev/shm")) == flags


@pytest.mark.parametrize(("release", "moved"), [("0.20.0", False), ("1.2.1", True)])
def test_stubs_get_the_python_of_tensorrt_llm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, moved: bool
) -> None:
    """A virtual environment in the newer image comes first on PATH; in the older one PATH is as it was."""
    root = make_image(tmp_path / "image", versions={"tensorrt_llm": release})
    monkeypatch.setattr(server, "NVIDIA", root / "usr/bin/nvidia-smi")  # some file that is there
    monkeypatch.setenv("PATH", f"{root}/usr/bin:{root}/usr/local/bin")
    _, environment = server.find_tritonserver(tmp_path, tmp_path)
    first = f"{root}/opt/venv-tritonserver/bin:" if moved else ""
    assert environment["PATH"] == f"{first}{root}/usr/bin:{root}/usr/local/bin"


def started(
    folder: Path, monkeypatch: pytest.MonkeyPatch, family: str, gpus: str
) -> tuple[list[str], dict[str, str]]:
    """A server's command and environment."""
    monkeypatch.setattr(server, "growth", lambda shared: ["--grows"])
    instance = Instance(0, "mini", family, str(folder), (), "", "", gpus)
    addresses = TritonAddresses("", "", ("--listener",))
    made = Server(instance, folder, addresses, Serving(), lambda name, status: None)
    made.prefix = "p"
    return made._command()


@pytest.mark.parametrize("gpus", ["", "0", "0,1"])
def test_shared_memory_grows_in_large_parts_beside_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: str
) -> None:
    """On a CPU few sounds are in flight, and each process would keep what it has taken."""
    monkeypatch.setattr(server, "find_tritonserver", lambda home, links: (["tritonserver"], {}))
    command, _ = started(tmp_path, monkeypatch, "whisper", gpus)
    assert ("--grows" in command) == bool(gpus)
    assert command[:2] == ["tritonserver", f"--model-repository={tmp_path}/repository"]
    assert "--listener" in command


@pytest.mark.parametrize(
    ("family", "gpus", "given", "threshold"),
    [
        ("whisper", "", {}, str(1 << 20)),
        ("whisper", "", {"MALLOC_MMAP_THRESHOLD_": "4096"}, "4096"),
        ("whisper", "0", {}, None),
        ("gpt2", "", {}, None),
    ],
)
def test_large_memories_are_mapped_where_sounds_are_heard_on_a_cpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    gpus: str,
    given: dict[str, str],
    threshold: str | None,
) -> None:
    """What an operator has set stays."""
    monkeypatch.setattr(server, "find_tritonserver", lambda home, links: (["tritonserver"], given))
    _, environment = started(tmp_path, monkeypatch, family, gpus)
    assert environment.get("MALLOC_MMAP_THRESHOLD_") == threshold


@pytest.mark.parametrize(
    ("program", "status"), [("kill -9 $$", -9), ("kill -11 $$", -11), ("exit 3", 3), ("exit 0", 0)]
)
def test_how_a_process_has_ended_is_known_until_its_parent_takes_it(program: str, status: int) -> None:
    """Of a child of another process, too, whose status only that one can wait for."""
    child = subprocess.Popen(["sh", "-c", program])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert server.ended(child.pid) == status
    child.wait()
    assert server.ended(child.pid) is None
    assert server.ended(os.getpid()) is None


async def test_progress_is_what_engines_count(tmp_path: Path) -> None:
    """What stubs have counted, without what they measure, and TensorRT-LLM's steps."""
    page = ["nv_gpu_utilization 0.5", 'nv_trt_llm_general_metrics{general_type="iteration_counter"} 7']

    class Page(Handler):
        def do_GET(self) -> None:  # noqa: N802
            self.send(200, "text/plain", "\n".join(page))

    with answering(Page) as triton:
        instance = Instance(0, "mini", "gpt2", str(tmp_path), (), "", "", "")
        addresses = TritonAddresses("", "", (), triton.url.removeprefix("http://"))
        made = Server(instance, tmp_path, addresses, Serving(), lambda name, status: None)
        made.triton = HttpClient(addresses.metrics)
        measures = server.measures(tmp_path, 0)
        measures.mkdir()
        seen = [await made.progress()]

        async def after(file: str, content: bytes, *lines: str) -> bool:
            (measures / file).write_bytes(content)
            page[:] = lines or page
            seen.append(await made.progress())
            return changed(seen[-2], seen[-1])

        assert not await after("histogram_1.db", b"1"), "an engine has begun to count"
        assert not await after("counter_1.db", b"1")
        assert await after("histogram_1.db", b"2")
        assert await after("counter_1.db", b"2")
        assert not await after("gauge_livemostrecent_1.db", b"2")
        assert not await after("counter_1.db", b"2", "nv_gpu_utilization 0.6", page[1])
        assert await after("counter_1.db", b"2", page[0], page[1].replace("7", "8"))
        assert not await after("counter_1.db", b"2", "nothing of the engine"), "Triton has not told it"
