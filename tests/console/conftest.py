"""The console in a real Chromium, against stacks that are started here; run by `make test-console`.

Every page of a test is watched: an error in the browser's console, an exception, or a violation of the
Content-Security-Policy fails the test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.ports import first_port
from tests.stack.conftest import RECORDINGS, ROOT, Stack, certificate, portable, recordings, started

__all__ = ["recordings"]  # a fixture of the stack tests

PORT, TLS_PORT = first_port("console"), first_port("console-tls")
KEY, ADMIN = "a-user-key", "an-admin-key"
MOST_UPLOAD = 2_100_000
MODELS = "mini-whisper,mini-gpt2,mini-llava,mini-clip,all-minilm-l6-v2,speakers"
BUILDER = ROOT / ".venv/build/bin/python"
MICROPHONE = "minute.wav"  # what the fake microphone plays
# Chromium reports every answer of these as an error of the page, which tells people in a sentence.
QUIET = ("log:", "info:", "debug:", "verbose:")
ALLOWED = "Failed to load resource: the server responded with a status of 4"


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two instances that transcribe, one that writes, one that looks at pictures, two that embed, one that
    tells speakers apart; with an API key and an admin key.
    """
    build = [BUILDER, "-m", "build", "engines", "--target", "openvino", "--model-id", MODELS]
    subprocess.run(build, cwd=ROOT, check=True)
    home = tmp_path_factory.mktemp("console")
    (home / "keys").write_text(f"{KEY}\n", "utf-8")
    (home / "admins").write_text(f"{ADMIN}\n", "utf-8")
    environment = {
        **portable(home, PORT, MODELS, 7),
        "API_KEYS_FILE": str(home / "keys"),
        "ADMIN_KEYS_FILE": str(home / "admins"),
        "MAX_UPLOAD_BYTES": str(MOST_UPLOAD),
    }
    with started(environment, tidy=False) as found:
        yield found


@dataclass(frozen=True)
class Shots:
    """A folder with pictures 0.png, 1.png, …, and the caption of each."""

    folder: Path
    captions: list[str]


DRAW = """
import json, sys
from miniatures.training.pictures.museum import museum
found = museum(6)
for n, one in enumerate(found):
    one.picture.save(f"{sys.argv[1]}/{n}.png")
print(json.dumps([one.caption for one in found]))
"""


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Shots:
    """Pictures of the museum, drawn by the builder's Python, which has what draws them."""
    folder = tmp_path_factory.mktemp("shots")
    made = subprocess.run([BUILDER, "-c", DRAW, folder], cwd=ROOT, check=True, capture_output=True, text=True)
    return Shots(folder, json.loads(made.stdout))


@pytest.fixture(scope="session")
def museum(stack: Stack, shots: Shots) -> str:
    """The name of a vector store with the pictures and a text, all of them indexed."""

    def post(path: str, **fields: Any) -> dict[str, Any]:
        answer = httpx.post(f"{stack.url}/v1{path}", headers=headers(), timeout=60, **fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    store = post("/vector_stores", json={"name": "Museum"})["id"]
    files = [(f"{n}.png", (shots.folder / f"{n}.png").read_bytes(), n) for n in range(len(shots.captions))]
    for name, data, room in [*files, ("whales.txt", b"The blue whale eats krill.", 9)]:
        kept = post("/files", files={"file": (name, data)}, data={"purpose": "assistants"})["id"]
        body = {"file_id": kept, "attributes": {"room": room}}
        assert post(f"/vector_stores/{store}/files", json=body)["status"] == "completed"
    return "Museum"


@pytest.fixture(scope="session")
def tls_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One speech instance, over TLS and without keys; its address."""
    home = tmp_path_factory.mktemp("tls")
    files = {"TLS_CERT_FILE": str(home / "cert.pem"), "TLS_KEY_FILE": str(home / "key.pem")}
    certificate(Path(files["TLS_CERT_FILE"]), Path(files["TLS_KEY_FILE"]))
    with started({**portable(home, TLS_PORT, "mini-whisper", 1), **files}):
        yield f"https://localhost:{TLS_PORT + 363}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, with a microphone that plays a recording from its start."""
    binary = shutil.which("chromium")
    assert binary, "chromium is not installed; make test-console does it, or says how"
    flags = [
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={RECORDINGS / MICROPHONE}%noloop",
        "--autoplay-policy=no-user-gesture-required",
        *(["--no-sandbox"] if os.getuid() == 0 else []),
    ]
    with sync_playwright() as playwright:
        started_browser = playwright.chromium.launch(executable_path=binary, args=flags)
        yield started_browser
        started_browser.close()


Opener = Callable[..., Page]


@pytest.fixture
def opened(browser: Browser, stack: Stack) -> Iterator[Opener]:
    """Open the console at a panel, with a key (none: nothing is typed); options as Playwright's contexts take
    them.
    """
    contexts: list[BrowserContext] = []
    found: list[str] = []

    def open_page(panel: str = "", key: str | None = KEY, url: str = "", **options: Any) -> Page:
        context = browser.new_context(**{"locale": "en-GB", "ignore_https_errors": True, **options})
        contexts.append(context)
        if key is not None:
            context.add_init_script(f"sessionStorage.setItem('conch-key', {json.dumps(key)})")
        context.add_init_script(
            "addEventListener('securitypolicyviolation',"
            " (event) => console.error('policy: ' + event.violatedDirective + ' ' + event.blockedURI))"
        )
        page = context.new_page()
        page.on(
            "console",
            lambda message: found.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: found.append(str(error)))
        page.goto(f"{url or stack.url}/#{panel}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not [text for text in found if not text.startswith(QUIET) and ALLOWED not in text]


def screenshot(page: Page, name: str) -> None:
    """A picture for who looks at the console, where CONCH_SCREENSHOTS names a folder."""
    if folder := os.environ.get("CONCH_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def headers(key: str = KEY) -> dict[str, str]:
    """What a client sends."""
    return {"Authorization": f"Bearer {key}"}
