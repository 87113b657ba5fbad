"""The page itself: fast, small, accessible, closed to other origins, in two languages, and over TLS."""

from __future__ import annotations

import re

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.stack.conftest import RECORDINGS, Stack

from .conftest import KEY, Opener, Shots, screenshot
from .test_pictures import asked
from .test_search import searched

SIZES = {"desktop": {"width": 1280, "height": 860}, "phone": {"width": 390, "height": 844}}
PANELS = ("speech", "text", "pictures", "search", "status")
FIRST_PAINT = 1000.0  # milliseconds
MOST_BYTES = 300_000
SERIOUS = {"serious", "critical"}


def filled(page: Page, panel: str, shots: Shots, store: str) -> None:
    """A panel with something in it."""
    if panel == "speech":
        page.set_input_files("#file", RECORDINGS / "order.wav")
        expect(page.locator(".word").first).to_be_visible(timeout=30_000)
        page.locator(".page:visible .panel > details summary").click()
    elif panel == "text":
        page.get_by_label("Prompt", exact=True).fill("Harley")
        page.locator("#text button.primary").click()
        expect(page.locator("#text .facts")).not_to_be_empty(timeout=30_000)
    elif panel == "pictures":
        page.set_input_files("#pictures-file", [shots.folder / "0.png", shots.folder / "1.png"])
        asked(page, "what is in the picture?")
        page.set_input_files("#pictures-file", shots.folder / "2.png")
        expect(page.locator(".shots li img")).to_be_visible()
    elif panel == "search":
        searched(page, store, shots.captions[0])
        expect(page.locator(".result img").first).to_have_js_property("complete", True)
    else:
        expect(page.locator(".badge").nth(5)).to_be_visible()
        page.wait_for_timeout(300)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("panel", PANELS)
def test_everybody_can_use_it(
    opened: Opener, shots: Shots, museum: str, panel: str, theme: str, size: str
) -> None:
    """axe-core finds nothing serious; nothing is wider than the screen."""
    page = opened(panel, viewport=SIZES[size], color_scheme=theme)
    filled(page, panel, shots, museum)
    found = [row for row in Axe().run(page).response["violations"] if row["impact"] in SERIOUS]
    screenshot(page, f"{panel}-{theme}-{size}")
    assert not found, [(row["id"], [node["html"] for node in row["nodes"]]) for row in found]
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_it_is_fast_and_small(opened: Opener) -> None:
    """First paint, and what came over the wire, of a browser that has nothing yet."""
    page = opened("speech")
    expect(page.locator(".drop")).to_be_visible()
    paint = page.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
    sizes = page.evaluate(
        """() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
        .map((entry) => [entry.name, entry.transferSize])"""
    )
    total = sum(size for _, size in sizes)
    print(f"\nfirst contentful paint {paint:.0f} ms, {total} bytes in {len(sizes)} requests")
    assert paint < FIRST_PAINT
    assert 10_000 < total < MOST_BYTES
    assert all(re.match(r"http://127\.0\.0\.1:\d+/", name) for name, _ in sizes)


def test_the_policy_is_strict(stack: Stack) -> None:
    """Nothing inline, nothing from elsewhere; no key is needed for the files, and they are compressed."""
    page = httpx.get(stack.url, headers={"accept-encoding": "gzip"})
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert not re.search(r"<style|style=|<script(?![^>]*src=)|\son\w+=", page.text)
    script = httpx.get(f"{stack.url}/console/main.js", headers={"accept-encoding": "gzip"})
    assert script.headers["content-encoding"] == "gzip"
    again = httpx.get(f"{stack.url}/console/main.js", headers={"if-none-match": script.headers["etag"]})
    assert again.status_code == 304
    assert httpx.get(f"{stack.url}/console/nothing.js").status_code == 404
    assert httpx.get(f"{stack.url}/console/..%2froutes.py").status_code in (400, 401, 404)


def test_the_api_of_the_console_needs_the_key(stack: Stack) -> None:
    """In the header and nowhere else: no cookie, no parameter, no page of another site."""
    url = f"{stack.url}/console/api/state"
    assert httpx.get(url).status_code == 401
    assert httpx.get(f"{url}?api_key={KEY}").status_code == 401
    assert httpx.get(url, cookies={"conch-key": KEY}).status_code == 401
    right = {"authorization": f"Bearer {KEY}"}
    assert httpx.get(url, headers=right).status_code == 200
    assert httpx.get(url, headers={**right, "origin": "http://evil.example"}).status_code == 403


def test_a_keyboard_is_enough(opened: Opener) -> None:
    """From the address bar to another panel, and a file's field that can be seen to have the focus."""
    page = opened("speech")
    expect(page.locator(".drop")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    for _ in range(3):
        page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Text")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Text")).to_be_visible()
    page.get_by_role("textbox", name="Prompt").focus()
    page.keyboard.type("Harley")
    page.keyboard.press("Enter")
    expect(page.locator("#text .facts")).not_to_be_empty(timeout=30_000)


def test_in_spanish(opened: Opener) -> None:
    """As the browser asks, and as somebody chooses; no text is left in English."""
    page = opened("speech", locale="es-ES")
    expect(page.get_by_role("button", name="Subtítulos en vivo")).to_be_visible()
    assert page.evaluate("() => document.documentElement.lang") == "es"
    page.get_by_label("Idioma de esta página").select_option("en")
    expect(page.get_by_role("button", name="Live captions")).to_be_visible()
    for panel in PANELS:
        page = opened(panel, locale="es-ES")
        expect(page.locator("main .lead:visible")).not_to_be_empty()
        screenshot(page, f"{panel}-spanish")


def test_over_tls(opened: Opener, tls_stack: str) -> None:
    """Panels without a model are not there; the microphone and the live session work."""
    page = opened("speech", key=None, url=tls_stack, permissions=["microphone"])
    expect(page.get_by_role("link", name="Status")).to_be_visible()
    for panel in ("Text", "Pictures", "Search"):
        expect(page.get_by_role("link", name=panel, exact=True)).to_have_count(0)
    page.get_by_role("button", name="Live captions").click()
    expect(page.locator(".captions p").first).to_contain_text(re.compile(r"\w{3}"), timeout=30_000)
    page.get_by_role("button", name="Stop captions").click()
    expect(page.get_by_text("The live session has ended.")).to_be_visible(timeout=30_000)
