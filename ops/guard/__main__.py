"""`python -m ops.guard --deployment deployment.json --instance 0 --state-dir FOLDER`.

Exit status 0 after a stop, 1 when the server repeatedly fails to start, 2 for a bundle that must not be
served.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc.aio
import structlog
import uvloop

from conch import proxies
from conch.bundle import Manifest
from conch.contract import Malformed
from conch.deployment import Deployment, Instance
from conch.http_client import HttpClient

from .journal import Journal
from .life import RelayTarget
from .metrics import GuardMetrics
from .operate import Operator
from .proxy.contracts import Contracts
from .proxy.grpc_front import GrpcFront, connect, options
from .proxy.http_front import HttpFront
from .proxy.http_server import Connection
from .proxy.relay import Relay
from .proxy.service import Service
from .supervise.bundle import BundleRefused, check_bundle, planned
from .supervise.failures import Failures
from .supervise.keeper import Keeper
from .supervise.server import Server, TritonAddresses, measures, writable

HANDED_ON = 12.0  # seconds for requests that were handed on while the own server ended
MAX_BODY = 112 << 20  # nginx refuses larger ones first (MAX_BODY)


def listener(address: str) -> socket.socket:
    """Open a listening socket for "host:port" or "unix:/path"; the path is accessible to this user only."""
    if address.startswith("unix:"):
        path = Path(address[5:])
        path.unlink(missing_ok=True)
        made = socket.socket(socket.AF_UNIX)
        made.bind(str(path))
        path.chmod(0o600)
    else:
        host, port = address.rsplit(":", 1)
        made = socket.create_server((host, int(port)))
    made.listen(1024)
    return made


def close(addresses: Sequence[str]) -> None:
    """Remove sockets from their folder: no new client finds them, and connected clients are served."""
    for address in addresses:
        if address.startswith("unix:"):
            Path(address[5:]).unlink(missing_ok=True)


def listens(address: str, host: str | None) -> str:
    """Return where the guard listens for an address of the plan: in a container on all of its addresses."""
    return f"{host}:{address.rsplit(':', 1)[1]}" if host and not address.startswith("unix:") else address


async def serve(
    plan: Deployment, instance: Instance, home: Path, listen: str | None, sign: Path | None
) -> int:
    """Run one instance until SIGTERM. SIGHUP restarts its server with the current bundle, if it may be
    served.
    """
    if instance.cpus:
        os.sched_setaffinity(0, instance.cpus)
    keeper, addresses = _keeper(plan, instance, home, sign)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, keeper.stop_asked.set)
    loop.add_signal_handler(signal.SIGHUP, keeper.restart_asked.set)
    grpc_server = grpc.aio.server(options=options(MAX_BODY))
    operator = Operator(keeper, plan.inner_key, addresses.metrics)
    service = Service(keeper.relay, Contracts(), keeper.answered)
    front = HttpFront(service, operator)
    grpc_server.add_generic_rpc_handlers((GrpcFront(service),))
    grpc_server.add_insecure_port(listens(instance.grpc, listen))
    await grpc_server.start()
    keeper.close_listeners = lambda: close([instance.http, instance.grpc])
    open_now = set[Connection]()
    http_server = await loop.create_server(
        lambda: Connection(front, MAX_BODY, open_now), sock=listener(listens(instance.http, listen))
    )
    status = await keeper.run()
    http_server.close()
    await asyncio.gather(grpc_server.stop(HANDED_ON), finish(open_now, HANDED_ON))
    return status


def _keeper(
    plan: Deployment, instance: Instance, home: Path, sign: Path | None
) -> tuple[Keeper, TritonAddresses]:
    """Make the supervision of an instance's server; return with it where that listens."""
    others = [plan.instances[i] for i in plan.pool(instance.model_id).instances if i != instance.index]
    peers = [RelayTarget(HttpClient(other.http), connect(other.grpc)) for other in others]
    metrics = GuardMetrics(instance.model_id, measures(home, instance.index))
    relay = Relay(peers, metrics)
    own = instance.http.startswith("unix:")
    addresses = (
        TritonAddresses.sockets(Path(instance.http[5:]).parent, instance.name)
        if own
        else TritonAddresses.loopback()
    )

    def check() -> Manifest:
        bundle, gpus = Path(instance.bundle), os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return check_bundle(bundle, instance.model_id, gpus)

    def make(manifest: Manifest, lost: Callable[[str, int | None], None]) -> Server:
        return Server(instance, home, addresses, manifest.serving, lost)

    kept = Failures(writable(home) / f"failures-{instance.index}.json")
    return Keeper(relay, check, make, connect, sign, Journal(instance.name), kept), addresses


async def finish(connections: set[Connection], seconds: float) -> None:
    """Wait for what other instances are working on for this one's clients."""
    for connection in list(connections):
        connection.let_go()
    deadline = asyncio.get_running_loop().time() + seconds
    while connections and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.02)


def main() -> int:
    proxies.forget()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployment", type=Path, required=True)
    parser.add_argument("--instance", type=int, default=int(os.environ.get("CONCH_INSTANCE", "0")))
    parser.add_argument(
        "--state-dir", type=Path, required=True, help="folder for the files of Triton's backend"
    )
    parser.add_argument("--listen", help="address to listen on, if it is not the instance's host")
    parser.add_argument(
        "--ready-file", type=Path, help="file that exists while the server answers real inferences"
    )
    arguments = parser.parse_args()
    try:
        plan = Deployment.load(arguments.deployment)
        instance = planned(plan, arguments.instance)
        return uvloop.run(serve(plan, instance, arguments.state_dir, arguments.listen, arguments.ready_file))
    except (BundleRefused, Malformed) as error:
        print(f"guard: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
