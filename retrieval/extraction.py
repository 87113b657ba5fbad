"""Extract a file's text. `python -m retrieval.extraction PATH NAME TYPE` prints it, in a process of its own
with limits on time and memory, so that a malicious file can harm only that process.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from pathlib import Path

from .formats import READERS, NoText, from_html
from .kinds import KINDS, PICTURES, kind_of
from .letters import Unreadable, read

MEMORY = 2 << 30  # bytes of address space
MOST_TEXT = 20_000_000  # characters
SAVED_AS = {".doc": "docx", ".ppt": "pptx", ".msg": "eml"}  # what an old kind should be saved as


def extract(path: Path, name: str, media_type: str = "") -> tuple[str, str]:
    """Extract the text of a file called `name` with the declared media type, and name its encoding where that
    is a guess.

    Raises:
        NoText: of this kind, broken, empty or too long.
    """
    kind = kind_of(path, name, media_type)
    found, guessed = _extracted(path, kind)
    text = found.replace("\r\n", "\n").encode("utf-8", "replace").decode("utf-8")
    if not text.strip():
        raise NoText("the file has no text")
    if len(text) > MOST_TEXT:
        raise NoText(f"the file has {len(text)} characters; at most {MOST_TEXT} are read")
    return text, guessed


def _extracted(path: Path, kind: str) -> tuple[str, str]:
    if kind == ".ole":
        raise NoText("the document is encrypted, or of an old kind; save it as docx, xlsx or pptx")
    if kind in SAVED_AS:
        raise NoText(
            f"files of kind '{kind}' are not supported; save it as {SAVED_AS[kind]}", "unsupported_file"
        )
    if kind and kind not in KINDS:
        raise NoText(
            f"files of kind {kind!r} are not supported; use one of {', '.join(sorted(KINDS | PICTURES))}",
            "unsupported_file",
        )
    try:
        if reader := READERS.get(kind):
            return reader(path), ""
        text, guessed = read(path.read_bytes())
        return from_html(text) if kind in (".htm", ".html") else text, guessed
    except (NoText, MemoryError):
        raise
    except Unreadable:
        raise NoText(
            "the file's encoding is not UTF-8, nor one that can be told; convert it to UTF-8"
        ) from None
    except Exception as error:  # whatever a parser says of a stranger's bytes
        what = kind.removeprefix(".").upper() or "text"
        raise NoText(f"the file cannot be read as {what} ({type(error).__name__}); it is damaged") from error


async def extracted(path: Path, name: str, seconds: float, media_type: str = "") -> tuple[str, str]:
    """Run `extract` in another process.

    Raises:
        NoText: also if it takes longer than `seconds`, or more memory than it may.
    """
    command = [sys.executable, "-m", "retrieval.extraction", str(path), name, media_type]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        raise NoText(f"reading the file took longer than {seconds:g} s; cut it") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        found = json.loads(output)
    except ValueError:
        raise NoText("the file's reader failed; the file is damaged") from None
    if "text" not in found:
        raise NoText(**found)
    pairs = found["text"].encode("utf-16", "surrogatepass")  # RTF writes some characters as two halves
    return pairs.decode("utf-16", "replace"), found["guessed"]


def main() -> None:
    """Print JSON: the text and the guessed encoding, or code and message of the failure."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.nice(5)  # answers go first
    try:
        text, guessed = extract(Path(sys.argv[1]), *sys.argv[2:])
        found = {"text": text, "guessed": guessed}
    except NoText as error:
        found = vars(error)
    except MemoryError:
        found = vars(NoText("the file cannot be read within the memory limit for one file; split it"))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
