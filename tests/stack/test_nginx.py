"""What nginx lets through, and what it does not."""

from __future__ import annotations

import gzip
import json
import socket

import grpc as grpc_core
import httpx
import pytest
import tritonclient.grpc as grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from .clients import grpc_inputs, wave
from .conftest import Stack

CLOSED = [
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/whisper_bls/unload"),
    ("GET", "/v2/systemsharedmemory/status"),
    ("POST", "/v2/systemsharedmemory/region/x/register"),
    ("GET", "/v2/cudasharedmemory/status"),
    ("GET", "/v2/logging"),
    ("POST", "/v2/logging"),
    ("GET", "/v2/trace/setting"),
    ("POST", "/v2/models/whisper_bls/trace/setting"),
    ("GET", "/v2/models/stats/x/y"),
    ("POST", "/guard/suspect"),
    ("GET", "/instances/0/guard/suspect"),
    ("GET", "/guard/status"),
    ("GET", "/instances/0/guard/status"),
    ("POST", "/instances/0/guard/restart"),
    ("POST", "/instances/0/v2/../guard/restart"),
    ("POST", "/console/api/instances/0/restart"),
    ("POST", "/models/mini-whisper/v2/repository/index"),
    ("POST", "/instances/0/v2/repository/index"),
    ("POST", "/v2//repository/index"),
    ("POST", "/v2/models/../repository/index"),
    ("POST", "/v2/models/x%2f..%2f..%2frepository/index"),
    ("POST", "/v2/%72epository/index"),
]


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_closed_over_http(stack: Stack, method: str, path: str) -> None:
    """Repository, shared memory, logging, tracing and what guards tell each other are closed on both HTTP
    ports, however the path is written.
    """
    for base in (stack.url, stack.kserve):
        answer = httpx.request(method, httpx.URL(base).copy_with(raw_path=path.encode()), content=b"{}")
        assert answer.status_code in (400, 403, 404), answer.text


@pytest.mark.parametrize(
    "name",
    ["RepositoryIndex", "SystemSharedMemoryStatus", "CudaSharedMemoryStatus", "LogSettings", "TraceSetting"],
)
def test_closed_over_grpc(stack: Stack, name: str) -> None:
    """The same over gRPC."""
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc_core.insecure_channel(stack.grpc))
    requests = {
        "LogSettings": service_pb2.LogSettingsRequest,
        "TraceSetting": service_pb2.TraceSettingRequest,
    }
    request = requests.get(name) or getattr(service_pb2, f"{name}Request")
    with pytest.raises(grpc_core.RpcError) as error:
        getattr(stub, name)(request(), timeout=10)
    assert error.value.code() == grpc_core.StatusCode.PERMISSION_DENIED


def test_open_over_http(stack: Stack) -> None:
    """Metadata, statistics and health, by plain path, header, model path and instance path."""
    for path in (
        "/v2",
        "/v2/models/stats",
        "/v2/models/whisper_bls/stats",
        "/instances/1/metrics",
        "/v2/health/ready",
        "/v2/models/whisper_bls",
        "/models/mini-whisper/v2/models/whisper_bls/ready",
        "/instances/1/v2/health/live",
    ):
        assert httpx.get(f"{stack.kserve}{path}").status_code == 200, path
    assert httpx.get(f"{stack.kserve}/v2", headers={"x-model-id": "mini-whisper"}).status_code == 200
    assert httpx.get(f"{stack.kserve}/v2", headers={"x-model-id": "nothing"}).status_code == 404
    assert httpx.get(f"{stack.kserve}/instances/9/v2").status_code == 404


def test_compressed_bodies_are_refused(stack: Stack) -> None:
    """A hundred megabytes of them may be a hundred gigabytes inside."""
    answer = httpx.post(
        f"{stack.kserve}/v2/models/whisper_bls/infer",
        content=gzip.compress(b"{}"),
        headers={"content-encoding": "gzip"},
    )
    assert answer.status_code == 415


