"""Make one archive for a machine without network: images, engines, settings, compose files, checksums. Needs
Python's library and the docker command only.

`python3 -m ops.airgap save | load FILE`. The archive holds the stack that the environment and .env describe.
Its folder `conch` has what the other machine needs of this repository, including this script.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, BinaryIO

from .environment import ROOT, documented, settings

SUMS, IMAGES, VOLUMES, SETTINGS = "SHA256SUMS", "images.tar", "volumes.tar", "deployment.env"
# Secrets, addresses and sources stay where they are; all other settings make the same stack elsewhere.
STAYS = {"ADMIN_KEYS_FILE", "API_KEYS_FILE", "BIND", "HF_CACHE", "HF_ENDPOINT", "HF_TOKEN"}
STAYS |= {"HF_TOKEN_FILE", "KSERVE_GRPC_PORT"}
STAYS |= {"KSERVE_HTTP_PORT", "PORT", "TLS_CERT_FILE", "TLS_HSTS", "TLS_KEY_FILE", "TLS_PORT"}
FOLDER = "conch"
FILES = [
    ".env.example",
    "CHANGELOG.md",
    "Makefile",
    "catalog.toml",
    "compose.yaml",
    "docker/*",
    "docker/devices/*",
]
FILES += ["docs/docker.md", "ops/*.py"]
# Engines whole; of the weights only the lock, which says what the engines were made from.
SAVE_COMMAND = (
    "cd / && tar -c --exclude='*.lock' --exclude=engines/deployment engines && if [ -e weights/catalog.lock "
    "]; then tar -c weights/catalog.lock; fi"
)
# A bundle is complete or absent: it is unpacked next to its place and moved there. What is saved is one
# archive after another.
LOAD_COMMAND = """set -e
rm -rf /engines/.incoming && mkdir /engines/.incoming
tar -C /engines/.incoming -x --ignore-zeros --no-same-owner
cd /engines/.incoming/engines
for bundle in */*/; do
    mkdir -p "/engines/${bundle%%/*}" && rm -rf "/engines/$bundle" && mv "$bundle" "/engines/${bundle%/}"
done
if [ -e ../weights/catalog.lock ]; then cp ../weights/catalog.lock /weights/; fi
rm -rf /engines/.incoming"""
BLOCK = 1 << 20


class Damaged(Exception):
    """The archive is damaged; the message names the file."""


class Archive:
    """A tar file written from streams, since images are large and their size is known only at the end: a
    member's header is rewritten when its size is known. Nothing is stored on disk twice.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sums: dict[str, str] = {}

    def add(self, name: str, source: IO[bytes], mode: int = 0o644) -> None:
        """Add everything that `source` yields as a member; its SHA-256 goes to `sums`."""
        file, info, sha = self._file, tarfile.TarInfo(name), hashlib.sha256()
        info.mode, info.mtime = mode, int(time.time())
        start = file.tell()
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        while block := source.read(BLOCK):
            sha.update(block)
            file.write(block)
            info.size += len(block)
        file.write(bytes(-info.size % tarfile.BLOCKSIZE))
        end = file.tell()
        file.seek(start)
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.seek(end)
        self.sums[name] = sha.hexdigest()

    def close(self) -> None:
        """Write the two empty blocks that end a tar file."""
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))


def docker(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Return what a docker command prints; its messages go to the terminal."""
    done = subprocess.run(
        ["docker", *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def _add_output(archive: Archive, name: str, *arguments: str) -> None:
    """Add what a docker command prints as a member."""
    with subprocess.Popen(
        ["docker", *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        archive.add(name, process.stdout)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)


def _feed(source: IO[bytes], *arguments: str, environment: Mapping[str, str] | None = None) -> None:
    """Feed `source` to a docker command's standard input."""
    process = subprocess.Popen(
        ["docker", *arguments], cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    with suppress(BrokenPipeError), process:  # whose reader is gone has ended, and logged why
        assert process.stdin
        shutil.copyfileobj(source, process.stdin, BLOCK)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)


def _in_builder(command: str) -> list[str]:
    return ["compose", "run", "--rm", "-T", "--no-deps", "builder", "sh", "-c", command]


def _add_files(archive: Archive) -> None:
    """Add what the other machine needs of the checkout."""
    own = settings().get("CATALOG", "")
    patterns = [*FILES, *([own] if own and not Path(own).is_absolute() else [])]
    sources = {found: None for pattern in patterns for found in sorted(ROOT.glob(pattern)) if found.is_file()}
    for source in sources:
        with source.open("rb") as content:
            archive.add(f"{FOLDER}/{source.relative_to(ROOT)}", content, source.stat().st_mode & 0o755)


def _add_lines(archive: Archive, name: str, lines: list[str]) -> None:
    archive.add(name, io.BytesIO("".join(f"{line}\n" for line in lines).encode()))


def save(path: Path) -> None:
    """Write an archive of a stack that has been started: its engines volume, its images, and its settings.

    It gets its name when it is complete.
    """
    services = json.loads(docker("compose", "config", "--format", "json"))["services"]
    images = sorted({service["image"] for service in services.values()})
    partial, known = path.with_name(f".{path.name}.partial"), settings()
    try:
        with partial.open("wb") as file:
            archive = Archive(file)
            _add_files(archive)
            travelling = [name for name in documented() if name in known and name not in STAYS]
            _add_lines(archive, SETTINGS, [f"{name}={known[name]}" for name in travelling])
            print("conch: saving engines", flush=True)
            _add_output(archive, VOLUMES, *_in_builder(SAVE_COMMAND))
            print(f"conch: saving {', '.join(images)}", flush=True)
            _add_output(archive, IMAGES, "save", *images)
            _add_lines(archive, SUMS, [f"{value}  {name}" for name, value in archive.sums.items()])
            archive.close()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    print(f"conch: wrote {path}, {path.stat().st_size / 1e6:.0f} MB. On the other machine:")
    print(f"    tar -xf {path.name} {FOLDER} && make -C {FOLDER} airgap-load ARCHIVE=../{path.name}")


def members(tar: tarfile.TarFile) -> dict[str, IO[bytes]]:
    """Yield the archive's members, compared with its SHA256SUMS.

    Raises:
        Damaged: a file is missing, unknown or different.
    """
    found = {member.name: source for member in tar if member.isreg() and (source := tar.extractfile(member))}
    rows = found.pop(SUMS).read().decode(errors="replace").splitlines() if SUMS in found else []
    wanted = {name: value for value, _, name in (row.partition("  ") for row in rows)}
    if found.keys() != wanted.keys() or not found.keys() >= {IMAGES, SETTINGS, VOLUMES}:
        raise Damaged(
            f"the archive holds {', '.join(sorted(found)) or 'nothing'}, which make airgap-save "
            "did not write; copy the archive again"
        )
    for name, source in found.items():
        if hashlib.file_digest(source, "sha256").hexdigest() != wanted[name]:  # type: ignore[arg-type]  # an ExFileObject has readinto
            raise Damaged(f"{name} in the archive is damaged; copy the archive again")
        source.seek(0)
    return found


def load(path: Path) -> None:
    """Load images and engines from an archive and start the stack with its settings, without network; the
    environment overrides them.
    """
    with tarfile.open(path) as tar:
        found = members(tar)
        travelled = dict(line.split("=", 1) for line in found[SETTINGS].read().decode().splitlines())
        environment = {**travelled, **os.environ}
        print("conch: loading images", flush=True)
        _feed(found[IMAGES], "load", "--quiet")
        print("conch: loading engines", flush=True)
        _feed(found[VOLUMES], *_in_builder(LOAD_COMMAND), environment=environment)
    docker("compose", "up", "--detach", "--wait", "--no-build", "--pull", "never", environment=environment)
    print(
        "conch: up; these settings belong in .env: "
        + " ".join(f"{name}={value}" for name, value in travelled.items())
    )


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return exit status 0, or 1 with one sentence."""
    if len(arguments) != 2 or arguments[0] not in ("save", "load"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        {"save": save, "load": load}[arguments[0]](Path(arguments[1]))
    except (Damaged, OSError, tarfile.TarError, subprocess.CalledProcessError) as error:
        print(f"conch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
