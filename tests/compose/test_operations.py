"""What an operator does to the stack, and what happens to it by itself, while it is used."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc
from docker.models.containers import Container

from build.catalog import ROOT
from tests.ports import first_port
from tests.stack.clients import RECORDINGS, pcm, wave
from tests.stack.conftest import Stack, until

from .conftest import FILES, PROJECT, Engine, compose, conch, ports_from, wait_ready

ORDER = (RECORDINGS / "order.wav").read_bytes()


def check_words(stack: Stack) -> None:
    """The shortest recording is transcribed."""
    words = json.loads((RECORDINGS / "recordings.json").read_text("utf-8"))[0]["text"]
    answer = stack.transcribe(ORDER, model="mini-whisper", language="en", timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"] == words


def test_containers_are_what_the_files_say(stack: Stack, engine: Engine) -> None:
    """Seen from inside: no root, no capability, nothing to write but the memory file systems, no way out."""
    for service in ("triton-0", "triton-1", "gateway", "nginx"):
        container = engine.container(service)
        status = container.exec_run(["cat", "/proc/1/status"]).output.decode()
        assert "CapEff:\t0000000000000000" in status, service
        assert "NoNewPrivs:\t1" in status, service
        assert container.exec_run(["sh", "-c", "id -u"]).output.decode().strip() not in ("", "0"), service
        assert container.attrs["HostConfig"]["ReadonlyRootfs"] is True, service
        assert container.exec_run(["touch", "/opt/written"]).exit_code != 0, service
        assert container.exec_run(["touch", "/engines/written"]).exit_code != 0, service
    outside = "import socket; socket.create_connection(('1.1.1.1', 53), 3)"
    for service in ("triton-0", "gateway"):
        networks = engine.container(service).attrs["NetworkSettings"]["Networks"]
        assert [
            engine.client.networks.get(row["NetworkID"]).attrs["Internal"] for row in networks.values()
        ] == [True]
        assert engine.container(service).exec_run(["python3", "-c", outside]).exit_code != 0, service


def test_images_stay_small(stack: Stack, engine: Engine, record_property: pytest.RecordProperty) -> None:
    """The serving image has no torch in it and at most 1.3 GB, the gateway's at most 400 MB; both say what
    they are.
    """
    for service, most in (("triton-0", 1300), ("gateway", 400)):
        image = engine.container(service).image
        size = image.attrs["Size"] / 1e6
        record_property(f"{service}_image_mb", round(size))
        print(f"{service}: {size:.0f} MB")
        assert size <= most, service
        assert image.labels["org.opencontainers.image.title"].startswith("conch")
    assert engine.container("triton-0").exec_run(["python3", "-c", "import torch"]).exit_code != 0


def test_a_second_up_does_nothing(stack: Stack, engine: Engine) -> None:
    """No build step, no new container but the builder's run, ready in seconds."""
    before = {
        service: engine.container(service).id for service in ("triton-0", "triton-1", "gateway", "nginx")
    }
    started = time.monotonic()
    compose("up", "--wait", "--no-build")
    assert time.monotonic() - started < 20
    assert before == {service: engine.container(service).id for service in before}
    log = engine.container("builder").logs().decode()
    assert log.count("unchanged") > log.count("built "), log
    compose("down")
    started = time.monotonic()
    compose("up", "--wait", "--no-build")
    print(f"up from existing volumes: {time.monotonic() - started:.1f} s")
    assert time.monotonic() - started < 30


def test_a_recreated_container_is_found(stack: Stack, engine: Engine) -> None:
    """A new container under the same name gets its share again, whatever its address is."""
    compose("up", "--wait", "--no-build", "--no-deps", "--force-recreate", "triton-0")
    check_words(stack)
    ready = f"{stack.kserve}/instances/0/v2/health/ready"
    until("it is ready", lambda: httpx.get(ready, timeout=10).status_code == 200, 30)


def gateways(engine: Engine) -> list[Any]:
    """The containers of the gateway."""
    labels = [f"com.docker.compose.project={PROJECT}", "com.docker.compose.service=gateway"]
    return list(engine.client.containers.list(filters={"label": labels}))


def test_two_gateways(stack: Stack, engine: Engine) -> None:
    """There are two by default, and both answer."""
    found = gateways(engine)
    assert len(found) == 2

    def asked() -> bool:
        assert httpx.get(f"{stack.url}/v1/models", timeout=10).status_code == 200
        return all('"path": "/v1/models"' in gateway.logs().decode() for gateway in found)

    until("each has had a request", asked, 30)


def in_flight(stack: Stack) -> int:
    """Requests that the instances are working on."""
    state = httpx.get(f"{stack.url}/console/api/state", timeout=30).json()
    return sum(row["in_flight"] or 0 for row in state["instances"])


