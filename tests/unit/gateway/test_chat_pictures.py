"""Pictures in /v1/chat/completions: what the model is asked for, and what never gets there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from conch.deployment import Chat, Pool
from conch.errors import ApiError
from tests.fakes.http_server import Handler, answering

from .application import FakeTriton, Gateway, application, chunks, linked, refuses

# As LLaVA 1.5's: content in parts, pictures before text.
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] | upper }}: "
    "{% for p in m['content'] | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{{ p['text'] }} {% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
RED, BLUE = "data:image/png;base64,cmVk", "data:image/jpeg;base64,Ymx1ZQ=="


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A model that looks at pictures, and one that reads text alone."""
    able, both = frozenset({"completion"}), frozenset({"completion", "pictures"})
    looks = Pool("looks", "llava", (0,), capabilities=both, positions=256, chat=Chat(TEMPLATE))
    reads = Pool("reads", "gpt2", (0,), capabilities=able, positions=64, chat=Chat(TEMPLATE))
    fake = FakeTriton()
    with application(tmp_path_factory.mktemp("gateway"), looks, reads, triton=fake) as client:
        yield client, fake


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def post(gateway: Gateway, *messages: tuple[str, Any], model: str = "looks", **fields: Any) -> Any:
    rows = [{"role": role, "content": content} for role, content in messages]
    return gateway[0].post("/v1/chat/completions", json={"model": model, "messages": rows, **fields})


def test_pictures_come_in_their_order(gateway: Gateway) -> None:
    """Of several messages; the template says where each stands, `detail` changes nothing."""
    answer = post(
        gateway,
        ("system", "be brief"),
        ("user", [linked(RED, detail="high"), text("which colour?")]),
        ("assistant", "red"),
        ("user", [text("and this?"), linked(BLUE, detail="low")]),
        temperature=0,
    )
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "one two"
    (asked,) = gateway[1].asked
    assert asked["image_urls"].tolist() == [[RED.encode(), BLUE.encode()]]
    assert asked["text_input"].item().decode() == (
        "SYSTEM: be brief USER: <image>\nwhich colour? ASSISTANT: red USER: <image>\nand this? ASSISTANT:"
    )


def test_streamed(gateway: Gateway) -> None:
    """The data URLs go as the strings that they are."""
    assert chunks(post(gateway, ("user", [linked(RED), text("which?")]), stream=True))
    assert gateway[1].asked[0]["image_urls"] == [RED]


def test_text_alone(gateway: Gateway) -> None:
    """A model that looks at pictures needs none."""
    assert post(gateway, ("user", "hello")).status_code == 200
    assert "image_urls" not in gateway[1].asked[0]


@pytest.mark.parametrize(
    ("content", "fields", "says"),
    [
        ([linked("https://example.org/a.png")], {}, "is a remote URL, which this server does not fetch"),
        ([linked("HTTP://169.254.169.254/")], {}, "is a remote URL, which this server does not fetch"),
        ([linked("file:///etc/passwd")], {}, "picture 1 is not a base64 data URL"),
        ([linked("data:image/png,abc")], {}, "picture 1 is not a base64 data URL"),
        ([linked("data:image/png;base64,\u00e9")], {}, "picture 1 is not a base64 data URL"),
        *[([linked(RED)], {"role": role}, "in user messages only") for role in ("assistant", "system")],
        ([linked(RED)] * 33, {}, "contain 33 pictures; send at most 32"),
        ([linked(RED)], {"model": "reads"}, "takes text only"),
        ([linked(RED, detail="huge")], {}, "detail"),
        ([linked(RED, size=3)], {}, "size"),
        ([{"type": "image_url", "image_url": RED}], {}, "image_url"),
        ([{"type": "image_url"}], {}, "image_url"),
        ([linked(RED), linked(BLUE)], {"n": 17}, "n times the number of pictures is 34"),
        ([{"type": "input_audio", "input_audio": {}}], {}, "type"),
        ([linked("data:image/png;base64," + "A" * (3 << 20))], {"n": 30}, "exceeds the limit of 2 MiB"),
    ],
)
def test_what_is_refused(gateway: Gateway, content: Any, fields: dict[str, Any], says: str) -> None:
    """A 400 that says which message, before anything is asked."""
    others = {name: value for name, value in fields.items() if name != "role"}
    answer = post(gateway, (fields.get("role", "user"), content), **others)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]
    assert not gateway[1].asked


def test_what_the_model_refuses_is_about_the_messages(gateway: Gateway) -> None:
    """Decoding happens there, and its words come back."""
    gateway[1].error = ApiError(400, "image_urls: picture 1 is not a picture that can be read; send PNG")
    refuses(post(gateway, ("user", [linked(RED), text("which?")])), "messages")


def test_models_say_what_they_take(gateway: Gateway) -> None:
    """OpenAI's list, with more."""
    rows = {row["id"]: row for row in gateway[0].get("/v1/models").json()["data"]}
    assert rows["looks"]["input_modalities"] == ["image", "text"]
    assert rows["reads"]["input_modalities"] == ["text"]
    assert gateway[0].get("/v1/models/looks").json() == rows["looks"]


class Gallery(Handler):
    """A host of pictures."""

    protocol_version = "HTTP/1.0"  # a body ends with its connection

    def do_GET(self) -> None:  # noqa: N802
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "/red")
            self.end_headers()
            return
        self.send_response(200 if self.path in ("/red", "/endless") else 404)
        self.end_headers()
        with suppress(OSError):  # the client leaves
            for _ in range(400 if self.path == "/endless" else 1):
                self.wfile.write(b"red" if self.path == "/red" else bytes(1 << 16))


@pytest.fixture
def gallery() -> Iterator[str]:
    with answering(Gallery) as server:
        yield server.url.removeprefix("http://")


def test_hosts_that_are_named(gateway: Gateway, gallery: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are asked, others not; what does not come is a 400."""
    settings = gateway[0].app_state["services"].settings
    monkeypatch.setattr(settings, "picture_hosts", f"example.org, {gallery}")
    assert post(gateway, ("user", [linked(f"http://{gallery}/red"), text("which?")])).status_code == 200
    assert gateway[1].asked[0]["image_urls"].item() == b"data:application/octet-stream;base64,cmVk"
    half = {"role": "user", "content": [linked(f"http://{gallery}/\ud800")]}
    body = json.dumps({"model": "looks", "messages": [half]})  # as an escape, which UTF-8 has no room for
    assert gateway[0].post("/v1/chat/completions", content=body).status_code == 400
    for url, says in (
        (f"http://{gallery}/elsewhere", "answered 302"),
        (f"http://{gallery}/gone", "answered 404"),
        (f"http://{gallery}/endless", "exceeds the 20971520 bytes"),
        (f"http://{gallery}/a\nb", "could not be fetched"),
        (f"http://{gallery}/{'a' * 70_000}", "could not be fetched"),
        (f"http://a:b@{gallery}/red", "is a remote URL"),
        ("http://127.0.0.1:1/red", "is a remote URL"),
        (f"http://{gallery}@127.0.0.1:1/red", "is a remote URL"),
    ):
        refuses(post(gateway, ("user", [linked(url), text("which?")])), "messages", says)
    assert len(gateway[1].asked) == 1
