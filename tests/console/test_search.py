"""The panel for search does its work."""

from __future__ import annotations

import json
import re

import httpx
from playwright.sync_api import Page, expect

from tests.stack.conftest import ROOT, Stack

from .conftest import KEY, Opener, Shots, headers, screenshot
from .test_pictures import HANDED, WHAT, about, answered, data_of
from .test_try import SECONDS, example, ran

RESULTS = "#search .result"


def searched(page: Page, store: str, query: str) -> None:
    """By a text, in a store that is there."""
    page.get_by_label("Vector store", exact=True).select_option(label=store)
    page.get_by_label("Query", exact=True).fill(query)
    find(page)


def find(page: Page) -> None:
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_role("button", name="Search", exact=True)).to_be_enabled(timeout=SECONDS)
    expect(page.get_by_text(re.compile(r"\d+ results in \d+ ms"))).to_be_visible()


def stores(stack: Stack) -> list[str]:
    rows = httpx.get(f"{stack.url}/v1/vector_stores", headers=headers(), timeout=30).json()["data"]
    return [row["name"] for row in rows]


def test_a_store_from_its_name_to_its_end(opened: Opener, stack: Stack, shots: Shots) -> None:
    """Created, filled with texts and pictures that have attributes, searched, emptied, deleted."""
    page = opened("search")
    page.get_by_label("Name of a new store").fill("A trip")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#search .facts").first).to_contain_text("0 files", timeout=SECONDS)
    page.get_by_label("Attributes for the next files").fill("caption = The harbour at dawn\nyear = 2026")
    page.set_input_files("#store-file", shots.folder / "0.png")
    row = page.locator(".files li", has_text="0.png")
    expect(row.locator(".badge")).to_have_text("indexed", timeout=SECONDS)
    expect(row).to_contain_text("year = 2026")
    page.get_by_label("Attributes for the next files").fill("")
    texts = [("whales.txt", b"The blue whale eats krill."), ("bread.txt", b"Flour, water, yeast.")]
    files = [{"name": name, "mimeType": "text/plain", "buffer": data} for name, data in texts]
    page.set_input_files("#store-file", files=files)  # type: ignore[arg-type]
    expect(page.locator("#search .facts").first).to_contain_text("3 files: 3 indexed", timeout=SECONDS)
    searched(page, "A trip", "marine mammals")
    expect(page.locator(RESULTS).first).to_contain_text("The blue whale eats krill.")
    searched(page, "A trip", "ships in the morning")
    expect(page.locator(RESULTS).first).to_contain_text("The harbour at dawn")
    screenshot(page, "search-stores")
    page.get_by_role("button", name="Remove bread.txt from this store").click()
    expect(page.locator("#search .facts").first).to_contain_text("2 files", timeout=SECONDS)
    page.get_by_role("button", name="Delete store").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Its files stay")
    dialog.get_by_role("button", name="Delete store").click()
    expect(page.get_by_text("A trip was deleted.")).to_be_visible()
    assert "A trip" not in stores(stack)


def test_by_a_picture_and_by_a_question_about_it(
    opened: Opener, stack: Stack, shots: Shots, museum: str
) -> None:
    """A pasted picture finds itself; with a question, what the model says is what is searched for."""
    page = opened("search")
    page.get_by_label("Vector store", exact=True).select_option(label=museum)
    page.evaluate(HANDED, ["paste", data_of(shots.folder / "2.png"), "#search"])
    find(page)
    best = page.locator(RESULTS).first
    expect(best).to_contain_text("2.png")
    page.wait_for_function("() => document.querySelector('.result img')?.naturalWidth > 0")
    expect(best).to_contain_text("room = 2")
    page.get_by_label("Question about the picture (optional)").fill(WHAT)
    find(page)
    said = answered(stack, [about(shots, 2, WHAT)])
    expect(page.locator("#search .answer")).to_have_text(f"mini-llava: {said}")
    expect(page.locator(f"{RESULTS}.seen").first).to_contain_text("2.png")  # a text is in the other list
    screenshot(page, "search-question")
    curl = example(page, "curl")
    python = page.locator(".page:visible").get_by_label("Python", exact=True).inner_text()
    assert KEY not in curl + python
    (shots.folder / "shot.png").write_bytes((shots.folder / "2.png").read_bytes())
    found = json.loads(ran(["sh", "-c", curl], shots.folder))
    assert found["answer"] == {"model": "mini-llava", "text": said}
    shown = [re.sub(r"\s+", " ", text) for text in page.locator(f"{RESULTS} .head").all_inner_texts()]
    assert [f"{row['filename']} {row['score']:.3f}" for row in found["data"]] == shown
    made = ran([str(ROOT / ".venv/build/bin/python"), "-c", python], shots.folder)
    assert made.splitlines() == [f"{row['score']:.3f} {row['filename']}" for row in found["data"]]


def test_what_cannot_be_is_a_sentence(opened: Opener, museum: str) -> None:
    """Attributes without a value, nothing to search for, a file that cannot be read."""
    page = opened("search")
    bar = page.locator(".message-bar.bad")
    page.get_by_label("Vector store", exact=True).select_option(label=museum)
    page.get_by_role("button", name="Create").click()
    expect(bar).to_have_text("Enter a name for the new store.")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(bar).to_have_text("Enter a query first.")
    page.get_by_label("Attributes for the next files").fill("no value")
    broken = {"name": "broken.png", "mimeType": "image/png", "buffer": b"this is not a picture"}
    page.set_input_files("#store-file", files=[broken])  # type: ignore[list-item]
    expect(bar).to_contain_text("“no value” is not an attribute")
    page.get_by_label("Attributes for the next files").fill("")
    page.set_input_files("#store-file", files=[broken])  # type: ignore[list-item]
    row = page.locator(".files li", has_text="broken.png")
    expect(row.locator(".badge")).to_have_text("failed", timeout=SECONDS)
    expect(row.locator(".trouble")).to_contain_text("not a picture that can be read")
    row.get_by_role("button").click()
    expect(row).to_have_count(0, timeout=SECONDS)
