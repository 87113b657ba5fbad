"""docker/compose.retrieval.yaml in containers: written and searched through the gateway by OpenAI's SDK, each
database killed and started again. Another project from the same images, a gateway with the databases'
clients, and stand-ins of their images (base_images).
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from openai import InternalServerError, OpenAI

from build.catalog import ROOT, load_catalog
from build.sources import fetch

from .conftest import HERE, Engine, checked, compose, project, started

MODEL = "all-minilm-l6-v2"
DATABASES = {"mongo": "document database (MongoDB)", "milvus": "vector database (Milvus)"}
VARIABLES = project(
    "retrieval",
    ROOT / "docker" / "compose.retrieval.yaml",
    HERE / "retrieval.yaml",
    COMPOSE_PROFILES="",
    MODEL_ID=MODEL,
    INSTANCES="1",
    HF_ENDPOINT="http://127.0.0.1:9",  # the weights are there
    MILVUS_MEMORY="4g",
    TEST_WEIGHTS=str(ROOT / "weights" / MODEL),
)
TEXTS = {
    "whales.txt": "The blue whale eats krill.",
    "bread.txt": "Bread is made of flour, water and yeast.",
    "tea.txt": "Green tea is steeped at eighty degrees.",
    "bridges.txt": "A suspension bridge hangs from steel cables.",
}
PATIENCE = 120.0  # seconds until a database that was started again answers

pytestmark = pytest.mark.timeout(900)  # the first test waits for images


@pytest.fixture(scope="module")
def passwords(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file for each database, as docs/retrieval.md makes them."""
    folder = tmp_path_factory.mktemp("passwords")
    for name in DATABASES:
        (folder / name).write_text(secrets.token_hex(24) + "\n", "utf-8")
        (folder / name).chmod(0o644)
    return {name: folder / name for name in DATABASES}


@pytest.fixture(scope="module")
def client(docker_services: object, passwords: dict[str, Path]) -> Iterator[OpenAI]:
    """Of the stack, which is gone with its volumes afterwards."""
    (weights,) = load_catalog()[MODEL].mirrors
    files = {f"{name.upper()}_PASSWORD_FILE": str(path) for name, path in passwords.items()}
    stand_ins = [str(HERE / "base_images"), str(ROOT / ".conch" / "rootfs"), "databases"]
    with ThreadPoolExecutor() as pool:
        making = [
            pool.submit(checked, *stand_ins, seconds=900, PYTHON=sys.executable),
            pool.submit(compose, "build", "-q", "gateway", **VARIABLES, **files),
            pool.submit(fetch, weights, (), ROOT / "weights"),
        ]
        for one in making:
            one.result()
    with started({**VARIABLES, **files}) as stack:
        yield stack.openai(timeout=60)


@pytest.fixture(scope="module")
def store(client: OpenAI) -> str:
    """With a file of each text."""
    made = client.vector_stores.create(name="texts").id
    batch = client.vector_stores.file_batches.upload_and_poll(
        made, files=[(name, text.encode()) for name, text in TEXTS.items()]
    )
    assert (batch.file_counts.completed, batch.file_counts.total) == (len(TEXTS), len(TEXTS))
    return made


def best(client: OpenAI, store: str, query: str) -> str:
    return client.vector_stores.search(store, query=query, max_num_results=1).data[0].filename


def test_what_is_written_is_found(client: OpenAI, store: str) -> None:
    assert best(client, store, "what do marine mammals feed on?") == "whales.txt"
    assert best(client, store, "baking a loaf") == "bread.txt"


def test_databases_are_closed(client: OpenAI, store: str, engine: Engine, passwords: dict[str, Path]) -> None:
    """No port of theirs is published, nothing is written but their volumes, and nobody is let in without the
    password, which is in no variable of any container.
    """
    project = VARIABLES["COMPOSE_PROJECT_NAME"]
    for service in (*DATABASES, "gateway", "triton-0", "nginx"):
        container = engine.container(service, project)
        assert bool(container.attrs["HostConfig"]["PortBindings"]) == (service == "nginx"), service
        environment = str(container.attrs["Config"]["Env"])
        assert not any(path.read_text("utf-8").strip() in environment for path in passwords.values()), service
    for service in DATABASES:
        container = engine.container(service, project)
        status = container.exec_run(["cat", "/proc/1/status"]).output.decode()
        assert "CapEff:\t0000000000000000" in status, service
        assert "NoNewPrivs:\t1" in status, service
        assert container.exec_run(["touch", "/opt/written"]).exit_code != 0, service
    gateway = engine.container("gateway", project)
    for code, message in (
        ("import pymongo; pymongo.MongoClient('mongodb://mongo').conch.records.find_one()", "auth"),
        ("import pymilvus; pymilvus.MilvusClient('http://milvus:19530').list_collections()", "auth"),
        (
            "import pymilvus; pymilvus.MilvusClient('http://milvus:19530', token='root:Milvus')",
            "auth",
        ),
    ):
        done = gateway.exec_run(["python3", "-c", code])
        assert done.exit_code != 0, code
        assert message in done.output.decode().lower(), done.output.decode()[-500:]


@pytest.mark.parametrize("service", DATABASES)
def test_a_killed_database_is_named_and_comes_back(
    client: OpenAI, store: str, engine: Engine, service: str
) -> None:
    """A 503 that names it while it is away; afterwards everything is there, and writing goes on."""
    container = engine.container(service, VARIABLES["COMPOSE_PROJECT_NAME"])
    container.kill()
    with pytest.raises(InternalServerError) as failed:
        best(client, store, "marine mammals")
    assert failed.value.status_code == 503
    assert DATABASES[service] in str(failed.value)
    container.start()
    started = time.monotonic()
    while True:
        try:
            assert best(client, store, "marine mammals") == "whales.txt"
            break
        except InternalServerError as error:
            assert error.status_code == 503
            assert DATABASES[service] in str(error)
            assert time.monotonic() - started < PATIENCE, str(error)
            time.sleep(0.5)
    print(f"{service} answered {time.monotonic() - started:.1f} s after it was started again")
    added = client.vector_stores.files.upload_and_poll(
        vector_store_id=store, file=(f"{service}.txt", f"{service} was killed and came back.".encode())
    )
    assert added.status == "completed"
    assert best(client, store, f"{service} was killed") == f"{service}.txt"
    assert client.vector_stores.retrieve(store).file_counts.completed == len(TEXTS) + 1 + [*DATABASES].index(
        service
    )
