"""What both protocols do with a checked request: find its model's contract, send it, fail over, stop it."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import orjson

from conch.http_client import HttpResponse, Lost
from conch.names import AT_ONCE

from ..checks.contract import Contract
from ..checks.json_requests import STOP, Checked
from ..life import RelayTarget
from .contracts import HANDED, LOST, Contracts
from .relay import AWAY_SECONDS, NOBODY, Call, Relay, Unavailable
from .suspicion import fingerprint

UNHEALTHY = re.compile(rb"[Ss]tub process [^\n]{0,200}is not healthy")
LOST_ONCE = "x-conch-lost"  # nginx's: a guard was lost with this request in hand
UNREAD = "x-conch-unread"  # in a guard's answer to another: it has no server to give this to
CHANGED = "model {!r} has changed since the request came; send it again"
HEAD_BYTES = "inference-header-content-length"
# The engine's own models, which know a request by its id: a client that leaves is stopped there.
STOPPABLE = "tensorrt_llm"
FAULT = "internal error of the guard; its log has it"
UNKNOWN = "model {!r} is not served here; x-model-id selects the model, GET /v1/models lists them"
PASSED_ON = ("x-request-id", "traceparent", "tracestate")
SAMPLED = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")
OWN_ID = f".{uuid.uuid4().hex[:16]}-"  # unique among guards, with a number of this one after it: UNIQUE_ID
NUMBERS = count(1)


@dataclass
class Reply:
    """An answer of a server; `body` is None while it is still arriving."""

    answer: HttpResponse
    body: bytes | None = None


class Service:
    """Requests of an instance, whatever protocol they come by. `answered` is called for each success."""

    def __init__(self, relay: Relay, contracts: Contracts, answered: Callable[[], None]) -> None:
        self.relay, self.contracts, self.answered = relay, contracts, answered
        self.tasks: set[asyncio.Task[None]] = set()  # asyncio itself keeps no hold of tasks

    async def contract(
        self, model: str, until: float = 0.0, size: int = 0, *, handed: bool = False
    ) -> Contract | None:
        """Return a model's contract; None if there is no such model. While the own server is away, it is the
        last reported one, which the sender compares. `until`, `size`: see Relay.back; `handed`: by another
        guard.

        Raises:
            Unavailable: nobody can be asked.
        """
        while True:
            if life := self.relay.life:
                with suppress(Lost):
                    return await self.contracts.get(life.http, model)
            if found := self.contracts.last(model):
                return found
            if handed:
                raise Unavailable(NOBODY, unread=True)
            for peer in self.relay.peers:
                with suppress(Lost):
                    return await self.contracts.elsewhere(peer.http, model)
            await self.relay.back(until, size)

    async def _unchanged(self, target: RelayTarget, contract: Contract) -> bool:
        """Tell whether a server's model is still the one that a request was checked against.

        Raises:
            Lost: the server cannot be asked.
        """
        try:
            return await self.contracts.get(target.http, contract.name) == contract
        except Lost as lost:
            raise Lost(str(lost), sent=False) from lost

    async def run(
        self,
        contract: Contract,
        path: str,
        checked: Checked,
        headers: Mapping[str, str],
        until: float,
        *,
        streaming: bool = False,
    ) -> Reply:
        """Send a checked request to the own server or to another guard, and return the answer. `headers` are
        the client's, or another guard's; `until`: see Relay.back.

        Raises:
            Unavailable: nobody can take it now, or the own server's model is no longer the one that it was
                checked against.
        """
        sent = {**_content(checked), **passed_on(headers)}

        async def ask(target: RelayTarget) -> Reply:
            own = target is self.relay.life
            if own and not await self._unchanged(target, contract):
                raise Unavailable(CHANGED.format(contract.name))
            more = {} if own else {HANDED: LOST if call.lost else "1"}
            answer = await target.http.request("POST", path, {**sent, **more}, checked.body)
            if streaming and answer.status == 200:
                return Reply(answer)
            body = await answer.body()
            if answer.status >= 400 and own and UNHEALTHY.search(body):
                self.relay.report_ill("an answer says that a Python stub is not healthy")
                raise Lost("a Python stub is not healthy")
            return took(Reply(answer, body))

        call: Call[Reply] = Call(
            contract.name,
            lambda: mark(contract.name, checked),
            ask,
            handed=HANDED in headers,
            lost=LOST_ONCE in headers or headers.get(HANDED) == LOST,
            until=until,
            size=sum(len(part) for part in checked.body),
        )
        return await self.relay.run(call)

    def stop(self, request_id: str) -> None:
        """Stop a request whose client has gone, if its id is its own; over HTTP Triton does not notice.

        `stop` with the id of a running request is TensorRT-LLM's own way (triton_backend, README: "stop").
        """
        if OWN_ID in request_id:
            task = asyncio.ensure_future(self._tell_stop(request_id))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _tell_stop(self, request_id: str) -> None:
        one = {"datatype": "INT32", "shape": [1, 1], "data": [1]}
        rows = [{"name": name, **one} for name in ("input_ids", "input_lengths", "request_output_len")]
        rows.append({"name": STOP, "datatype": "BOOL", "shape": [1, 1], "data": [True]})
        body = orjson.dumps({"id": request_id, "inputs": rows})
        with suppress(Unavailable):
            if await self.contract(STOPPABLE) is None:
                return
        for target in (self.relay.life, *self.relay.peers):
            with suppress(Lost):
                if target:
                    path = f"/v2/models/{STOPPABLE}/infer"
                    await (await target.http.request("POST", path, {HANDED: "1"}, [body])).body()


def _content(checked: Checked) -> dict[str, str]:
    """Return the headers that tell what the body is."""
    if not checked.head_bytes:
        return {"Content-Type": "application/json"}
    return {"Content-Type": "application/octet-stream", HEAD_BYTES: str(checked.head_bytes)}


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that Triton receives. Triton traces whatever has a traceparent, so that of an
    unsampled trace (the last flag is 0, https://www.w3.org/TR/trace-context/#sampled-flag) is dropped.
    """
    recorded = SAMPLED.fullmatch(headers.get("traceparent", "")) is not None
    names = PASSED_ON if recorded else PASSED_ON[:1]
    return {name: headers[name] for name in names if name in headers}


def patience(headers: Mapping[str, str]) -> float:
    """Return until when a request waits for a server's return (see Relay.back); one that another guard has
    forwarded does not wait.
    """
    return 0.0 if AT_ONCE in headers or HANDED in headers else time.monotonic() + AWAY_SECONDS


def took(reply: Reply) -> Reply:
    if UNREAD in dict(reply.answer.headers):
        raise Lost("another guard has no server for it", sent=False)
    return reply


def naming(header: str | None) -> Callable[[str], str]:
    """Return how a request's id becomes the one that the engine gets. `header` is x-request-id.

    A request can be stopped by an id of its own. A client's id, which several requests may share, is kept.
    One that is in the header, too, was made for this request, but a retry uses it again: the next try must
    not be stopped with the one before.
    """

    def name(given: str) -> str:
        if given and given != header:
            return given
        return f"{given}{OWN_ID}{next(NUMBERS)}"

    return name


def mark(model: str, checked: Checked) -> str:
    """Return the bytes that the request's fingerprint covers: all without its id, which comes first in the
    serialized request.
    """
    head, own = bytes(checked.body[0]), orjson.dumps(checked.id)
    return fingerprint(model, [head.replace(own, b"", 1), *checked.body[1:]])