def test_down_drains(stack: Stack) -> None:
    """A request that is in flight when `down` comes gets its answer, and the stack is gone within its grace
    periods.
    """
    answers: list[httpx.Response] = []
    body = pcm(np.tile(wave("largo.flac"), 12))  # 18 minutes

    def long_request() -> None:
        answers.append(stack.transcribe(body, model="mini-whisper"))

    thread = threading.Thread(target=long_request)
    thread.start()
    until("it is in flight", lambda: in_flight(stack), 60)
    started = time.monotonic()
    compose("down")
    thread.join(10)
    assert time.monotonic() - started < 80
    try:
        assert [answer.status_code for answer in answers] == [200]
    finally:
        compose("up", "--wait", "--no-build")


def test_a_killed_builder_is_followed_by_a_whole_one(stack: Stack, engine: Engine) -> None:
    """`docker kill` half-way through a build: nothing half is served, and `up` finishes the work."""
    compose("down", "-v")
    up = subprocess.Popen(
        ["docker", "compose", "up", "--wait", "--no-build"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def building() -> Container | None:
        builder = engine.container("builder")
        return builder if b": step 1 of " in builder.logs() and builder.status == "running" else None

    builder = until("it builds", building, 60, AssertionError)
    assert builder
    builder.kill()
    assert builder.wait()["StatusCode"] == 137, "it was done before it was killed"
    assert up.wait(60) != 0
    compose("up", "--wait", "--no-build")
    check_words(stack)


def test_without_any_network(stack: Stack) -> None:
    """What is in the volumes is served while the builder has no network at all."""
    compose("down")
    files = [part for path in (*FILES, ROOT / "docker" / "compose.airgap.yaml") for part in ("-f", str(path))]
    try:
        compose(*files, "up", "--wait", "--no-build")
        check_words(stack)
    finally:
        compose("down")
        compose("up", "--wait", "--no-build")


@pytest.fixture
def guarded(stack: Stack, tmp_path: Path) -> Iterator[str]:
    """The stack with two keys and a rate limit; one of the keys."""
    keys = tmp_path / "keys"
    keys.write_text("# staff\nfirst-key\n\nsecond-key\n", "utf-8")
    keys.chmod(0o644)
    compose("up", "--wait", "--no-build", API_KEYS_FILE=str(keys), RATE_LIMIT="60r/m", RATE_BURST="10")
    yield "second-key"
    compose("up", "--wait", "--no-build")


def test_keys_and_limits(stack: Stack, guarded: str) -> None:
    """The secret is every listener's. What they do with keys and rates: tests/stack/test_keys.py."""
    url, good = f"{stack.url}/v1/models", {"authorization": f"Bearer {guarded}"}
    for address in (url, f"{stack.kserve}/v2"):
        assert [httpx.get(address, headers=key).status_code for key in ({}, good)] == [401, 200]
    client = grpc.InferenceServerClient(stack.grpc)
    assert client.is_server_live(headers=good)
    with pytest.raises(grpc.InferenceServerException, match="UNAUTHENTICATED"):
        client.get_server_metadata()
    assert {httpx.get(url, headers=good).status_code for _ in range(30)} == {200, 429}
    other = {"authorization": "Bearer first-key"}
    assert httpx.get(url, headers=other).status_code == 200, "another key has a budget of its own"
    assert all(httpx.get(f"{stack.url}/health/ready").status_code == 200 for _ in range(15))


def test_airgap_archive(stack: Stack, engine: Engine, tmp_path: Path) -> None:
    """`save` writes one archive; `load` brings it up under another name with the same words; a damaged
    archive is refused.
    """
    archive = tmp_path / "conch.tar"
    conch("airgap", "save", str(archive))
    with tarfile.open(archive) as tar, tarfile.open(fileobj=tar.extractfile("images.tar")) as images:
        assert {"SHA256SUMS", "images.tar", "volumes.tar", "deployment.env"} == {
            name for name in tar.getnames() if not name.startswith("conch/")
        }
        tags = {tag for image in json.load(images.extractfile("manifest.json")) for tag in image["RepoTags"]}
    wanted = {
        service["image"]
        for service in json.loads(compose("config", "--format", "json").stdout)["services"].values()
    }
    assert tags == wanted, "the other machine has no other source of images"
    port = first_port("compose-airgap")
    other = {
        "COMPOSE_PROJECT_NAME": f"{PROJECT}-gap",
        **ports_from(port),
    }
    try:
        subprocess.run(["tar", "-C", str(tmp_path), "-xf", str(archive), "conch"], check=True)
        # Nothing of this checkout: what the archive brings suffices.
        subprocess.run(
            ["make", "-C", str(tmp_path / "conch"), "airgap-load", "ARCHIVE=../conch.tar"],
            env={**os.environ, **other, "COMPOSE_FILE": "compose.yaml"},
            check=True,
        )
        check_words(Stack.at(port))
    finally:
        compose("down", "-v", **other)
    with archive.open("r+b") as file:
        file.seek(archive.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(AssertionError, match="damaged"):
        conch("airgap", "load", str(archive), **other)


def test_ready_after_everything(stack: Stack) -> None:
    """After all of the above the stack is as it was."""
    wait_ready(stack, 60)
