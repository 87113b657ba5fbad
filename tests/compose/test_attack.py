"""Broken requests against containers: the same files, another URL."""

from __future__ import annotations

import pytest

from tests.attack.test_poison import *  # noqa: F403
from tests.stack.conftest import Stack


@pytest.fixture(scope="session")
def target(stack: Stack) -> Stack:
    """Two instances of the speech miniature."""
    return stack
