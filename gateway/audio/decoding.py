"""Threads that decode, and the error for a file that cannot be decoded."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from conch.errors import ApiError
from speech import media

# Their own, so that live sessions and name look-ups never wait for long files.
DECODERS = ThreadPoolExecutor(8, "decode")


@contextmanager
def media_errors() -> Iterator[None]:
    """Report a file that is not a recording as an error of the client's `file`.

    Raises:
        ApiError: 400 that says what is wrong with it.
    """
    try:
        yield
    except media.BadMedia as error:
        raise ApiError(400, f"file: {error}", param=error.field, code="invalid_file") from error
