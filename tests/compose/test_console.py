"""The console in containers: its page, the state of the deployment, a restart with an admin key, and TLS."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from build.catalog import ROOT
from tests.ports import first_port
from tests.stack.conftest import Stack, certificate

from .conftest import FILES, compose, wait_ready

ADMIN = {"authorization": "Bearer the-admin"}
TLS_PORT = first_port("compose") + 3


def state(stack: Stack) -> list[dict[str, object]]:
    answer = httpx.get(f"{stack.url}/console/api/state", timeout=30)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["instances"])


def test_the_page_and_a_restart(stack: Stack, tmp_path: Path) -> None:
    """An admin key restarts one of two instances, and requests go on meanwhile; other keys may not."""
    assert httpx.get(f"{stack.url}/console/main.js").headers["content-type"].startswith("text/javascript")
    url = f"{stack.url}/console/api/instances/0/restart"
    assert httpx.post(url).json()["error"]["code"] == "off"
    keys = tmp_path / "admins"
    keys.write_text("the-admin\n", "utf-8")
    keys.chmod(0o644)
    compose("up", "--wait", "--no-build", ADMIN_KEYS_FILE=str(keys))
    try:
        wait_ready(stack, 30)  # nginx asks for the new container's address every two seconds
        assert [one["state"] for one in state(stack)] == ["serving", "serving"]
        assert httpx.post(url, headers={"authorization": "Bearer other"}).status_code == 403
        before = state(stack)[0]["restarts"]
        assert httpx.post(url, headers=ADMIN, timeout=30).status_code == 202
        deadline = time.monotonic() + 90
        while (one := state(stack)[0])["restarts"] == before or one["state"] != "serving":
            assert time.monotonic() < deadline, one  # its guard tells how it is all the while
            assert httpx.get(f"{stack.url}/v1/models", timeout=30).status_code == 200
            time.sleep(0.5)
    finally:
        compose("up", "--wait", "--no-build")
        wait_ready(stack, 30)


def test_tls(stack: Stack, tmp_path: Path) -> None:
    """A certificate and its key as secrets: HTTPS answers, HTTP leads there."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate(cert, key)
    key.chmod(0o644)  # nginx is no root
    files = [part for path in (*FILES, ROOT / "docker" / "compose.tls.yaml") for part in ("-f", str(path))]
    own = {"TLS_CERT_FILE": str(cert), "TLS_KEY_FILE": str(key), "TLS_PORT": str(TLS_PORT), "TLS_HSTS": "60"}
    try:
        compose(*files, "up", "--wait", "--no-build", **own)
        secure = httpx.get(f"https://127.0.0.1:{TLS_PORT}/", verify=False)
        assert secure.status_code == 200
        assert secure.headers["strict-transport-security"] == "max-age=60"
        plain = httpx.get(f"{stack.url}/v1/models", follow_redirects=False)
        assert plain.status_code == 308
        assert plain.headers["location"] == f"https://127.0.0.1:{TLS_PORT}/v1/models"
        assert httpx.get(f"{stack.url}/health/live").status_code == 200
    finally:
        compose("up", "--wait", "--no-build")
        wait_ready(stack, 30)