@pytest.mark.parametrize("given", ["", "plain-1.2:3_4", "not plain"])
def test_refusals_at_the_door_have_ids(stack: Stack, given: str) -> None:
    """An error that nginx makes, of a text of over 4 MB before anybody parses it, and one of the gateway: the
    client's id if it is plain, else one that was made.
    """
    headers = {"x-request-id": given} if given else {}
    for status, prompt in ((413, "x" * 4_200_000), (404, "x")):
        answer = httpx.post(
            f"{stack.url}/v1/completions", json={"model": "nobody", "prompt": prompt}, headers=headers
        )
        assert answer.status_code == status
        assert ("4 MB" in answer.json()["error"]["message"]) == (status == 413)
        found = answer.headers.get_list("x-request-id")
        assert len(found) == 1
        assert found == [given] if given.startswith("plain") else len(found[0]) == 32


@pytest.mark.parametrize("path", ["/v1/models/", "//v1/models", "/v1//models/?a=b"])
def test_slashes_too_many_do_no_harm(stack: Stack, path: str) -> None:
    """As base URLs of clients make them."""
    assert httpx.get(stack.url + path).status_code == 200


def test_what_is_no_http_is_refused_in_the_apis_form(stack: Stack) -> None:
    """By nginx, which nobody else sees."""
    host, port = stack.url.removeprefix("http://").split(":")
    chunked = b"POST /v1/models HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n"
    for sent, status, code in (
        (b"GET /a b c HTTP/1.1\r\nHost: a\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "invalid_http"),
        (b"TRACE /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed"),
        (b"FOO /v1/models HTTP/1.0\r\nHost: localhost\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /v1/models HTTP/1.0\r\nHost: else.example\r\n\r\n", 403, "foreign_host"),
        (chunked, 501, "unsupported_encoding"),
    ):
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(sent)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert int(head.split()[1]) == status
        assert json.loads(body)["error"]["code"] == code
        assert head.lower().count(b"x-request-id: ") == 1
    refused = httpx.request("TRACE", f"{stack.kserve}/v2")
    assert (refused.status_code, list(refused.json())) == (400, ["error"])
    long = httpx.get(f"{stack.url}/v1/models?{'a' * 20_000}")
    assert (long.status_code, long.json()["error"]["code"]) == (431, "header_too_large")


def test_a_balancer_without_a_host_is_answered(stack: Stack) -> None:
    host, port = stack.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_twenty_megabytes_posted_as_a_form(stack: Stack) -> None:
    """curl -d's content type with a large body, which kills a bare tritonserver, is answered, and the server
    lives on.
    """
    numbers = ",".join(["0.0"] * 5_000_000)
    body = '{"inputs":[{"name":"WAV","datatype":"FP32","shape":[1,5000000],"data":[' + numbers + "]}]}"
    headers = {"content-type": "application/x-www-form-urlencoded"}
    for path in (
        "/v2/models/whisper_bls/infer",
        "/v2/models/whisper_bls/generate",
        "/models/mini-whisper/v2/models/whisper_bls/infer",
    ):
        assert httpx.post(
            f"{stack.kserve}{path}", content=body, headers=headers, timeout=120
        ).status_code in (400, 500)
    assert grpc.InferenceServerClient(stack.grpc).infer(
        "whisper_bls", grpc_inputs(wave("order.wav")), client_timeout=60
    )


def test_grpc_model_choice(stack: Stack) -> None:
    """x-model-id chooses the pool; an unknown one is NOT_FOUND."""
    client = grpc.InferenceServerClient(stack.grpc)
    assert client.is_model_ready("whisper_bls", headers={"x-model-id": "mini-whisper"})
    with pytest.raises(grpc.InferenceServerException, match="NOT_FOUND"):
        client.get_server_metadata(headers={"x-model-id": "nothing"})
