"""Workers of pytest-xdist keep to a processor each: torch and OpenVINO take one thread per processor they
see, and two sets of them would spin.

Files marked `long` start first, so that no worker is left alone with one of them.
"""

from __future__ import annotations

import os

import hypothesis  # noqa: F401  # its plug-in would import it when all tests have run; Python 3.11.7's parser may fail then (python/cpython#106905)
import pytest


def pytest_configure() -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if worker:
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[int(worker.removeprefix("gw")) % len(processors)]})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
