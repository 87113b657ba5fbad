"""Preprocessing of pictures and their place in the prompt for LLaVA and BLIP-2, read from a checkpoint's
files.

Uses the standard library only: TensorRT-LLM's image has another version of transformers than other targets'
builders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.bundle import PictureFacts, PicturePrompt

Config = Mapping[str, Any]
BICUBIC = 3  # Pillow's number
# What CLIP and its successors were published with.
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
PLACEHOLDER = "<image>"
# As tensorrtllm_backend's preprocessing wraps a question that says nothing of its picture (guide 002).
LLAVA_TEMPLATE = "USER:\n<image>{text} ASSISTANT:"
# The picture comes before the text and its first token, as Blip2Processor has it.
BLIP2_TEMPLATE = "<image>{text}"
# BLIP-2's checkpoints have no chat template. The paper asks in these words (Li et al. 2023, Table 5), and
# puts earlier questions with their answers before; whatever a picture's message is, the picture leads.
BLIP2_CHAT = (
    "{% for message in messages %}"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>{% endfor %}"
    "{% if message['role'] == 'user' %}Question: {% elif message['role'] == 'assistant' %}Answer: {% endif %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{{ '. ' if message['role'] == 'assistant' else ' ' }}"
    "{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"
)


class Unsupported(ValueError):
    """A checkpoint that a family cannot serve; the message says which part."""


def picture_facts(folder: Path, size: int, *, crops: bool) -> PictureFacts:
    """Make picture.json for pictures of `size` pixels on a side from preprocessor_config.json, in which older
    files write sizes as one number. With `crops` as CLIPImageProcessor does: resize the shorter side, cut out
    the middle; otherwise as BlipImageProcessor does: resize both sides, cut nothing out.

    Raises:
        Unsupported: steps that this family does not have, or another size than the model's.
    """
    config: Config = json.loads((folder / "preprocessor_config.json").read_text("utf-8"))
    steps = ("do_resize", "do_rescale", "do_normalize", *(["do_center_crop"] if crops else []))
    other = config.get("resample", BICUBIC) != BICUBIC or any(config.get(name) is False for name in steps)
    resized = config.get("size", {})
    cut = config["crop_size"] if crops else resized
    sides = {cut} if isinstance(cut, int) else {cut.get("height"), cut.get("width")}
    shorter = resized if isinstance(resized, int) else resized.get("shortest_edge", 0)
    if other or sides != {size} or (crops and shorter < size):
        how = (
            f"resizes the shorter side (bicubic), cuts out {size} pixels on a side"
            if crops
            else f"resizes to {size} pixels on both sides (bicubic)"
        )
        raise Unsupported(
            f"{folder}/preprocessor_config.json: this family {how}, rescales by 255 and normalizes; the file "
            "asks for something else"
        )
    means, deviations = tuple(config["image_mean"]), tuple(config["image_std"])
    return PictureFacts(size, shorter if crops else 0, means, deviations)


def llava_prompt(config: Config) -> PicturePrompt:
    """Make picture_prompt.json from LLaVA's config.json."""
    vision = {"image_size": 224, "patch_size": 32, **config.get("vision_config", {})}
    patches = (vision["image_size"] // vision["patch_size"]) ** 2
    summarized = config.get("vision_feature_select_strategy") == "full"
    return PicturePrompt(patches + summarized, PLACEHOLDER, _token(config, 32000), LLAVA_TEMPLATE)


def blip2_prompt(config: Config) -> PicturePrompt:
    """Make picture_prompt.json from BLIP-2's config.json.

    Raises:
        Unsupported: it names no id of a picture's placeholder, as files from before 2024 do not.
    """
    rows = config.get("num_query_tokens", 32)
    return PicturePrompt(rows, PLACEHOLDER, _token(config, None), BLIP2_TEMPLATE, leads=True)


def _token(config: Config, default: int | None) -> int:
    found = config.get("image_token_index", config.get("image_token_id"))
    if (token := default if found is None else found) is None:
        raise Unsupported(
            "config.json: image_token_index is missing, the id of <image>; take a newer revision of the "
            "checkpoint"
        )
    return int(token)


@dataclass(frozen=True)
class Looks:
    """How a family reads pictures: `crops` as in `picture_facts`, `prompt` from config.json, `chat` for the
    chat template where checkpoints have none.
    """

    crops: bool
    prompt: Callable[[Config], PicturePrompt]
    chat: str = ""


LOOKS = {
    "llava": Looks(True, llava_prompt),
    "blip2": Looks(False, blip2_prompt, BLIP2_CHAT),
}


def size_of(config: Config) -> int:
    """Return the side in pixels of the pictures that the model of a config.json reads; CLIP's and BLIP-2's
    configurations leave out 224 (transformers, configuration_clip.py and configuration_blip_2.py).
    """
    return int(config.get("vision_config", {}).get("image_size", 224))
