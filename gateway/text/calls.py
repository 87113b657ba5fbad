"""Calls of the façade `tensorrt_llm_bls` for a prompt: fields under its names, and their tensors."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..triton import Arrays
from .schema import Generation, words

INTEGERS = ("max_tokens", "top_k", "min_tokens", "beam_width", "num_return_sequences", "top_log_probs")
NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
TEXTS = ("text_input", "stop_words", "bad_words", "image_urls")
DTYPES: dict[str, Any] = {
    **dict.fromkeys((*INTEGERS, "logit_bias_ids"), np.int32),
    **dict.fromkeys((*NUMBERS, "length_penalty", "logit_bias_weights"), np.float32),
    **dict.fromkeys((*TEXTS, "guided_decoding_guide_type", "guided_decoding_guide"), np.object_),
    "seed": np.uint64,
    "exclude_input_in_output": np.bool_,
}
# Inputs that have the name and the value of a request's field, if it is sent.
AS_GIVEN = {"presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty", "min_tokens"}
Call = Mapping[str, Any]  # one call of the façade: its inputs by name


def questions(
    form: Generation,
    prompts: Sequence[str],
    tokens: int,
    log_probs: int | None,
    beams: int = 1,
    pictures: Sequence[str] = (),
    guide: tuple[str, str] | None = None,
) -> list[Call]:
    """Return the calls that a request needs: one for each text, or for each prompt with beams. `pictures` are
    data URLs; `guide` is kind and text of the grammar that the texts follow.
    """
    common = _common(form, tokens, log_probs, beams) | ({"image_urls": list(pictures)} if pictures else {})
    if guide:
        common |= {"guided_decoding_guide_type": guide[0], "guided_decoding_guide": guide[1]}
    seed = secrets.randbits(63) if form.seed is None else form.seed % 2**64
    found: list[Call] = []
    for prompt in prompts:
        for _ in range(1 if beams > 1 else form.n):
            # Texts of one request must differ, also those of equal prompts; a request with a seed is
            # repeatable all the same.
            found.append({**common, "text_input": prompt, "seed": (seed + len(found)) % 2**64})
    return found


def _common(form: Generation, tokens: int, log_probs: int | None, beams: int) -> dict[str, Any]:
    given = form.model_dump(include=AS_GIVEN, exclude_none=True, exclude_unset=True)
    fields = {"max_tokens": tokens, "exclude_input_in_output": True, **given}
    lists = {"stop_words": form.stops, "bad_words": words(form.bad_words)}
    fields |= {name: found for name, found in lists.items() if found}
    if form.logit_bias:
        fields |= {
            "logit_bias_ids": [int(token) for token in form.logit_bias],
            "logit_bias_weights": list(form.logit_bias.values()),
        }
    if beams > 1:
        own = {"beam_width": beams, "num_return_sequences": form.n, "top_log_probs": log_probs or 0}
        return {**fields, **own}
    return {**fields, **_choice(form), **({} if log_probs is None else {"top_log_probs": log_probs})}


def _choice(form: Generation) -> dict[str, Any]:
    """Return sampling inputs. OpenAI's default samples from the whole distribution; temperature 0 is
    TensorRT-LLM's top_k of 1.
    """
    temperature = 1.0 if form.temperature is None else form.temperature
    top_p = 1.0 if form.top_p is None else form.top_p
    if 0.0 in (temperature, top_p):
        return {"top_k": 1}
    return {"temperature": temperature, "top_p": top_p, **({"top_k": form.top_k} if form.top_k else {})}


def arrays(fields: Call) -> Arrays:
    """Make tensors of one row, [1, n], from fields."""
    found = {}
    for name, value in fields.items():
        values = value if isinstance(value, list) else [value]
        found[name] = np.array(
            [[item.encode() if isinstance(item, str) else item for item in values]], DTYPES[name]
        )
    return found
