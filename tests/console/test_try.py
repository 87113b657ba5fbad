"""The panels for speech and text do their work."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.stack.conftest import RECORDINGS, ROOT, Stack, run

from .conftest import KEY, MOST_UPLOAD, Opener, headers, screenshot

SECONDS = 30_000  # milliseconds that an answer may take on a busy machine
LIT = "() => [...document.querySelectorAll('.word.now')].map((word) => word.textContent)"


# A click at the first word, in the page: 480 words take less than a second, a click from here half of that.
STOPS = """(where) => new MutationObserver((_, seen) => {
    if (!document.querySelector(where)?.textContent.trim()) return;
    seen.disconnect();
    const shown = [...document.querySelectorAll('button')].filter((one) => one.offsetParent);
    shown.find((one) => one.textContent === 'Stop').click();
}).observe(document.body, {subtree: true, childList: true, characterData: true})"""


def words(text: str) -> list[str]:
    return re.findall(r"[\w'-]+", text.lower())


def common(said: str, text: str) -> float:
    """The fraction of the spoken words that the text has in the same order."""
    rest, found = words(text), 0
    for word in words(said):
        if word in rest:
            rest = rest[rest.index(word) + 1 :]
            found += 1
    return found / max(1, len(words(said)))


def transcribed(page: Page, name: str) -> None:
    page.set_input_files("#file", RECORDINGS / name)
    expect(page.locator(".word").first).to_be_visible(timeout=SECONDS)


def options(page: Page) -> None:
    """Open what is folded away."""
    page.locator(".page:visible .options summary").click()


def api(stack: Stack, form: str) -> str:
    sound, fields = (RECORDINGS / "demo.flac").read_bytes(), {"response_format": form}
    answer = stack.transcribe(sound, headers=headers(), model="mini-whisper", **fields)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_file_is_transcribed(opened: Opener, stack: Stack, recordings: dict[str, Any]) -> None:
    """Its words appear, and can be saved as the API writes them."""
    page = opened("speech")
    transcribed(page, "demo.flac")
    assert words(page.inner_text("#transcript")) == words(recordings["demo.flac"]["text"])
    for kind, form in (("srt", "srt"), ("vtt", "vtt"), ("txt", "text")):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=f"Download {kind}").click()
        assert waiting.value.suggested_filename == f"demo.{kind}"
        assert Path(waiting.value.path()).read_text("utf-8") == api(stack, form)
    screenshot(page, "speech")


def test_a_file_is_dropped(opened: Opener, recordings: dict[str, Any]) -> None:
    """On the field that says so."""
    page = opened("speech")
    expect(page.locator(".drop")).to_be_visible()
    sound = base64.b64encode((RECORDINGS / "order.wav").read_bytes()).decode()
    dropped = page.evaluate_handle(
        """(sound) => { const all = new DataTransfer();
        const bytes = Uint8Array.from(atob(sound), (letter) => letter.charCodeAt(0));
        all.items.add(new File([bytes], "order.wav", { type: "audio/wav" })); return all; }""",
        sound,
    )
    page.dispatch_event(".drop", "dragenter", {"dataTransfer": dropped})
    expect(page.locator(".drop")).to_have_class("drop over")
    page.dispatch_event(".drop", "drop", {"dataTransfer": dropped})
    expect(page.locator("#transcript")).to_have_text(recordings["order.wav"]["text"], timeout=SECONDS)
    expect(page.locator(".drop")).to_have_class("drop")


def test_words_light_up_while_the_sound_plays(opened: Opener, stack: Stack) -> None:
    """One after the other, the one that is spoken now; and the peaks are a picture of the sound."""
    page = opened("speech")
    transcribed(page, "demo.flac")
    page.evaluate("() => { const a = document.querySelector('audio'); a.muted = true; a.play(); }")
    seen: list[str] = []
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        for word in page.evaluate(LIT):
            if not seen or seen[-1] != word:
                seen.append(word)
    page.evaluate("() => document.querySelector('audio').pause()")
    said = page.inner_text("#transcript").split()
    assert len(seen) >= 6
    assert seen == said[: len(seen)] or common(" ".join(seen), " ".join(said)) == 1.0
    heights = page.evaluate(
        """() => { const c = document.querySelector('.peaks'), x = c.getContext('2d');
        const d = x.getImageData(0, 0, c.width, c.height).data, found = new Set();
        for (let i = 0; i < c.width; i++) { let n = 0;
        for (let j = 0; j < c.height; j++) if (d[(j * c.width + i) * 4 + 3]) n++; found.add(n); }
        return [...found]; }"""
    )
    assert len(heights) > 10
    assert max(heights) > 20


def test_speakers_have_colours_and_names(opened: Opener) -> None:
    """Turns of a conversation, each with its speaker; another name for one of them is in what is saved."""
    page = opened()
    transcribed(page, "conversation.flac")
    speakers = page.locator(".transcript .speaker")
    names = speakers.all_text_contents()
    assert {"A", "B"} <= set(names)
    assert page.locator(".word.speaker-0").count() > 0
    assert page.locator(".word.speaker-1").count() > 0
    screenshot(page, "speakers")
    page.once("dialog", lambda dialog: dialog.accept("Emma <3"))
    speakers.first.click()
    expect(speakers.first).to_have_text("Emma <3")
    assert set(speakers.all_text_contents()) == {"Emma <3", *names} - {"A"}
    for kind, shown in (("vtt", "<v Emma &lt;3>"), ("srt", "\nEmma <3: "), ("txt", "Emma <3: ")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=kind).click()
        assert shown in Path(saved.value.path()).read_text("utf-8")
    page.get_by_label("Label speakers").uncheck()
    page.get_by_role("button", name="Transcribe again").click()
    expect(speakers).to_have_count(0, timeout=SECONDS)
    expect(page.locator(".word").first).to_be_visible(timeout=SECONDS)


def test_a_language_and_a_task_are_sent(opened: Opener) -> None:
    """A Spanish recording is named Spanish, and translated where that was chosen."""
    page = opened("speech")
    options(page)
    page.get_by_label("Prompt", exact=True).fill("museo")
    transcribed(page, "museo.ogg")
    assert "spanish" in page.inner_text(".facts")
    page.get_by_label("Task").select_option("translate")
    with page.expect_response("**/v1/audio/translations", timeout=SECONDS) as waiting:
        page.get_by_role("button", name="Transcribe again").click()
    assert waiting.value.ok
    expect(page.locator(".facts")).to_contain_text("english", timeout=SECONDS)
    assert "prompt=museo" in example(page, "curl")


def test_a_recording_with_the_microphone(opened: Opener, recordings: dict[str, Any]) -> None:
    page = opened("speech", permissions=["microphone"])
    page.get_by_role("button", name="Record", exact=True).click()
    page.wait_for_timeout(4500)
    page.get_by_role("button", name="Stop recording").click()
    expect(page.locator(".word").first).to_be_visible(timeout=SECONDS)
    said = page.inner_text("#transcript")
    assert len(words(said)) >= 5
    assert common(said, recordings["minute.wav"]["text"]) >= 0.7


def test_live_captions_show_the_words(opened: Opener, recordings: dict[str, Any]) -> None:
    """While somebody speaks, and with a key; the last words come after the stop."""
    page = opened("speech", permissions=["microphone"])
    page.get_by_role("button", name="Live captions").click()
    going = page.locator(".captions .going")
    expect(going.filter(has_text=re.compile(r"\w{3}"))).to_be_visible(timeout=SECONDS)
    expect(page.locator(".captions p:not(.going)").nth(1)).to_be_visible(timeout=SECONDS)
    screenshot(page, "captions")
    page.get_by_role("button", name="Stop captions").click()
    expect(page.get_by_text("The live session has ended.")).to_be_visible(timeout=SECONDS)
    said = page.inner_text(".captions")
    print(f"\nlive captions: {said!r}")
    assert len(words(said)) >= 10
    assert common(said, recordings["minute.wav"]["text"]) >= 0.8
    assert "openai-insecure-api-key" not in page.inner_text("body")


def test_too_large_a_file_is_not_sent(opened: Opener) -> None:
    """The limit is the API's."""
    page = opened("speech")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    expect(page.locator("#file")).to_be_attached()
    large = {"name": "large.wav", "mimeType": "audio/wav", "buffer": b"\0" * (MOST_UPLOAD + 1)}
    page.set_input_files("#file", files=[large])  # type: ignore[list-item]
    expect(page.get_by_text("large.wav exceeds the limit of 2 MB")).to_be_visible()
    assert not [url for url in sent if "/v1/audio" in url]


