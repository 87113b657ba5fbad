"""KServe v2 over HTTP, through nginx's internal listener.

The guards fail a request over to another instance when its own is lost (ops/guard/proxy/relay.py); this
client sends it again only if nginx has lost it. When the client of a request disconnects, the guard notices
and stops it.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import structlog
from numpy.typing import NDArray
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from conch.deployment import Pool
from conch.errors import ApiError
from conch.http_client import HttpClient, HttpResponse, Lost
from conch.names import AT_ONCE

from .tracing import Traces

log = structlog.get_logger()
Arrays = dict[str, NDArray[Any]]
READY_SECONDS = 10.0
UNREACHED = b"no instance of this model can be reached"  # docker/nginx/kserve.conf.template
AGAIN = 0.3  # seconds until nginx has asked for names again
IDLE_SECONDS = 5.0  # connections do not survive when nginx moves to another host


@dataclass(frozen=True)
class TritonAnswer:
    """nginx's, or through it a server's; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def encode(
    arrays: Mapping[str, NDArray[Any]], outputs: Sequence[str], request_id: str
) -> tuple[bytes, dict[str, str]]:
    """Make body and headers of an inference request with binary tensors, in the shapes and dtypes of
    `arrays`; it can be stopped by its id.
    """
    inputs = []
    for name, array in arrays.items():
        tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, binary_data=True)
        inputs.append(tensor)
    wanted = [InferRequestedOutput(name, binary_data=True) for name in outputs]
    body, json_size = InferenceServerClient.generate_request_body(
        inputs, outputs=wanted, request_id=request_id
    )
    headers = {
        "Content-Type": "application/octet-stream",
        **({"Inference-Header-Content-Length": str(json_size)} if json_size else {}),
    }
    return body, headers


def call_id(request_id: str) -> str:
    """Make a call's id that, unlike the client's own, is unique, so that the work can be stopped by it."""
    return f"{request_id}.{uuid.uuid4().hex[:8]}"


def decode(headers: Mapping[str, str], body: bytes, outputs: Sequence[str]) -> Arrays:
    """Read the arrays of an answer."""
    length = headers.get("inference-header-content-length")
    result: InferResult = InferenceServerClient.parse_response_body(
        body, header_length=int(length) if length else None
    )
    return {name: result.as_numpy(name) for name in outputs}


