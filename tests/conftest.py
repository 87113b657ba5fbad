"""Workers of pytest-xdist keep to a processor each: torch and OpenVINO take one thread per processor they
see, and two sets of them would spin.

Files marked `long` start first, so that no worker is left alone with one of them. With `--quick` files that
are marked `slow` or `long` as a whole are not even imported: most of them import torch and transformers.
"""

from __future__ import annotations

import asyncio
import os
import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction
from pathlib import Path

if WORKER := os.environ.get("PYTEST_XDIST_WORKER", ""):  # before torch is imported, which counts then
    PROCESSORS = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {PROCESSORS[int(WORKER.removeprefix("gw")) % len(PROCESSORS)]})

import hypothesis  # noqa: F401  # its plug-in would import it when all tests have run; Python 3.11.7's parser may fail then (python/cpython#106905)
import pytest

for name in (
    "httpx",
    "httpx2",
):  # OpenAI's client has its own; each client reads certificates for 50 ms, also for plain HTTP
    if find_spec(name):
        transports = import_module(f"{name}._transports.default")
        transports.create_ssl_context = cache(transports.create_ssl_context)  # type: ignore[attr-defined]

UNIT_SECONDS, STACK_SECONDS = 30, 120  # of a test that is a coroutine
WHOLE_FILE = re.compile(r"^pytestmark = pytest\.mark\.(slow|long)\b", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out what is marked slow or long")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("quick"):
        config.option.markexpr = "not slow and not long"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("quick") or collection_path.suffix != ".py":
        return None
    return bool(WHOLE_FILE.search(collection_path.read_text("utf-8"))) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    seconds = UNIT_SECONDS if "unit" in pyfuncitem.path.parts else STACK_SECONDS
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), seconds))
    return True
