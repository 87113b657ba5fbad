"""How many servers one request may reach: nginx itself in front of servers that are lost with it."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from build.catalog import load_catalog
from conch.deployment import Deployment
from ops.planning import Addresses, make_plan

from .running_nginx import running_nginx

pytestmark = pytest.mark.slow  # 13 s of waiting

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfine"
LARGE = b"x" * 3_000_000  # more than nginx keeps in memory
NOBODY = "127.0.0.1:1"
INFER = "/v2/models/whisper_bls/infer"


@dataclass
class Servers:
    """Servers that answer; the first `deaths` of them that are asked close a connection when they have read
    a request. `seen` has each request: who was asked, its head in lower case, and how long its body was.
    """

    deaths: int
    seen: list[tuple[str, bytes, int]] = field(default_factory=list)

    def start(self) -> tuple[socket.socket, str]:
        """One more: its listener and its address."""
        return serve(self._take)

    def asked(self) -> list[str]:
        """The servers that were asked, in this order."""
        return list(dict.fromkeys(address for address, _, _ in self.seen))

    def _take(self, connection: socket.socket) -> None:
        address = "{}:{}".format(*connection.getsockname())
        head, length = read_request(connection)
        self.seen.append((address, head, length))
        if address not in self.asked()[: self.deaths]:
            connection.sendall(ANSWER)


def serve(take: Callable[[socket.socket], None]) -> tuple[socket.socket, str]:
    """A listener whose connections `take` gets one after the other, until it is closed; and its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # it is closed
                return
            with connection:
                take(connection)

    threading.Thread(target=run, daemon=True).start()
    return listener, "{}:{}".format(*listener.getsockname())


def read_request(connection: socket.socket) -> tuple[bytes, int]:
    """The head of a request in lower case, and how long its body was."""
    data = b""
    while b"\r\n\r\n" not in data and (part := connection.recv(1 << 20)):
        data += part
    head, _, body = data.lower().partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    while length and len(body) < int(length[1]) and (part := connection.recv(1 << 20)):
        body += part
    return head, len(body)


def away() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def plan(kind: str, addresses: list[str]) -> Deployment:
    """One pool. `kind`: whose addresses these are, "gateway", or "http" or "grpc" of guards."""
    model = load_catalog()["mini-whisper"]
    gateways = tuple(addresses) if kind == "gateway" else (NOBODY,)
    made = make_plan([model], len(addresses), [Path("/x")], [0], Addresses(NOBODY, NOBODY, gateways))
    if kind == "gateway":
        return made
    pairs = zip(made.instances, addresses, strict=True)
    own = [replace(i, http=a) if kind == "http" else replace(i, grpc=a) for i, a in pairs]
    return replace(made, instances=tuple(own))


LISTENERS = [
    ("gateway", "port", "/v1/completions"),
    ("gateway", "port", "/v1/audio/transcriptions"),
    ("http", "kserve", INFER),
]


@pytest.mark.parametrize(("kind", "port", "path"), LISTENERS)
@pytest.mark.parametrize("deaths", [0, 1, 2])
def test_two_servers_at_most_are_lost(tmp_path: Path, kind: str, port: str, path: str, deaths: int) -> None:
    """Of seven, three of which cannot be reached: where one is lost the request is answered, with its whole
    body; where two are it is a 503, and no third one has seen it.
    """
    servers = Servers(deaths)
    started = [servers.start() for _ in range(4)]
    addresses = [started[0][1], away(), away(), started[1][1], away(), started[2][1], started[3][1]]
    with running_nginx(tmp_path, plan(kind, addresses)) as values:
        client = httpx.Client(transport=httpx.HTTPTransport(retries=20), trust_env=False, timeout=30)
        answer = client.post(f"http://127.0.0.1:{getattr(values, port)}{path}", content=LARGE)
    for listener, _ in started:
        listener.close()
    assert answer.status_code == (503 if deaths == 2 else 200), answer.text
    assert len(servers.asked()) == min(2, deaths + 1)
    assert {length for _, _, length in servers.seen} == {len(LARGE)}
    if kind == "http":  # guards are told
        told = [b"x-conch-lost: 1" in head for _, head, _ in servers.seen]
        assert told == [n > 0 for n in range(len(told))]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/audio/transcriptions"])
def test_one_gateway_is_not_lost_twice(tmp_path: Path, path: str) -> None:
    """However often nginx prefers a gateway that takes connections and dies, the other one has the answer."""
    servers, broken = Servers(0), Broken()
    listener, address = servers.start()
    made = plan("gateway", [broken.address, address])
    with closing(listener), closing(broken.listener), running_nginx(tmp_path, made) as values:
        client = httpx.Client(transport=httpx.HTTPTransport(retries=20), trust_env=False, timeout=30)
        for _ in range(8):
            assert client.post(f"http://127.0.0.1:{values.port}{path}", content=LARGE).status_code == 200
    assert broken.taken > 0


@pytest.mark.parametrize(("kind", "port", "path"), LISTENERS)
def test_a_server_that_takes_a_request_on_its_way_out_is_lost_once(
    tmp_path: Path, kind: str, port: str, path: str
) -> None:
    """It loses what it has and what comes while it ends; the other one, which is busy, has the answer."""
    servers, ending, asked = Servers(0), Ending(2), []
    listener, address = servers.start()
    with closing(listener), running_nginx(tmp_path, plan(kind, [ending.address, address])) as values:
        client = httpx.Client(transport=httpx.HTTPTransport(retries=20), trust_env=False, timeout=30)
        for _ in range(4):
            asked.append(client.post(f"http://127.0.0.1:{getattr(values, port)}{path}", content=b"{}"))
    assert [answer.status_code for answer in asked] == [200] * 4
    assert ending.left == 0


