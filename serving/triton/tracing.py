"""Propagate a trace through a façade, so that its calls to other models belong to the request it works on.
Only where CONCH_TRACES_URL is set: tritonserver traces then (ops/guard/supervise/server.py).

The trace parent travels as the parameter `traceparent`. Triton's own way, InferenceRequest(trace=…), crashes
tritonserver 24.10 with signal 11 where the calling model answers from another thread: its trace ends when
`execute` returns (seen; docs/traces.md).
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
    """Return a Triton request's trace parent in W3C's form, from the client or from Triton; empty if it is
    not traced.
    """
    given = json.loads(request.parameters() or "{}").get(TRACEPARENT)
    found = given or json.loads(request.trace().get_context() or "{}").get(TRACEPARENT)
    return str(found or "")


def follow(request: Any) -> None:
    """Attribute this thread's calls to other models to this request from now on."""
    if ON:
        CURRENT.set(traceparent(request))


def row_threads(count: int) -> ThreadPoolExecutor:
    """Make threads that work on the same request as this one."""
    return ThreadPoolExecutor(count, initializer=CURRENT.set, initargs=(CURRENT.get(),))


def following() -> dict[str, str]:
    """Return the parameter that says which trace a call is part of."""
    current = CURRENT.get()
    return {TRACEPARENT: current} if current else {}
