"""The panel for pictures does its work."""

from __future__ import annotations

import base64
import re
import time
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Page, expect

from tests.stack.conftest import ROOT, Stack

from .conftest import KEY, Opener, Shots, headers, screenshot
from .test_try import SECONDS, STOPS, example, flying, ran

MODEL = "mini-llava"
WHAT = "what is in the picture?"
ANSWER = "#pictures-output .assistant .body"
HANDED = """([kind, data, where]) => {
    const all = new DataTransfer();
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    all.items.add(new File([bytes], "shot.png", { type: "image/png" }));
    const event = kind === "paste"
        ? new ClipboardEvent(kind, { clipboardData: all, bubbles: true, cancelable: true })
        : new DragEvent(kind, { dataTransfer: all, bubbles: true, cancelable: true });
    document.querySelector(where).dispatchEvent(event);
}"""


def data_of(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def asked(page: Page, question: str) -> str:
    """Ask, and wait for the whole answer."""
    page.get_by_label("Question", exact=True).fill(question)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#pictures .facts")).to_contain_text("tokens read", timeout=SECONDS)
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()
    return page.locator(ANSWER).last.inner_text().strip()


def answered(stack: Stack, messages: list[Any]) -> str:
    body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 64}
    url = f"{stack.url}/v1/chat/completions"
    answer = httpx.post(url, headers=headers(), json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"]).strip()


def about(shots: Shots, number: int, question: str) -> dict[str, Any]:
    url = f"data:image/png;base64,{data_of(shots.folder / f'{number}.png')}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    return {"role": "user", "content": content}


def test_pictures_are_asked_about_in_turns(opened: Opener, stack: Stack, shots: Shots) -> None:
    """Chosen, dropped and pasted ones; each answer is the API's to the same conversation."""
    page = opened("pictures")
    page.set_input_files("#pictures-file", shots.folder / "0.png")
    expect(page.locator(".shots li img")).to_have_js_property("complete", True)
    messages: list[Any] = [about(shots, 0, WHAT)]
    first = asked(page, WHAT)
    assert len(first.split()) >= 3
    assert first == answered(stack, messages)
    expect(page.locator(".shots li")).to_have_count(0)
    for number, (kind, where) in enumerate([("drop", "#pictures .drop"), ("paste", "#pictures")], 1):
        page.evaluate(HANDED, [kind, data_of(shots.folder / f"{number}.png"), where])
        expect(page.locator(".shots li img")).to_be_visible()
        said = page.locator(ANSWER).last.inner_text().strip()
        messages += [{"role": "assistant", "content": said}, about(shots, number, WHAT)]
        assert asked(page, WHAT) == answered(stack, messages)
    expect(page.locator("#pictures-output .user img")).to_have_count(3)
    screenshot(page, "pictures")
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#pictures-output .message")).to_have_count(0)


def test_an_answer_stops_on_the_button(opened: Opener, stack: Stack, shots: Shots) -> None:
    """Its beginning stays and is part of the conversation; nothing is in flight."""
    page = opened("pictures")
    page.set_input_files("#pictures-file", shots.folder / "3.png")
    page.get_by_label("Question", exact=True).fill(WHAT)
    page.evaluate(STOPS, ANSWER)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_text("Stopped.")).to_be_visible(timeout=SECONDS)
    begun = page.locator(ANSWER).inner_text().strip()
    whole = answered(stack, [about(shots, 3, WHAT)])
    assert begun
    assert whole.startswith(begun)
    print(f"\nstopped after {begun!r} of {whole!r}")
    time.sleep(1)
    assert page.locator(ANSWER).inner_text().strip() == begun
    assert flying(stack, MODEL) == 0
    with page.expect_request("**/v1/chat/completions") as waiting:
        asked(page, "is there a circle?")
    sent = waiting.value.post_data_json["messages"]
    assert [row["role"] for row in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == begun


def test_what_is_no_picture_is_a_sentence(opened: Opener, shots: Shots) -> None:
    """By its kind from the page, by its content from the API; the question stays to be asked again."""
    page = opened("pictures")
    bar = page.locator(".message-bar.bad")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(bar).to_have_text("Enter a question first.")
    page.get_by_label("Question", exact=True).fill(WHAT)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(bar).to_have_text("Choose a picture first.")
    text = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"words"}
    page.set_input_files("#pictures-file", files=[text])  # type: ignore[list-item]
    expect(bar).to_have_text("a.txt is not a picture; choose one.")
    broken = {"name": "broken.png", "mimeType": "image/png", "buffer": b"this is not a picture"}
    page.set_input_files("#pictures-file", files=[broken])  # type: ignore[list-item]
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(bar).to_contain_text(re.compile("picture"), timeout=SECONDS)
    expect(page.locator("#pictures-output .message")).to_have_count(0)
    page.get_by_role("button", name="Remove broken.png").click()
    page.set_input_files("#pictures-file", shots.folder / "0.png")
    assert asked(page, page.get_by_label("Question", exact=True).input_value())


def test_the_same_in_a_shell(opened: Opener, shots: Shots) -> None:
    """The curl and the Python read the picture's file and give the answer that the page shows."""
    page = opened("pictures")
    page.set_input_files("#pictures-file", shots.folder / "4.png")
    said = asked(page, 'what is in the picture? "$HOME" \\ `x`')
    curl = example(page, "curl")
    python = page.locator(".page:visible").get_by_label("Python", exact=True).inner_text()
    assert KEY not in curl + python
    assert "base64 < 4.png" in curl
    streamed = ran(["sh", "-c", curl], shots.folder)
    assert streamed.rstrip().endswith("data: [DONE]")
    pieces = re.findall(r'"content": ?"((?:[^"\\]|\\.)*)"', streamed)
    assert "".join(pieces).strip() == said
    assert ran([str(ROOT / ".venv/build/bin/python"), "-c", python], shots.folder).strip() == said
