"""Retrieval over databases that are servers, with everything killed in turn: both gateways, the vector
database, the document database, the tritonserver of the embedding model.

The document database is a server that speaks MongoDB's protocol and asks for a password
(tests/fakes/mongo_server.py), the vector database Milvus Lite, or Milvus standalone where
RETRIEVAL_VECTORS=milvus.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ports import first_port
from tests.stack.conftest import portable, started
from tests.stack.databases import MONGO_PASSWORD, Server, running

from .retrieval import Victim, embedded_vectors, encoder, gateways, under_kills

PORT = first_port("attack-retrieval")
MODEL = "all-minilm-l6-v2"
WRITES = int(os.environ.get("RETRIEVAL_WRITES", "200"))
SEARCHES = int(os.environ.get("RETRIEVAL_SEARCHES", "200"))
VECTORS = os.environ.get("RETRIEVAL_VECTORS", "lite")


def database(name: str, server: Server) -> Victim:
    def kill() -> None:
        server.kill()
        server.start()

    return Victim(name, kill, server.ready)


@pytest.mark.timeout(600 + 2 * (WRITES + SEARCHES))
def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    environment = portable(tmp_path / "home", PORT, MODEL, 1, build=True)
    with running("mongo", tmp_path) as documents:
        environment["DOCUMENTS_URL"] = documents.url
        (password := tmp_path / "mongo.password").write_text(MONGO_PASSWORD)
        environment["MONGO_PASSWORD_FILE"] = str(password)
        if VECTORS == "lite":
            attacked(environment, [database("document database", documents)])
            return
        with running(VECTORS, tmp_path) as vectors:
            environment["VECTORS_URL"] = vectors.url
            attacked(environment, [database("document database", documents), database("Milvus", vectors)])


def attacked(environment: dict[str, str], databases: list[Victim]) -> None:
    with started(environment, tidy=False) as stack:
        victims = [*databases, *gateways(stack), encoder(stack, 0)]
        if "VECTORS_URL" not in environment:
            victims.append(embedded_vectors(stack))
        under_kills(stack, victims, WRITES, SEARCHES, least=len(victims))
