"""Write multipart uploads to disk as they arrive, up to the limit."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote_to_bytes

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from conch.errors import ApiError, invalid

MAX_FIELD = 64 * 1024
MAX_FIELDS = 256
MOST_HELD = 32 << 20  # of all fields, which memory holds
LARGE = {"known_speaker_references": 8 << 20}  # data URLs: ten seconds at 192 kHz are 5 MB
STARRED = re.compile(rb"filename\*\s*=\s*([\w-]+)'[^']*'([^;\s]+)", re.IGNORECASE)
PREFIX = "conch-upload-"  # then the process


@dataclass
class Upload:
    """The file's place on disk, its name and media type as sent, and the other fields."""

    path: str
    fields: dict[str, list[str]] = field(default_factory=dict)
    files: int = 0
    filename: str = ""
    media_type: str = ""


def _named(header: bytes, options: Mapping[bytes, bytes]) -> str:
    """Return a file's name: `filename*` (RFC 5987) before `filename`, which .NET encodes by RFC 2047, without
    folders, which some browsers send.
    """
    name = options.get(b"filename", b"").decode("utf-8", "replace")
    with suppress(LookupError, ValueError, HeaderParseError):
        if found := STARRED.search(header):
            name = unquote_to_bytes(found[2]).decode(found[1].decode("ascii", "replace"), "replace")
        elif "=?" in name:
            name = str(make_header(decode_header(name)))
    name = name.encode("utf-8", "replace").decode()  # UTF-7 has halves of characters
    return name.replace("\\", "/").rpartition("/")[2].replace("\0", "")


class _Form:
    """Callbacks of python-multipart for one request: `file` goes to disk, the rest into memory."""

    def __init__(self, upload: Upload, file: IO[bytes]) -> None:
        self.upload, self.file = upload, file
        self.header, self.value = b"", b""
        self.name, self.data, self.to_disk, self.count = "", bytearray(), False, 0
        self.media_type, self.held, self.ended = "", 0, False

    def on_part_begin(self) -> None:
        self.name, self.data, self.to_disk, self.media_type = "", bytearray(), False, ""
        self.count += 1
        if self.count > MAX_FIELDS:
            raise ApiError(
                400, f"the form has more than {MAX_FIELDS} parts; send fewer", code="too_many_fields"
            )

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self.header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]

    def on_header_end(self) -> None:
        if self.header.lower() == b"content-disposition":
            _, options = parse_options_header(self.value)
            self.name = options.get(b"name", b"").decode("utf-8", "replace")
            if self.name == "file":
                self.upload.files += 1
                self.upload.filename = _named(self.value, options)
                self.to_disk = True
        if self.header.lower() == b"content-type":
            self.media_type = self.value.decode("latin-1")[:200].replace("\0", "")
        self.header, self.value = b"", b""

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self.to_disk:
            self.file.write(data[start:end])
            return
        self.data += data[start:end]
        self.held += end - start
        if self.held > MOST_HELD:
            raise invalid(
                self.name or None,
                f"the form's fields besides the file are longer than {MOST_HELD} bytes; shorten {self.name}",
            )
        most = LARGE.get(self.name.partition("[")[0], MAX_FIELD)
        if len(self.data) > most:
            raise invalid(
                self.name or None, f"{self.name or 'a field'} is longer than {most} bytes; shorten it"
            )

    def on_part_end(self) -> None:
        if self.to_disk:
            self.upload.media_type = self.media_type
        if not self.to_disk and self.name:
            self.upload.fields.setdefault(self.name, []).append(self.data.decode("utf-8", "replace"))

    def on_end(self) -> None:
        self.ended = True


@dataclass(frozen=True)
class Kind:
    """What is uploaded, for messages: its name, the form's fields, the remedy if it is too large."""

    name: str
    fields: str
    smaller: str


RECORDING = Kind("recording", "file and model", "send a compressed format, or cut the recording")


@asynccontextmanager
async def receive(request: Request, limit: int, kind: Kind = RECORDING) -> AsyncIterator[Upload]:
    """Read the form of a request; its file is removed at the end.

    Raises:
        ApiError: 400 for a broken or incomplete form, 413 above `limit` bytes, 503 when the disk is full.
    """
    media, options = parse_options_header(request.headers.get("content-type", ""))
    if media != b"multipart/form-data" or not options.get(b"boundary"):
        message = f"send the {kind.name} as multipart/form-data with the fields {kind.fields}"
        raise ApiError(400, message, param="file", code="invalid_content_type")
    path = ""
    try:
        try:
            descriptor, path = tempfile.mkstemp(prefix=f"{PREFIX}{os.getpid()}-")
            upload = Upload(path)
            with os.fdopen(descriptor, "wb") as file:
                too_large = f"the upload exceeds {limit} bytes; {kind.smaller}"
                chunks = limited(request, limit, "file", too_large)
                await _read(chunks, _Form(upload, file), options[b"boundary"])
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            message = f"there is no disk space for another {kind.name}; try again later"
            raise ApiError(503, message, code="overloaded", retry_after=5) from error
        if upload.files != 1:
            message = f"the form has {upload.files} parts named file; send exactly one"
            raise ApiError(400, message, param="file", code="missing_file")
        yield upload
    finally:
        if path:
            Path(path).unlink()


def sweep() -> None:
    """Remove the uploads of gateways that were killed."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        with suppress(OSError):
            if left.stat().st_uid == os.getuid() and not Path(f"/proc/{owner}").exists():
                left.unlink()


async def limited(request: Request, limit: int, param: str, message: str) -> AsyncGenerator[bytes, None]:
    """Yield the body of a request.

    Raises:
        ApiError: 413 with `param` and `message` above `limit` bytes.
    """
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > limit:
            raise ApiError(413, message, param=param, code="body_too_large")
        yield chunk


def broken(param: str, reason: str) -> ApiError:
    """Make the 400 for a multipart body that is not whole."""
    return ApiError(400, f"the multipart body {reason}; send it again", param=param, code="invalid_form")


async def _read(chunks: AsyncGenerator[bytes, None], form: _Form, boundary: bytes) -> None:
    calls: Any = {name: getattr(form, name) for name in dir(form) if name.startswith("on_")}
    try:
        parser = MultipartParser(boundary, calls)
        async for chunk in chunks:
            parser.write(chunk)
        parser.finalize()
    except (FormParserError, ClientDisconnect, ValueError) as error:
        raise broken("file", f"is broken ({error or 'connection closed'})") from error
    if not form.ended:
        raise broken("file", "ends before its closing boundary")
