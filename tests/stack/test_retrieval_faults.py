"""What may fail under files, vector stores and search: processes are killed, a database is down, and one of
two is restored. `make attack` kills more, and databases that are servers: tests/attack/test_retrieval.py.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from openai import InternalServerError

from tests.attack.retrieval import Client, embedded_vectors, gateways, text_of, under_kills
from tests.ports import first_port

from .conftest import ROOT, Stack, portable, run, started
from .processes import vectors

RESTORED_PORT = first_port("retrieval-restored")
MODEL = "all-minilm-l6-v2"
WRITES = SEARCHES = 40


def test_nothing_acknowledged_is_lost(retrieval_stack: Stack) -> None:
    """kill -9 of gateways and of the vector database."""
    victims = [embedded_vectors(retrieval_stack), *gateways(retrieval_stack)]
    under_kills(retrieval_stack, victims, WRITES, SEARCHES, least=len(victims))


def test_a_database_that_is_down_is_named(retrieval_stack: Stack) -> None:
    """While the vector database is stopped, searches are a 503 that names it; files go on; it comes back."""
    client = Client(retrieval_stack.url)
    openai = client.openai
    store = openai.vector_stores.create().id
    client.write(store, 1)
    pid = vectors(retrieval_stack)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(
            InternalServerError, match=r"vector database \(Milvus\) does not answer"
        ) as failed:
            openai.vector_stores.search(store, query="amber")
        assert failed.value.status_code == 503
        assert failed.value.response.headers["retry-after"]
        file = openai.files.create(file=("a.txt", text_of(2).encode()), purpose="assistants").id
        row = openai.vector_stores.files.create(vector_store_id=store, file_id=file, attributes={"n": 2})
        assert row.status == "in_progress"
    finally:
        os.kill(pid, signal.SIGCONT)
    assert len(client.search(store, 1, only=True)) == 1
    assert openai.vector_stores.files.poll(file, vector_store_id=store).status == "completed"
    assert len(client.search(store, 2, only=True)) == 1


def command(home: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """scripts/retrieval for the deployment of the next test."""
    environment = {**os.environ, "PORT": str(RESTORED_PORT), "CONCH_HOME": str(home)}
    return run(ROOT / "scripts" / "retrieval", *arguments, env=environment)


def test_a_backup_is_restored(tmp_path: Path) -> None:
    """Documents are copied while the stack runs; vectors are made again: what was there then is there, and
    what came later is not.
    """
    environment = portable(tmp_path / "home", RESTORED_PORT, MODEL, 1)
    documents = tmp_path / "home" / "retrieval" / "documents.sqlite"
    with started(environment) as stack:
        client = Client(stack.url)
        store = client.openai.vector_stores.create().id
        files = [client.write(store, number) for number in range(3)]
        assert command(tmp_path / "home", "backup", tmp_path / "saved").returncode == 0
        client.write(store, 3)
        client.openai.files.delete(files[0])
        assert command(tmp_path / "home", "check").returncode == 0
    for file in documents.parent.glob("documents.sqlite*"):
        file.unlink()
    shutil.copy(tmp_path / "saved", documents)
    shutil.rmtree(documents.parent / "vectors")
    with started(environment) as stack:
        found = command(tmp_path / "home", "check")
        assert (found.returncode, found.stdout[:36]) == (1, "3 embeddings have lost vectors, 0 ar")
        assert command(tmp_path / "home", "check", "--repair").returncode == 0
        for file in files:
            assert client.openai.vector_stores.files.poll(file, vector_store_id=store).status == "completed"
        for number in range(4):
            rows = client.search(store, number, only=True)
            assert [row.content[0].text for row in rows] == ([text_of(number)] if number < 3 else [])
        assert client.openai.files.content(files[0]).read() == text_of(0).encode()