def test_a_broken_file_is_a_sentence(opened: Opener) -> None:
    """The API's own."""
    page = opened("speech")
    expect(page.locator("#file")).to_be_attached()
    broken = {"name": "broken.wav", "mimeType": "audio/wav", "buffer": b"this is not sound"}
    page.set_input_files("#file", files=[broken])  # type: ignore[list-item]
    expect(page.locator(".message-bar.bad")).to_contain_text("file: ", timeout=SECONDS)


def test_a_text_is_completed(opened: Opener, stack: Stack) -> None:
    """What the page streams is what the API answers at once."""
    page = opened("text")
    prompt = "Harley"
    page.get_by_label("Prompt", exact=True).fill(prompt)
    page.get_by_role("button", name="Generate", exact=True).click()
    expect(page.locator("#text .facts")).to_contain_text("tokens read", timeout=SECONDS)
    body = {"model": "mini-gpt2", "prompt": prompt, "max_tokens": 64, "temperature": 0}
    answer = httpx.post(f"{stack.url}/v1/completions", headers=headers(), json=body, timeout=60).json()
    assert page.inner_text("#output .made").strip() == answer["choices"][0]["text"].strip()
    screenshot(page, "text")


def test_a_conversation_has_turns(opened: Opener) -> None:
    """The second request brings the first and its answer."""
    page = opened("text")
    page.get_by_label("Kind").select_option("chat")
    for turn in ("Harley Rovers", "Another match"):
        page.get_by_label("Prompt", exact=True).fill(turn)
        with page.expect_request("**/v1/chat/completions") as waiting:
            page.get_by_role("button", name="Generate", exact=True).click()
        expect(page.get_by_role("button", name="Generate", exact=True)).to_be_enabled(timeout=SECONDS)
    roles = [message["role"] for message in waiting.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert len(page.locator(".message.assistant").all()) == 2
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".message")).to_have_count(0)