class Triton:
    """A connection pool to nginx. `url` is http://HOST:PORT or unix:PATH; a call takes at most `seconds`, or
    that long from one response of a stream to the next.
    """

    def __init__(
        self,
        url: str,
        pools: Mapping[str, Pool],
        seconds: float,
        inner_key: str = "",
        traces: Traces | None = None,
    ) -> None:
        self.pools, self.seconds, self.traces = pools, seconds, traces or Traces()
        host = "nginx" if url.startswith("unix:") else urlsplit(url).netloc
        self.http = HttpClient(url.removeprefix("http://").rstrip("/"), host, IDLE_SECONDS)
        self.headers = {"X-Conch-Inner": inner_key}

    async def close(self) -> None:
        """Close all connections."""
        self.http.abort()

    async def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        seconds: float | None = None,
    ) -> TritonAnswer:
        """Send a request and read the whole answer.

        Raises:
            Lost: nginx closed the connection, or cannot be reached.
            TimeoutError: the answer was not there after `seconds` (default: the limit of a call).
        """
        async with asyncio.timeout(seconds or self.seconds):
            answer = await self._send(method, path, headers or {}, body)
            try:
                return TritonAnswer(answer.status, dict(answer.headers), await answer.body())
            finally:
                answer.abort()  # does nothing if the answer is complete

    async def _send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        return await self.http.request(method, path, {**self.headers, **headers}, [body] if body else ())

    async def infer(
        self,
        pool: Pool,
        model: str,
        arrays: Mapping[str, NDArray[Any]],
        outputs: Sequence[str],
        request_id: str,
        *,
        at_once: bool = False,
    ) -> Arrays:
        """Run one inference in a pool. With `at_once` it does not wait for an instance that restarts.

        Raises:
            ApiError: 400 for what the model refuses, 503 when no instance answers, 504 after the time limit.
        """
        body, headers = encode(arrays, outputs, request_id)
        headers |= {"x-request-id": request_id, **({AT_ONCE: "1"} if at_once else {})}
        path = f"/models/{pool.model_id}/v2/models/{model}/infer"
        with self.traces.call(model, headers):
            answer = await self._post(path, body, headers)
            if answer.status == 503 and UNREACHED in answer.body:
                # nginx 1.30 gives up where addresses change meanwhile (seen); no guard has had it whole.
                await asyncio.sleep(AGAIN)
                answer = await self._post(path, body, headers)
        if answer.status != 200:
            if answer.status >= 500:
                log.warning(
                    "no answer from the model",
                    status=answer.status,
                    body=answer.body[:200].decode(errors="replace"),
                    request_id=request_id,
                )
            raise _refusal(answer.status, answer.body)
        return decode(answer.headers, answer.body, outputs)

    async def stream(
        self, pool: Pool, model: str, fields: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run one inference of a decoupled model and yield each response, through Triton's generate
        extension.

        Raises:
            ApiError: as `infer`; also in the middle, when the instance is lost.
        """
        path = f"/models/{pool.model_id}/v2/models/{model}/generate_stream"
        headers = {"Content-Type": "application/json", "x-request-id": request_id}
        body = json.dumps({"id": request_id, **fields}).encode()
        try:
            with self.traces.call(model, headers):
                async with asyncio.timeout(self.seconds):
                    answer = await self._send("POST", path, headers, body)
                try:
                    if answer.status != 200:
                        async with asyncio.timeout(self.seconds):
                            raise _refusal(answer.status, await answer.body())
                    begun = False
                    async with aclosing(events(answer.chunks(), self.seconds)) as found:
                        async for event in found:
                            yield _response(event, begun=begun)
                            begun = True
                finally:
                    answer.abort()
        except TimeoutError as error:
            raise _late() from error
        except Lost as error:
            raise _unavailable("the instance generating this text was lost; retry the request") from error

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> TritonAnswer:
        """Send a request, and once more if nginx closes the connection without an answer, as a reload does to
        idle ones (RFC 9112 §9.3.1).
        """
        try:
            try:
                return await self.ask("POST", path, headers, body)
            except Lost as lost:
                log.info("no answer from nginx", path=path, error=repr(lost))
                if lost.sent and not lost.fresh and not lost.begun:  # over a kept connection and a new one
                    raise
                return await self.ask("POST", path, headers, body)
        except TimeoutError as error:
            raise _late() from error
        except Lost as error:
            raise _unavailable("no instance can be reached; try again in a few seconds") from error

    async def ready(self, pool: Pool) -> bool:
        """Tell whether a tiny real inference succeeds. Where it has to wait, or the queue is full, its guards
        decide: they replace a server that hangs, and wait for one whose engine works.
        """
        arrays = {}
        for name, tensor in pool.probe["inputs"].items():
            fill = tensor["fill"].encode() if tensor["datatype"] == "BYTES" else tensor["fill"]
            arrays[name] = np.full(tensor["shape"], fill, triton_to_np_dtype(tensor["datatype"]))
        try:
            async with asyncio.timeout(READY_SECONDS):
                name = f"readiness-{uuid.uuid4().hex[:8]}"
                await self.infer(pool, pool.probe["model"], arrays, [], name, at_once=True)
            return True
        except ApiError as error:
            if error.status not in (503, 504):
                return False
        except TimeoutError:
            pass
        with suppress(Lost, TimeoutError):
            path = f"/models/{pool.model_id}/v2/health/ready"
            return (await self.ask("GET", path, seconds=READY_SECONDS)).status == 200
        return False


async def events(chunks: AsyncIterator[bytes], seconds: float) -> AsyncGenerator[str, None]:
    """Yield the data of each event of Triton's generate_stream, which has one line, `data: `.

    Raises:
        TimeoutError: nothing came for `seconds`.
    """
    rest = b""
    while True:
        try:
            async with asyncio.timeout(seconds):
                rest += await anext(chunks)
        except StopAsyncIteration:
            return
        *whole, rest = rest.split(b"\n\n")
        for event in whole:
            yield event.decode(errors="replace").removeprefix("data: ")


def _late() -> ApiError:
    return ApiError(504, "the model did not answer in time; try again, or send less at once", code="timeout")


def _unavailable(message: str) -> ApiError:
    return ApiError(503, message, code="unavailable", retry_after=2)


def _refusal(status: int, body: bytes) -> ApiError:
    try:
        # generate_stream says even this as an event
        message = str(json.loads(body.decode(errors="replace").removeprefix("data: "))["error"])
    except (ValueError, KeyError, TypeError):
        message = f"the model server answered {status}"
    if status in (502, 503, 504):
        return _unavailable("all instances of this model are busy or restarting; try again in a few seconds")
    return ApiError(
        400 if status < 500 else 500, message, code="model_refused" if status < 500 else "model_failed"
    )


def _response(data: str, *, begun: bool) -> dict[str, Any]:
    """Return one response of a stream. An error in it is a sentence without a status: what a client can mend
    is refused before the stream has `begun`, so a later one is taken for a fault of the server.
    """
    response: dict[str, Any] = json.loads(data)
    if "error" in response:
        status, code = (500, "model_failed") if begun else (400, "model_refused")
        raise ApiError(status, str(response["error"]), code=code)
    return response
