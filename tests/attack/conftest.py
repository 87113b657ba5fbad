"""A stack of its own: two instances of the speech miniature, one of a text miniature next to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ports import first_port
from tests.stack.conftest import Stack, portable, started

PORT = first_port("attack")


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    environment = portable(tmp_path_factory.mktemp("attack"), PORT, "mini-whisper,mini-t5", 4)
    with started(environment, tidy=False) as found:
        yield found