def test_an_answer_is_made_again_under_a_system_prompt(opened: Opener) -> None:
    """The same conversation is sent once more, the system prompt first; the old answer goes."""
    page = opened("text")
    page.get_by_label("Kind").select_option("chat")
    options(page)
    page.get_by_label("System prompt").fill("Short answers.")
    page.get_by_label("Prompt", exact=True).fill("Harley Rovers")
    sent = []
    for button in ("Generate", "Regenerate"):
        with page.expect_request("**/v1/chat/completions") as waiting:
            page.get_by_role("button", name=button, exact=True).click()
        sent.append(waiting.value.post_data_json["messages"])
        expect(page.get_by_role("button", name="Regenerate")).to_be_visible(timeout=SECONDS)
        expect(page.get_by_role("button", name="Copy").first).to_be_visible()
    assert sent[0] == sent[1]
    assert [message["role"] for message in sent[0]] == ["system", "user"]
    expect(page.locator(".message.assistant")).to_have_count(1)


def test_reasoning_is_apart(opened: Opener) -> None:
    """As a model that reasons would answer; none of the miniatures does."""
    page = opened("text")
    deltas = ({"reasoning_content": "2 and 2 "}, {"reasoning_content": "are 4."}, {"content": "\n\nFour."})
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, headers={"content-type": "text/event-stream"}),
    )
    page.get_by_label("Kind").select_option("chat")
    page.get_by_label("Prompt", exact=True).fill("2 + 2?")
    page.get_by_role("button", name="Generate", exact=True).click()
    expect(page.get_by_role("button", name="Regenerate")).to_be_visible(timeout=SECONDS)
    message = page.locator(".message.assistant")
    expect(message.get_by_text("2 and 2 are 4.")).to_be_hidden()
    message.get_by_text("Reasoning").click()
    expect(message.get_by_text("2 and 2 are 4.")).to_be_visible()
    expect(message.get_by_text("Four.")).to_be_visible()
    screenshot(page, "reasoning")


MARKDOWN = """# Bread & <b>butter</b>

Take **500 g** of *flour*, `salt` and 2 * 3 of [oil](https://example.org/a) or [this](javascript:alert).

1. Mix
   - water
   - yeast
2. Bake

```python
print("<script>")
```

| when | what |
|---|---|
| now | **eat** |
"""
SHOWN = (
    "<h3>Bread &amp; &lt;b&gt;butter&lt;/b&gt;</h3>"
    "<p>Take <strong>500 g</strong> of <em>flour</em>, <code>salt</code> and 2 * 3 of "
    '<a href="https://example.org/a" rel="noopener noreferrer nofollow" target="_blank">oil</a> or '
    "[this](javascript:alert).</p>"
    '<ol start="1"><li>Mix<ul><li>water</li><li>yeast</li></ul></li><li>Bake</li></ol>'
    '<pre tabindex="0"><code>print("&lt;script&gt;")</code></pre>'
    '<div class="scroll"><table><thead><tr><th>when</th><th>what</th></tr></thead>'
    "<tbody><tr><td>now</td><td><strong>eat</strong></td></tr></tbody></table></div>"
)


