"""The panel for operators: what it shows, and what an admin key may do."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import Any

import httpx
import pytest
from playwright.sync_api import expect

from tests.stack.conftest import RECORDINGS, Stack
from tests.stack.processes import tritonserver

from .conftest import ADMIN, KEY, Opener, headers, screenshot

BACK = 60_000  # milliseconds until a server that was replaced answers again, on a busy machine


def state(stack: Stack) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{stack.url}/console/api/state", headers=headers(), timeout=30).json()
    return found


def test_models_and_instances(opened: Opener, stack: Stack) -> None:
    """What deployment.json and the guards say, and nothing else."""
    page = opened("status")
    expect(page.get_by_text("7 of 7 instances are serving.")).to_be_visible()
    for row in state(stack)["instances"]:
        card = page.locator(f"#instance-{row['index']}")
        expect(card).to_contain_text(row["model"])
        expect(card.locator(".badge")).to_have_text("serving")
        expect(card).to_contain_text(", ".join(map(str, row["cpus"])))
    models = page.get_by_role("region", name="Models")
    for text in ("mini-whisper", "openvino", "word_timestamps", "mini-gpt2", "chat"):
        expect(models).to_contain_text(text)
    expect(page.get_by_role("region", name="Guard events")).to_contain_text("serving")


def test_charts_show_what_was_asked(opened: Opener, stack: Stack) -> None:
    """Five transcriptions and a request that fails, in the API and on the page."""
    sound = (RECORDINGS / "order.wav").read_bytes()

    def ask(model: str) -> int:
        return stack.transcribe(sound, headers=headers(), model=model).status_code

    began = time.time()
    assert [ask("mini-whisper") for _ in range(5)] == [200] * 5
    assert ask("nobody") == 404
    time.sleep(6)
    found = httpx.get(f"{stack.url}/console/api/history", headers=headers(), timeout=30).json()
    points = [point["speech"] for point in found["points"] if point["time"] > began]
    assert round(sum(point["rate"] for point in points) * found["seconds"]) == pytest.approx(6, abs=1)
    assert sum(point["failures"] for point in points) > 0
    assert all(0 < point["mean"] < 30 for point in points if point["mean"] is not None)
    assert any(point["p95"] is not None for point in points)
    page = opened("status")
    expect(page.locator(".line.speech").first).to_have_attribute("d", re.compile(r"^M.*L"))
    screenshot(page, "status")


def test_a_killed_server_turns_red_and_green_again(opened: Opener, stack: Stack) -> None:
    """Without a reload; the log says why, and the restart is counted as unplanned."""
    page = opened("status")
    badge = page.locator("#instance-2 .badge")
    expect(badge).to_have_text("serving")
    page.evaluate("() => { window.same = true; }")
    before = state(stack)["instances"][2]
    os.kill(tritonserver(stack, 2), signal.SIGKILL)
    expect(badge).to_have_text("starting", timeout=10_000)
    expect(page.get_by_text("6 of 7 instances are serving.")).to_be_visible()
    red = badge.evaluate("(element) => getComputedStyle(element).color")
    screenshot(page, "killed")
    expect(badge).to_have_text("serving", timeout=BACK)
    assert badge.evaluate("(element) => getComputedStyle(element).color") != red
    assert page.evaluate("() => window.same")
    expect(page.locator("tr.bad").first).to_contain_text("tritonserver ended with status -9")
    after = state(stack)["instances"][2]
    assert (after["restarts"], after["deaths"]) == (before["restarts"] + 1, before["deaths"] + 1)


def test_only_an_admin_restarts(opened: Opener, stack: Stack) -> None:
    """Another key sees no button (by the API: tests/unit/gateway/test_console.py); an admin's drains and
    restarts one instance.
    """
    page = opened("status")
    expect(page.get_by_text("Enter an admin key")).to_be_visible()
    expect(page.get_by_role("button", name="Drain and restart")).to_have_count(0)
    before = state(stack)["instances"]
    page = opened("status", key=ADMIN)
    card = page.locator("#instance-0")
    card.get_by_role("button", name="Drain and restart").click()
    expect(page.get_by_text("Its requests are finished first")).to_be_visible()
    screenshot(page, "restart")
    page.get_by_role("dialog").get_by_role("button", name="Drain and restart").click()
    expect(card.locator(".badge")).not_to_have_text("serving", timeout=10_000)
    expect(card.locator(".badge")).to_have_text("serving", timeout=BACK)
    after = state(stack)["instances"]
    assert after[0]["restarts"] == before[0]["restarts"] + 1
    assert [row["deaths"] for row in after] == [row["deaths"] for row in before]
    events = [row["event"] for row in after[0]["events"]]
    assert events[-4:] == ["restart asked for", "draining", "started", "serving"]


def test_a_wrong_key_is_a_sentence(opened: Opener) -> None:
    """And the right one opens; it is gone with the tab."""
    page = opened("status", key=None)
    expect(page.get_by_text("This deployment requires an API key.")).to_be_visible()
    expect(page.locator(".message-bar")).to_be_hidden()
    page.get_by_label("Key", exact=True).fill("not-this-one")
    page.get_by_role("button", name="Use key").click()
    expect(page.get_by_role("alert")).to_contain_text("This API key is not valid")
    screenshot(page, "wrong-key")
    page.get_by_label("Key", exact=True).fill(KEY)
    page.get_by_role("button", name="Use key").click()
    expect(page.get_by_text("instances are serving.")).to_be_visible()
    assert page.evaluate("() => Object.values(localStorage).join()").find(KEY) < 0
