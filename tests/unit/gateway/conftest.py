"""The gateway logs as when it serves: structlog's own default takes two seconds to draw a traceback."""

from __future__ import annotations

import pytest

from gateway.observe import log_json_lines

from .application import FakeTriton, Gateway

log_json_lines()


@pytest.fixture
def gateway(opened: Gateway) -> Gateway:
    """The file's application, whose fake has been reset."""
    opened[1].__dict__ = FakeTriton().__dict__
    opened[0].app_state["services"].generations.inside.clear()
    return opened
