"""The gateway logs as when it serves: structlog's own default takes two seconds to draw a traceback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conch.deployment import Chat
from gateway.observe import log_json_lines

from .application import FakeTriton, Gateway, text_gateway

log_json_lines()


@pytest.fixture(scope="module")
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A model with the file's chat template and settings, whose engine follows grammars."""
    folder, settings = tmp_path_factory.mktemp("gateway"), getattr(request.module, "SETTINGS", {})
    with text_gateway(folder, Chat(request.module.TEMPLATE), "guided_decoding", **settings) as found:
        yield found


@pytest.fixture
def gateway(opened: Gateway) -> Gateway:
    """The file's application, whose fake has been reset."""
    opened[1].__dict__ = FakeTriton().__dict__
    opened[0].app_state["services"].generations.inside.clear()
    return opened