def test_markdown_is_shown_as_elements(opened: Opener) -> None:
    """Headings, lists, code, tables and links; HTML and other addresses stay text."""
    page = opened("text")
    shown = page.evaluate(
        """async (text) => { const { markdown } = await import("/console/markdown.js");
        const box = document.createElement("div"); box.append(...markdown(text)); return box.innerHTML; }""",
        MARKDOWN,
    )
    assert shown == SHOWN


def test_samples_are_a_click_away(opened: Opener, recordings: dict[str, Any]) -> None:
    """A recording, a prompt and a picture, for a visitor who brings nothing."""
    page = opened("speech")
    page.get_by_role("button", name="Try a sample").click()
    expect(page.locator("#transcript")).to_have_text(recordings["demo.flac"]["text"], timeout=SECONDS)
    page.get_by_role("link", name="Text").click()
    page.get_by_role("group", name="Examples").get_by_role("button").first.click()
    expect(page.locator("#text .facts")).to_contain_text("tokens read", timeout=SECONDS)
    page.get_by_role("link", name="Pictures").click()
    page.get_by_role("button", name="Use a sample picture").click()
    page.get_by_role("button", name="what is in the picture?").click()
    expect(page.locator("#pictures-output .assistant")).to_contain_text("green", timeout=SECONDS)


def flying(stack: Stack, model: str = "mini-gpt2") -> int:
    """Requests in flight at the instance of a model."""
    rows = httpx.get(f"{stack.url}/console/api/state", headers=headers(), timeout=30).json()["instances"]
    return int(next(row["in_flight"] for row in rows if row["model"] == model))


def test_streaming_stops_on_the_button(opened: Opener, stack: Stack) -> None:
    """The page has the beginning of the whole text, nothing comes after it, and nothing is in flight."""
    asked = {"max_tokens": 480, "min_tokens": 480, "temperature": 0}
    body = {"model": "mini-gpt2", "prompt": "Harley", **asked}
    whole = httpx.post(f"{stack.url}/v1/completions", headers=headers(), json=body, timeout=60).json()
    assert whole["usage"]["completion_tokens"] == 480
    page = opened("text")
    page.get_by_label("Prompt", exact=True).fill("Harley")
    options(page)
    page.get_by_label("Maximum tokens").fill("480")
    page.get_by_label("Minimum tokens").fill("480")
    page.evaluate(STOPS, "#output .made")
    page.get_by_role("button", name="Generate", exact=True).click()
    expect(page.get_by_text("Stopped.")).to_be_visible(timeout=SECONDS)
    text = page.text_content("#output .made")
    assert text
    assert whole["choices"][0]["text"].startswith(text)
    assert len(text) < len(whole["choices"][0]["text"])
    print(f"\nstopped after {len(text)} of {len(whole['choices'][0]['text'])} characters")
    time.sleep(1.5)
    assert page.text_content("#output .made") == text
    assert flying(stack) == 0
    expect(page.get_by_role("button", name="Generate", exact=True)).to_be_enabled()


def example(page: Page, name: str) -> str:
    page.locator(".page:visible .panel > details summary").click()
    return page.locator(".page:visible").get_by_label(name, exact=True).inner_text()


def ran(command: list[str], folder: Path = RECORDINGS) -> str:
    """What a command says, in a folder."""
    done = run(*command, env={**os.environ, "CONCH_API_KEY": KEY}, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("panel", ["speech", "text"])
def test_what_was_done_can_be_done_in_a_shell(opened: Opener, panel: str) -> None:
    """The curl and the Python that the page shows give the words that it shows."""
    page = opened(panel)
    if panel == "speech":
        transcribed(page, "demo.flac")
        said = page.inner_text("#transcript")
    else:
        page.get_by_label("Prompt", exact=True).fill("It's 5 o'clock \"now\"")
        page.get_by_role("button", name="Generate", exact=True).click()
        expect(page.locator("#text .facts")).to_contain_text("tokens read", timeout=SECONDS)
        said = page.inner_text("#output .made")
    curl = example(page, "curl")
    python = page.locator(".page:visible").get_by_label("Python", exact=True).inner_text()
    assert KEY not in curl + python
    answer = ran(["sh", "-c", curl])
    if panel == "speech":
        assert httpx.Response(200, text=answer).json()["text"] == said
    else:
        assert answer.rstrip().endswith("data: [DONE]")
    made = ran([str(ROOT / ".venv/build/bin/python"), "-c", python])
    assert made.strip() == said.strip()
