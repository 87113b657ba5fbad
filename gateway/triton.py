"""KServe v2 over HTTP, through nginx's internal listener.

The guards fail a request over to another instance when its own is lost (ops/guard/proxy/relay.py); this
client sends it once. When the client of a request disconnects, the guard notices and stops it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx
import numpy as np
import structlog
from httpx_sse import EventSource
from numpy.typing import NDArray
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult
from tritonclient.utils import np_to_triton_dtype

from conch.deployment import Pool
from conch.errors import ApiError
from conch.names import AT_ONCE

from .tracing import Traces

log = structlog.get_logger()
Arrays = dict[str, NDArray[Any]]
READY_SECONDS = 30.0
UNREACHED = "no instance of this model can be reached"  # docker/nginx/kserve.conf.template
# An nginx whose host is cut off sends no word; the system finds out.
KEEPALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
AGAIN = 0.3  # seconds until nginx has asked for names again


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


def decode(answer: httpx.Response, outputs: Sequence[str]) -> Arrays:
    """Read the arrays of an answer."""
    length = answer.headers.get("inference-header-content-length")
    result: InferResult = InferenceServerClient.parse_response_body(
        answer.content, header_length=int(length) if length else None
    )
    return {name: result.as_numpy(name) for name in outputs}


class Triton:
    """A connection pool to nginx."""

    def __init__(
        self,
        url: str,
        pools: Mapping[str, Pool],
        seconds: float,
        inner_key: str = "",
        traces: Traces | None = None,
    ) -> None:
        self.pools, self.traces = pools, traces or Traces()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)  # Admission says how many
        socket_path = url.removeprefix("unix:") if url.startswith("unix:") else None
        base = "http://nginx" if socket_path else url
        transport = httpx.AsyncHTTPTransport(
            verify=httpx.URL(base).scheme == "https",  # reading the certificates takes 50 ms
            uds=socket_path,
            limits=limits,
            socket_options=KEEPALIVE,
        )
        self.http = httpx.AsyncClient(
            base_url=base,
            transport=transport,
            timeout=httpx.Timeout(seconds, connect=5),
            headers={"X-Conch-Inner": inner_key},
        )

    async def close(self) -> None:
        """Close all connections."""
        await self.http.aclose()

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
            if answer.status_code == 503 and UNREACHED in answer.text:
                # nginx 1.30 gives up where addresses change meanwhile (seen); no guard has had it whole.
                await asyncio.sleep(AGAIN)
                answer = await self._post(path, body, headers)
        if answer.status_code != 200:
            if answer.status_code >= 500:
                log.warning(
                    "no answer from the model",
                    status=answer.status_code,
                    body=answer.text[:200],
                    request_id=request_id,
                )
            raise _refusal(answer)
        return decode(answer, outputs)

    async def stream(
        self, pool: Pool, model: str, fields: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run one inference of a decoupled model and yield each response, through Triton's generate
        extension.

        Raises:
            ApiError: as `infer`; also in the middle, when the instance is lost.
        """
        path, headers = (
            f"/models/{pool.model_id}/v2/models/{model}/generate_stream",
            {"x-request-id": request_id},
        )
        try:
            with self.traces.call(model, headers):
                async with self.http.stream(
                    "POST", path, json={"id": request_id, **fields}, headers=headers
                ) as answer:
                    if answer.status_code != 200:
                        await answer.aread()
                        raise _refusal(answer)
                    async for event in EventSource(answer).aiter_sse():
                        yield _response(event.data)
        except httpx.TimeoutException as error:
            raise ApiError(
                504, "the model did not answer in time; try again, or send less at once", code="timeout"
            ) from error
        except httpx.HTTPError as error:
            raise ApiError(
                503,
                "the instance generating this text was lost; retry the request",
                code="unavailable",
                retry_after=2,
            ) from error

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Send a request, and once more if nginx closes the connection without an answer, as a reload does to
        idle ones (RFC 9112 §9.3.1).
        """
        lost: httpx.HTTPError | None = None
        for _ in range(2):
            try:
                return await self.http.post(path, content=body, headers=headers)
            except httpx.TimeoutException as error:
                raise ApiError(
                    504, "the model did not answer in time; try again, or send less at once", code="timeout"
                ) from error
            except httpx.HTTPError as error:
                log.info("no answer from nginx", path=path, error=repr(error))
                lost = error
        raise ApiError(
            503, "no instance can be reached; try again in a few seconds", code="unavailable", retry_after=2
        ) from lost

    async def ready(self, pool: Pool) -> bool:
        """Tell whether a tiny real inference succeeds."""
        fills = {"BYTES": np.object_, "FP32": np.float32, "INT32": np.int32}
        arrays = {}
        for name, tensor in pool.probe["inputs"].items():
            fill = tensor["fill"].encode() if tensor["datatype"] == "BYTES" else tensor["fill"]
            arrays[name] = np.full(tensor["shape"], fill, fills[tensor["datatype"]])
        try:
            async with asyncio.timeout(READY_SECONDS):
                name = f"readiness-{uuid.uuid4().hex[:8]}"
                await self.infer(pool, pool.probe["model"], arrays, [], name, at_once=True)
        except (ApiError, TimeoutError):
            return False
        return True


def _refusal(answer: httpx.Response) -> ApiError:
    try:
        message = str(
            json.loads(answer.text.removeprefix("data: "))["error"]
        )  # generate_stream says even this as an event
    except (ValueError, KeyError, TypeError):
        message = f"the model server answered {answer.status_code}"
    if answer.status_code in (502, 503, 504):
        return ApiError(
            503,
            "all instances of this model are busy or restarting; try again in a few seconds",
            code="unavailable",
            retry_after=2,
        )
    return ApiError(
        400 if answer.status_code < 500 else 500,
        message,
        code="model_refused" if answer.status_code < 500 else "model_failed",
    )


def _response(data: str) -> dict[str, Any]:
    """Return one response of a stream; an error in it is a sentence without a status."""
    response: dict[str, Any] = json.loads(data)
    if "error" in response:
        raise ApiError(400, str(response["error"]), code="model_refused")
    return response
