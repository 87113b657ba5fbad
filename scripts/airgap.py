"""One archive for a machine without network: images, engines, settings, checksums. Python's library and the docker command suffice.

`python3 -m scripts.airgap bundle | unbundle FILE`. What is archived is the stack that the environment and .env describe.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .environment import ROOT, documented, settings

SUMS, IMAGES, VOLUMES, SETTINGS = "SHA256SUMS", "images.tar", "volumes.tar", "deployment.env"
# Secrets, addresses and sources stay where they are; all other settings make the same stack elsewhere.
STAYS = {"API_KEYS_FILE", "BIND", "HF_ENDPOINT", "HF_TOKEN", "KSERVE_GRPC_PORT", "KSERVE_HTTP_PORT", "PORT"}
# Engines whole; of the weights only the lock, which says what the engines were made from.
SAVE = "tar -C / -cf /out/volumes.tar --exclude='*.lock' --exclude=engines/deployment engines && if [ -e /weights/catalog.lock ]; then tar -C / -rf /out/volumes.tar weights/catalog.lock; fi"
# A bundle is complete or absent: it is unpacked beside its place and moved there.
LOAD = """set -e
rm -rf /engines/.incoming && mkdir /engines/.incoming
tar -C /engines/.incoming -xf /in/volumes.tar --no-same-owner
cd /engines/.incoming/engines
for bundle in */*/; do mkdir -p "/engines/${bundle%%/*}" && rm -rf "/engines/$bundle" && mv "$bundle" "/engines/${bundle%/}"; done
if [ -e ../weights/catalog.lock ]; then cp ../weights/catalog.lock /weights/; fi
rm -rf /engines/.incoming"""


class Damaged(Exception):
    """The archive is not what was written; the message names the file."""


def digest(path: Path) -> str:
    """SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def docker(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What a docker command prints; its own messages go to the terminal."""
    done = subprocess.run(["docker", *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder that containers, who run as another user, may read."""
    parent = ROOT / ".conch"
    parent.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="airgap-", dir=parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _in_builder(command: str, *options: str, environment: Mapping[str, str] | None = None) -> None:
    docker("compose", "run", "--rm", "-T", "--no-deps", *options, "builder", "sh", "-c", command, environment=environment)


def bundle(archive: Path) -> None:
    """Write `archive` from a stack that has been up: its engines volume, its images as they are, and the settings that make it."""
    images = sorted({service["image"] for service in json.loads(docker("compose", "config", "--format", "json"))["services"].values()})
    known = settings()
    with _scratch() as folder:
        print(f"conch: saving {', '.join(images)}", flush=True)
        docker("save", "--output", str(folder / IMAGES), *images)
        print("conch: saving engines", flush=True)
        _in_builder(SAVE, "--user", f"{os.getuid()}:10001", "--volume", f"{folder}:/out")
        (folder / SETTINGS).write_text("".join(f"{name}={known[name]}\n" for name in documented() if name in known and name not in STAYS), "utf-8")
        parts = (IMAGES, SETTINGS, VOLUMES)
        (folder / SUMS).write_text("".join(f"{digest(folder / part)}  {part}\n" for part in parts), "utf-8")
        with tarfile.open(archive, "w") as tar:
            for part in (SUMS, *parts):
                tar.add(folder / part, arcname=part)
    print(f"conch: wrote {archive}, {archive.stat().st_size / 1e6:.0f} MB; in a checkout on the other machine: make unbundle BUNDLE={archive.name}")


def check(folder: Path) -> None:
    """Compare everything with SHA256SUMS.

    Raises:
        Damaged: a file is missing, unknown or different.
    """
    rows = (folder / SUMS).read_text("utf-8").splitlines() if (folder / SUMS).is_file() else []
    wanted = {name: value for value, name in (row.split("  ", 1) for row in rows)}
    found = {path.name for path in folder.iterdir()} - {SUMS}
    if not wanted.keys() == found == {IMAGES, SETTINGS, VOLUMES}:
        raise Damaged(f"the archive holds {', '.join(sorted(found)) or 'nothing'}; that is not what make bundle writes")
    for name, value in wanted.items():
        if digest(folder / name) != value:
            raise Damaged(f"{name} in the archive is damaged; copy the archive again")


def _unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Plain files of the names we write, nothing else. (`filter="data"` of extractall came with Python 3.11.4; Debian 12 has 3.11.2.)"""
    for member in tar:
        if member.name in (SUMS, IMAGES, SETTINGS, VOLUMES) and (source := tar.extractfile(member)):
            with source, (folder / member.name).open("wb") as target:
                shutil.copyfileobj(source, target)


def unbundle(archive: Path) -> None:
    """Load images and engines from `archive` and start the stack with its settings, touching no network; the environment overrides them."""
    with _scratch() as folder:
        with tarfile.open(archive) as tar:
            _unpack(tar, folder)
        check(folder)
        travelled = dict(line.split("=", 1) for line in (folder / SETTINGS).read_text("utf-8").splitlines())
        environment = {**travelled, **os.environ}
        print("conch: loading images", flush=True)
        docker("load", "--input", str(folder / IMAGES))
        print("conch: loading engines", flush=True)
        _in_builder(LOAD, "--volume", f"{folder}:/in:ro", environment=environment)
    docker("compose", "up", "--detach", "--wait", "--no-build", "--pull", "never", environment=environment)
    print("conch: up; these settings belong into .env: " + " ".join(f"{name}={value}" for name, value in travelled.items()))


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, or 1 with one sentence."""
    if len(arguments) != 2 or arguments[0] not in ("bundle", "unbundle"):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        {"bundle": bundle, "unbundle": unbundle}[arguments[0]](Path(arguments[1]))
    except (Damaged, OSError, tarfile.TarError, subprocess.CalledProcessError) as error:
        print(f"conch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
