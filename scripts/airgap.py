"""One archive for a machine without network: images, engines, compose files, checksums."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from python_on_whales import DockerClient

from build.catalog import ROOT

SUMS = "SHA256SUMS"
# Engines whole; of the weights only the lock, which says what the engines were made from.
SAVE = "tar -C / -cf /out/volumes.tar --exclude='*.lock' engines && if [ -e /weights/catalog.lock ]; then tar -C / -rf /out/volumes.tar weights/catalog.lock; fi"
LOAD = "tar -C / -xf /in/volumes.tar --no-same-owner"


class Damaged(Exception):
    """The archive is not what was written; the message names the file."""


def digest(path: Path) -> str:
    """SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder beside the repository's other working files that containers may write to."""
    parent = ROOT / ".conch"
    parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="airgap-", dir=parent))
    folder.chmod(0o755)  # the containers run as another user
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def bundle(docker: DockerClient, files: Sequence[Path], archive: Path) -> None:
    """Write `archive` from a stack that has been up: its engines volume and its images as they are."""
    config = docker.compose.config(return_json=True)
    images = sorted({service["image"] for service in config["services"].values()})
    with _scratch() as folder:
        print(f"conch: saving {', '.join(images)}", flush=True)
        docker.image.save(images, output=str(folder / "images.tar"))
        print("conch: saving engines", flush=True)
        docker.compose.run("builder", ["sh", "-c", SAVE], remove=True, tty=False, dependencies=False, user=f"{os.getuid()}:10001", volumes=[(str(folder), "/out")])
        for file in (*files, *([ROOT / ".env"] if (ROOT / ".env").exists() else [])):
            target = folder / "compose" / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        parts = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
        (folder / SUMS).write_text("".join(f"{digest(folder / part)}  {part}\n" for part in parts), "utf-8")
        with tarfile.open(archive, "w") as tar:
            for part in (Path(SUMS), *parts):
                tar.add(folder / part, arcname=str(part))
    print(f"conch: wrote {archive}, {archive.stat().st_size / 1e6:.0f} MB; on the other machine: make unbundle BUNDLE={archive.name}")


def check(folder: Path) -> None:
    """Compare everything with SHA256SUMS.

    Raises:
        Damaged: a file is missing or differs.
    """
    if not (folder / SUMS).exists():
        raise Damaged(f"the archive has no {SUMS}; it was not written by make bundle")
    for line in (folder / SUMS).read_text("utf-8").splitlines():
        wanted, name = line.split("  ", 1)
        if not (folder / name).exists() or digest(folder / name) != wanted:
            raise Damaged(f"{name} in the archive is damaged or missing; copy the archive again")


def unbundle(docker: DockerClient, files: Sequence[Path], archive: Path) -> None:
    """Load images and engines from `archive` and start the stack, touching no network."""
    del files
    with _scratch() as folder:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        check(folder)
        print("conch: loading images", flush=True)
        docker.image.load(str(folder / "images.tar"))
        print("conch: loading engines", flush=True)
        docker.compose.run("builder", ["sh", "-c", LOAD], remove=True, tty=False, dependencies=False, volumes=[(str(folder), "/in")])
    docker.compose.up(detach=True, wait=True, no_build=True, pull="never")
    print("conch: up")
