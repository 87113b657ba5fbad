"""Milvus Lite on a socket: `python -m ops.vectors FOLDER SOCKET`, in an environment of its own (Makefile).

Only one process may open Milvus Lite, and there are several gateways, so it is a process of its own, which
they use like any Milvus. Its engine allows one writer per collection, so writes take turns. New rows stay in
memory, where they are searched one by one, and are flushed into indexed segments as they grow.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from milvus_lite.adapter.grpc.servicer import MilvusServicer
from milvus_lite.db import MilvusLite
from pymilvus.grpc_gen.milvus_pb2_grpc import add_MilvusServiceServicer_to_server

THREADS = 16
MOST_BYTES = 256 << 20  # of a message, as in Milvus
READS = ("Search", "HybridSearch", "Query", "Get", "Describe", "Show", "Has", "List", "Connect", "Check")
# pymilvus asks every 10 s whether an idle connection lives; gRPC would close it for that, and with a limit on
# their interval as well where the machine is busy and pings arrive together.
PINGS = [("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_ping_strikes", 0)]
FLUSH_ROWS = 500  # in memory
FLUSH_SECONDS = 1.0


class OneWriter(grpc.ServerInterceptor):  # type: ignore[misc]
    """Makes calls that change something wait for each other."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None or details.method.rsplit("/", 1)[1].startswith(READS):
            return handler

        def alone(request: Any, context: Any) -> Any:
            with self.lock:
                return handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            alone,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def flush(database: Any, lock: threading.Lock, ending: threading.Event) -> None:
    """Flush collections with many rows in memory, until cancelled."""
    while not ending.wait(FLUSH_SECONDS):
        with lock:
            for name in database.list_collections():
                with suppress(Exception):  # dropped meanwhile; the next round looks again
                    collection = database.get_collection(name)
                    if collection.count() and rows_in_memory(collection) >= FLUSH_ROWS:
                        collection.flush()


def rows_in_memory(collection: Any) -> int:
    """Count rows that are in no segment yet."""
    return int(collection._memtable.size())  # there is no public way to ask


def make_exact(collection: Any) -> None:
    """Replace a graph index, which collections had until November 2026, by the one that
    retrieval/vectors/milvus.py creates now; also after being killed between the two. The collection is not
    loaded.
    """
    index = collection.get_index_info("vector")
    if index and index["index_type"] == "FLAT":
        return
    if index:
        collection.drop_index("vector")
    collection.create_index("vector", {"index_type": "FLAT", "metric_type": "IP"})


def serve(folder: Path, socket: Path) -> None:
    """Serve until SIGTERM. All collections are searchable from the start, as in Milvus after a restart."""
    folder.mkdir(parents=True, exist_ok=True)
    database = MilvusLite(str(folder))
    for name in database.list_collections():
        make_exact(collection := database.get_collection(name))
        collection.load()
    writer, ending = OneWriter(), threading.Event()
    options = [(f"grpc.max_{way}_message_length", MOST_BYTES) for way in ("receive", "send")]
    options += PINGS
    server = grpc.server(futures.ThreadPoolExecutor(THREADS), interceptors=[writer], options=options)
    add_MilvusServiceServicer_to_server(MilvusServicer(database), server)
    socket.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    flushing = threading.Thread(target=flush, args=(database, writer.lock, ending), daemon=True)
    flushing.start()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    signal.signal(signal.SIGINT, lambda *_: ending.set())
    ending.wait()
    server.stop(grace=5).wait()
    flushing.join()
    database.close()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
