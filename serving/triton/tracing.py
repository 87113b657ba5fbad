"""A trace on its way through a façade: what it asks of other models belongs to the request that it works on.
Only where CONCH_TRACES_URL is set: tritonserver traces then (ops/guard/server.py).

What a request is part of goes on as the parameter `traceparent`. Triton's own way, InferenceRequest(trace=…),
ends tritonserver 24.10 with signal 11 where the asking model answers from another thread: its trace is over
when `execute` returns (seen; docs/traces.md).
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

ON = bool(os.environ.get("CONCH_TRACES_URL"))
TRACEPARENT = "traceparent"
# Of the request that a thread works on; empty where nothing is traced.
CURRENT: ContextVar[str] = ContextVar(TRACEPARENT, default="")


def traceparent(request: Any) -> str:
    """What a Triton request is part of, as W3C writes it: given by the client or by Triton; empty where
    nothing is traced.
    """
    given = json.loads(request.parameters() or "{}").get(TRACEPARENT)
    found = given or json.loads(request.trace().get_context() or "{}").get(TRACEPARENT)
    return str(found or "")


def follow(request: Any) -> None:
    """What this thread asks of other models from now on is for this request."""
    if ON:
        CURRENT.set(traceparent(request))


def row_threads(count: int) -> ThreadPoolExecutor:
    """Threads that work on the same request as this one."""
    return ThreadPoolExecutor(count, initializer=CURRENT.set, initargs=(CURRENT.get(),))


def following() -> dict[str, str]:
    """The parameter that says what a call is part of."""
    current = CURRENT.get()
    return {TRACEPARENT: current} if current else {}
