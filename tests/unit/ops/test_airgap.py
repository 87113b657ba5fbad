"""The air-gap archive without Docker: what is streamed in comes out again, and a command's own exit
status is reported.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from ops import airgap


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """All that `load` asks for; one member is longer than a block and ends within one."""
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        written = airgap.Archive(file)
        for name, content in {
            airgap.SETTINGS: b"TARGET=openvino\n",
            airgap.VOLUMES: b"",
            airgap.IMAGES: bytes(range(256)) * 5000,
        }.items():
            written.add(name, io.BytesIO(content))
        written.add(
            airgap.SUMS,
            io.BytesIO("".join(f"{value}  {name}\n" for name, value in written.sums.items()).encode()),
        )
        written.close()
    return path


def test_streams_come_out_as_they_went_in(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        found = airgap.members(tar)
        assert {name: len(source.read()) for name, source in found.items()} == {
            airgap.SETTINGS: 16,
            airgap.VOLUMES: 0,
            airgap.IMAGES: 1_280_000,
        }


def test_a_changed_byte_is_noticed(archive: Path) -> None:
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    archive.write_bytes(content)
    with (
        tarfile.open(archive) as tar,
        pytest.raises(airgap.Damaged, match=r"images\.tar in the archive is damaged"),
    ):
        airgap.members(tar)


def test_a_part_of_an_archive_is_refused(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:5000])
    with tarfile.open(archive) as tar, pytest.raises((airgap.Damaged, tarfile.ReadError)):
        airgap.members(tar)


@pytest.mark.parametrize("size", [100, 3_000_001])
def test_a_command_that_ends_early_is_heard(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit status is the error, not the pipe that nobody reads any more."""
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nexit 3\n", "utf-8")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(subprocess.CalledProcessError, match="status 3"):
        airgap._feed(io.BytesIO(bytes(size)), "load")