class Kept:
    """A gateway that keeps its connections, and is lost with every POST; `lost`: how many."""

    def __init__(self) -> None:
        self.listener, self.address = serve(self._take)
        self.lost = 0

    def _take(self, connection: socket.socket) -> None:
        threading.Thread(target=self._answer, args=[connection.dup()], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            while head := read_request(connection)[0]:
                if head.startswith(b"post"):
                    self.lost += 1
                    return
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine")


def test_kept_connections_lose_no_more_gateways(tmp_path: Path) -> None:
    """To nginx a request that fails on a kept connection is no try at all."""
    kept = [Kept() for _ in range(5)]
    with running_nginx(tmp_path, plan("gateway", [one.address for one in kept])) as values:
        client = httpx.Client(transport=httpx.HTTPTransport(retries=20), trust_env=False, timeout=30)
        for _ in range(20):  # of one connection, so all of one worker
            assert client.get(f"http://127.0.0.1:{values.port}/v1/models").status_code == 200
        answer = client.post(f"http://127.0.0.1:{values.port}/v1/completions", content=b"{}")
    for one in kept:
        one.listener.close()
    assert answer.status_code == 503
    assert sum(one.lost > 0 for one in kept) == 2


def test_a_gateway_that_cannot_be_reached_is_not_too_slow(tmp_path: Path) -> None:
    """One is lost, and to connect to the other one takes too long: 503 with Retry-After, not 504."""
    servers = Servers(1)
    listener, address = servers.start()
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    queued = [socket.socket() for _ in range(4)]
    for one in queued:  # nobody accepts, so that the kernel leaves the next one waiting
        one.setblocking(False)
        one.connect_ex(full.getsockname())
    made = plan("gateway", [address, f"127.0.0.1:{full.getsockname()[1]}"])
    with closing(listener), closing(full), running_nginx(tmp_path, made) as values:
        client = httpx.Client(transport=httpx.HTTPTransport(retries=20), trust_env=False, timeout=30)
        answer = client.post(f"http://127.0.0.1:{values.port}/v1/completions", content=b"{}")
    for one in queued:
        one.close()
    assert (answer.status_code, answer.headers.get("retry-after")) == (503, "2"), answer.text
    assert answer.json()["error"]["code"] == "gateway_unavailable"


def test_nobody_who_asks_says_what_was_lost(tmp_path: Path) -> None:
    """The header is nginx's own."""
    servers = Servers(0)
    listener, address = servers.start()
    with closing(listener), running_nginx(tmp_path, plan("http", [address])) as values:
        client = httpx.Client(transport=httpx.HTTPTransport(retries=20), trust_env=False)
        url = f"http://127.0.0.1:{values.kserve}{INFER}"
        assert client.post(url, headers={"X-Conch-Lost": "1"}, content=b"{}").status_code == 200
    assert b"x-conch-lost" not in servers.seen[0][1]


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers with the id of the request, and notes its length and what nginx says of it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, bool]] = []

    def ModelInfer(  # noqa: N802  # protobuf's
        self, request: service_pb2.ModelInferRequest, context: grpc.ServicerContext
    ) -> service_pb2.ModelInferResponse:
        lost = "x-conch-lost" in dict(context.invocation_metadata())
        self.seen.append((len(request.raw_input_contents[0]), lost))
        return service_pb2.ModelInferResponse(id=request.id)


class Ending:
    """A server that loses the first `left` requests that come and then is gone."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.listener, self.address = serve(self._take)

    def _take(self, connection: socket.socket) -> None:
        read_request(connection)
        self.left -= 1
        if not self.left:
            self.listener.close()


class Broken:
    """Closes every connection on which something has come: a guard that is lost with what it has."""

    def __init__(self) -> None:
        self.taken = 0
        self.listener, self.address = serve(self._take)

    def _take(self, connection: socket.socket) -> None:
        self.taken += 1
        connection.recv(1 << 20)


def infer(port: int, body: bytes) -> service_pb2.ModelInferResponse:
    """One unary call of its own connection."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="m", id="one", raw_input_contents=[body])
        return stub.ModelInfer(request, timeout=20, wait_for_ready=True)


def test_a_unary_call_over_grpc_is_sent_once_more(tmp_path: Path) -> None:
    """Nginx has its body, a small one and a large one."""
    triton, broken = Triton(), Broken()
    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sizes = [10, len(LARGE)] * 4
    addresses = [broken.address, away(), f"127.0.0.1:{port}"]
    with closing(broken.listener), running_nginx(tmp_path, plan("grpc", addresses)) as values:
        for size in sizes:
            assert infer(values.grpc, b"x" * size).id == "one"
    server.stop(None)
    assert [length for length, _ in triton.seen] == sizes
    assert broken.taken >= sum(lost for _, lost in triton.seen) > 0


def test_two_guards_at_most_are_lost_over_grpc(tmp_path: Path) -> None:
    broken = [Broken() for _ in range(4)]
    addresses = [away(), *(one.address for one in broken)]
    with running_nginx(tmp_path, plan("grpc", addresses)) as values, pytest.raises(grpc.RpcError) as failed:
        infer(values.grpc, b"x")
    assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
    assert sum(one.taken > 0 for one in broken) == 2
    for one in broken:
        one.listener.close()
