"""With a certificate every public port speaks TLS, and what comes in plain text is sent there."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc as grpc_core
import httpx
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ops.local import LocalDeployment, LocalError, tls
from tests.ports import first_port

from .conftest import RECORDINGS, Stack, certificate, portable, restarted, started

PORT = first_port("tls")
HTTPS = PORT + 363


@dataclass(frozen=True)
class Secure:
    """A stack with TLS, and a client's view of its certificate."""

    stack: Stack
    pem: Path
    trust: ssl.SSLContext


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    home = tmp_path_factory.mktemp("tls")
    pem, key = home / "cert.pem", home / "key.pem"
    certificate(pem, key)
    environment = {
        **portable(home, PORT, "mini-whisper", 2),
        "TLS_CERT_FILE": str(pem),
        "TLS_KEY_FILE": str(key),
        "TLS_HSTS": "600",
    }
    with started(environment) as stack:
        yield Secure(stack, pem, ssl.create_default_context(cafile=str(pem)))


def test_plain_requests_are_sent_to_tls(secure: Secure) -> None:
    """Method and body stay (308); health is asked in plain text by what watches the stack."""
    for path in ("/", "/v1/models", "/v2/health/live", "/console/api/state?x=1"):
        answer = httpx.get(f"{secure.stack.url}{path}")
        assert (answer.status_code, answer.headers["location"]) == (308, f"https://127.0.0.1:{HTTPS}{path}")
    assert httpx.get(f"{secure.stack.url}/health/live").status_code == 200


def test_everything_over_https(secure: Secure) -> None:
    """The page with its header for browsers, a transcription, KServe at its own port and an instance's."""
    with httpx.Client(verify=secure.trust, timeout=60) as client:
        page = client.get(f"https://127.0.0.1:{HTTPS}/")
        assert page.status_code == 200
        assert page.headers["strict-transport-security"] == "max-age=600"
        sound = {"file": ("order.wav", (RECORDINGS / "order.wav").read_bytes())}
        answer = client.post(
            f"{secure.stack.url}/v1/audio/transcriptions",
            files=sound,
            data={"model": "mini-whisper"},
            follow_redirects=True,
        )
        assert answer.json()["text"] == "Do not worry, Robert."
        for port in (PORT - 80, PORT + 20):
            assert client.get(f"https://127.0.0.1:{port}/v2/health/ready").status_code == 200
            assert httpx.get(f"http://127.0.0.1:{port}/v2/health/ready").status_code == 400


def test_grpc_over_tls(secure: Secure) -> None:
    """KServe's gRPC port and an instance's."""
    credentials = grpc_core.ssl_channel_credentials(secure.pem.read_bytes())
    for port in (PORT - 79, PORT + 40):
        with grpc_core.secure_channel(f"localhost:{port}", credentials) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            assert stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=10).ready


def test_old_protocols_are_refused(secure: Secure) -> None:
    """TLS 1.1 has been obsolete since RFC 8996."""
    old = ssl.create_default_context(cafile=str(secure.pem))
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"https://127.0.0.1:{HTTPS}/", verify=old)


def test_a_planned_restart_needs_no_certificate(secure: Secure) -> None:
    done = restarted(secure.stack)
    assert done.returncode == 0, done.stderr
    assert "triton-1 restarted" in done.stdout


def test_half_of_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate without a key, a file that is not there, an age that is no number."""
    layout = LocalDeployment.from_environment()
    (tmp_path / "cert.pem").write_text("x")
    monkeypatch.setenv("TLS_CERT_FILE", str(tmp_path / "cert.pem"))
    with pytest.raises(LocalError, match="set TLS_CERT_FILE and TLS_KEY_FILE, or neither"):
        tls(layout)
    monkeypatch.setenv("TLS_KEY_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(LocalError, match="none.pem"):
        tls(layout)
    monkeypatch.setenv("TLS_HSTS", "a year")
    with pytest.raises(LocalError, match="31536000"):
        tls(layout)
