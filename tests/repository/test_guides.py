"""The translation of the guides: nothing of theirs is left out, and what stands there is what the builder
runs.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from build.catalog import ROOT, load_catalog
from build.commands import Command, work
from build.recipes import load_recipe
from build.targets.trtllm.image import SCRIPTS

PAGE = (ROOT / "docs/tensorrt-llm/commands.md").read_text("utf-8")
GUIDES = tomllib.loads((Path(__file__).parent.parent / "contract" / "guides.toml").read_text("utf-8"))[
    "guide"
]
NAMES = {
    "{python}": "python3",
    "{trtllm_build}": "trtllm-build",
    "{half_blip2}": "build/targets/trtllm/half_blip2.py",
    **{f"{{{name}}}": f"examples/{paths[0]}" for name, paths in SCRIPTS.items()},
}
TRANSLATED = [
    "large-v3",
    "distil-large-v3",
    "t5-small",
    "bart-large-cnn",
    "gpt2-medium",
    "blip2-opt-2.7b",
    "llava-1.5-7b",
]


def blocks() -> dict[str, str]:
    """Command lines of the page by their first line, without the backslashes."""
    found = re.findall(r"```sh\n# (.+)\n((?:.+\n)+)```", PAGE)
    return {head: re.sub(r"\s*\\\n\s*", " ", body).strip() for head, body in found}


def commands(model_id: str, **knobs: str) -> dict[str, Command]:
    """The builder's, by what they make."""
    model = load_catalog()[model_id]
    recipe = load_recipe(model, "trtllm", knobs)
    planned = work(model, recipe, [name.strip("{}") for name in NAMES])
    converting = {
        f"to {conversion.to}": command
        for conversion in planned.conversions
        for command in conversion.commands
    }
    return converting | {command.makes: command for command in planned.commands}


def written(command: Command) -> str:
    return " ".join(NAMES.get(part, part) for part in command.argv)


@pytest.mark.parametrize("head", list(blocks()))
def test_each_block_is_what_the_builder_runs(head: str) -> None:
    """To the letter, but for the names of tools and folders."""
    model_id, step, *knobs = re.split(r": |, ", head)
    assert blocks()[head] == written(commands(model_id, **dict(knob.split("=") for knob in knobs))[step])


@pytest.mark.parametrize("model_id", TRANSLATED)
def test_no_step_is_left_out(model_id: str) -> None:
    """Every step of a translated model stands on the page; Distil-Whisper's are those of the model it was
    distilled from, but for the name.
    """
    shown = set(blocks().values())
    for command in commands(model_id).values():
        assert written(command) in shown or written(command).replace("distil-large-v3", "large-v3") in shown


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide["title"])
def test_every_command_of_the_guides_is_translated(guide: dict[str, list[str]]) -> None:
    """Each stands on the page."""
    page = PAGE.replace("\\|", "|")
    assert [command for command in guide["commands"] if command not in page] == []


def test_the_page_names_every_tool() -> None:
    """No tool that a family uses is missing from the translation."""
    for path in (paths[0] for paths in SCRIPTS.values()):
        assert path in PAGE


def test_every_row_says_how_far_it_is_proven() -> None:
    """One of four states, none of which is a failure; the blocks have theirs in one sentence."""
    rows = [row for row in PAGE.splitlines() if re.match(r"\| \d", row)]
    states = {row.rsplit("|", 2)[1].strip() for row in rows}
    assert len(rows) >= 38
    assert states <= {"run", "read", "not needed", "missing"}
    assert "All blocks of commands are `read`." in PAGE
