"""How pictures are made ready and stand in a text, from a checkpoint's files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from build.pictures import LOOKS, Unsupported, blip2_prompt, llava_prompt, picture_facts, size_of
from conch.bundle import PicturePrompt

MINIATURES = Path(__file__).parents[3] / "miniatures"


@pytest.mark.parametrize(
    ("kind", "rows", "token", "leads"), [("llava", 144, 3, False), ("blip2", 32, 2, True)]
)
def test_of_the_miniatures(kind: str, rows: int, token: int, leads: bool) -> None:
    config, looks = json.loads((MINIATURES / kind / "config.json").read_text()), LOOKS[kind]
    facts = picture_facts(MINIATURES / kind, size_of(config), crops=looks.crops)
    prompt = looks.prompt(config)
    assert (prompt.rows, prompt.placeholder, prompt.token, prompt.leads) == (rows, "<image>", token, leads)
    assert (facts.size, facts.resized) == (96, 0 if leads else 96)


def test_what_files_leave_out() -> None:
    """As transformers' configurations have it: published files hold what differs from those."""
    assert size_of({}) == 224
    assert llava_prompt({}).rows == 49
    assert llava_prompt({"vision_config": {"image_size": 336, "patch_size": 14}}).rows == 576
    assert llava_prompt({"vision_feature_select_strategy": "full"}).rows == 50
    assert blip2_prompt({"image_token_index": 50265}).rows == 32
    assert isinstance(blip2_prompt({"image_token_id": 7}), PicturePrompt)


def test_what_this_family_does_not_do(tmp_path: Path) -> None:
    """Each is refused with what the file must say."""
    with pytest.raises(Unsupported, match="image_token_index is missing"):
        blip2_prompt({})
    for crops, own in ((True, "llava"), (False, "blip2")):
        given = json.loads((MINIATURES / own / "preprocessor_config.json").read_text())
        for change in ({"do_normalize": False}, {"resample": 2}):
            (tmp_path / "preprocessor_config.json").write_text(json.dumps({**given, **change}))
            with pytest.raises(Unsupported, match="asks for something else"):
                picture_facts(tmp_path, 96, crops=crops)
        with pytest.raises(Unsupported, match="asks for something else"):
            picture_facts(MINIATURES / own, 97, crops=crops)
