"""Generate text that follows a grammar: llguidance tells which ids may come next, with one state per request.

Names and kinds are those of TensorRT-LLM's `guided_decoding_guide_type` and `guided_decoding_guide`.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark
from numpy.typing import NDArray

from conch.bundle import EngineFacts

from ..errors import BadRequest
from .sampling import NEVER, Floats

KINDS = ("json", "json_schema", "regex", "ebnf_grammar")
LONGEST = 1 << 18  # characters of a guide
# One blank after commas and colons, as in what models were trained on; free whitespace lets a small model
# write blanks until its limit.
LAYOUT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


COERCE = ". Enable 'coerce_one_of' option to approximate oneOf with anyOf"  # what no client can do


class Guide:
    """The state of one request's grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher

    def forbid(self, scores: Floats) -> None:
        """Set float32 [vocabulary] to NEVER for ids that would violate the grammar."""
        allowed = np.frombuffer(self.matcher.compute_bitmask(), np.uint8)
        bits: NDArray[np.uint8] = np.unpackbits(allowed, bitorder="little", count=len(scores))
        scores[bits == 0] = NEVER
        if scores.max() <= NEVER:
            raise BadRequest(
                "guided_decoding_guide allows nothing that bad_words, logit_bias and min_tokens allow as well"
            )
        self.check()

    def take(self, token: int) -> bool:
        """Advance by one id and tell whether the text may continue."""
        self.matcher.consume_token(token)
        self.check()
        return not self.matcher.is_stopped()

    def check(self) -> None:
        """Raise llguidance's internal error, which otherwise ends a text as if it were complete.

        Raises:
            BadRequest: the grammar is wrong or too large, or an id left it.
        """
        if self.matcher.is_error():
            raise BadRequest(f"guided_decoding_guide: {_first(self.matcher.get_error())}")


class Guides:
    """Guides of one engine; its tokenizer is loaded with the first one."""

    def __init__(self, engine: Path, facts: EngineFacts) -> None:
        self.engine, self.facts = engine, facts

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        ends = [self.facts.end_id, *self.facts.other_ends]
        return LLTokenizer(str(self.engine / "tokenizer.json"), n_vocab=self.facts.vocabulary, eos_token=ends)

    def guide(self, kind: str, text: str) -> Guide:
        """Make a guide of one of the KINDS.

        Raises:
            BadRequest: another kind, or a text that llguidance does not understand.
        """
        if kind not in KINDS:
            raise BadRequest(f"guided_decoding_guide_type is {kind!r}; this engine knows {', '.join(KINDS)}")
        if len(text) > LONGEST:
            raise BadRequest(f"guided_decoding_guide has {len(text)} characters; send {LONGEST} at most")
        try:
            grammar = _grammar(kind, text)
        except Exception as error:  # llguidance's readers of grammars have no common kind
            raise BadRequest(f"guided_decoding_guide: {_first(str(error))}") from error
        guide = Guide(LLMatcher(self._tokenizer, grammar, log_level=0))
        guide.check()
        return guide


def _grammar(kind: str, text: str) -> str:
    if kind == "regex":
        return str(LLMatcher.grammar_from_regex(text))
    if kind == "ebnf_grammar":
        return str(LLMatcher.grammar_from_lark(any_to_lark(text)))
    schema: Any = json.loads(text) if kind == "json_schema" else {"type": "object"}
    _check_counts(schema)
    return str(LLMatcher.grammar_from_json_schema(schema, overrides=LAYOUT))


def _check_counts(schema: Any) -> None:
    """Refuse a least number of properties whose names are free: llguidance counts one name twice, JSON's
    readers do not.

    Raises:
        ValueError: the schema has such an object.
    """
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for part in parts:
        _check_counts(part)
    least = schema.get("minProperties") if isinstance(schema, dict) else None
    if not isinstance(least, int) or schema.get("additionalProperties", True) is False:
        return
    if least > len(schema.get("required", [])):
        raise ValueError("minProperties of names that are free is not supported; name the properties")


def _first(error: str) -> str:
    """Return the error's first sentence, and what a reader of regular expressions found, without the quoted
    grammar.
    """
    first, *others = error.replace(COERCE, ": use anyOf").splitlines() or [""]
    found = [line.removeprefix("error:") for line in others if line.startswith("error:")]
    return " ".join("".join([first, *found[:1]]).split())
