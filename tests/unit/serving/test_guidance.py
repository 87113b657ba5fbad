"""Texts that follow a grammar, of a model that has learnt nothing: whatever it would say, it must parse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

from serving.engine.collected import Collected
from serving.engine.guidance import LONGEST, Guides
from serving.engine.inputs import parse
from serving.engine.runtime import Runtime
from serving.engine.scheduler import Scheduler
from serving.errors import BadRequest

from ..engines import exported, runtime

pytestmark = pytest.mark.slow  # it imports torch and transformers

TOKENIZER = Path(__file__).parents[3] / "miniatures" / "gpt2" / "tokenizer.json"
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 9},
        "size": {"enum": [1, 2, 3]},
        "sea": {"type": "boolean"},
    },
    "required": ["city", "size", "sea"],
    "additionalProperties": False,
}
PLAIN = {"input_ids": np.array([[5]], np.int32), "request_output_len": np.array([[40]], np.int32)}


@pytest.fixture(scope="module", params=["openvino", "torch"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Runtime, Path]:
    """Random weights and a real vocabulary."""
    folder = tmp_path_factory.mktemp("engine")
    size = Tokenizer.from_file(str(TOKENIZER)).get_vocab_size()
    torch.manual_seed(3)
    config = GPT2Config(
        n_embd=64, n_layer=2, n_head=2, vocab_size=size, n_positions=256, bos_token_id=0, eos_token_id=0
    )
    made = exported(request.param, "gpt2", GPT2LMHeadModel(config), folder)
    shutil.copy(TOKENIZER, made / "tokenizer.json")
    return runtime(request.param, made), made


def asked(kind: str, guide: str, seed: int, **more: Any) -> dict[str, Any]:
    return {
        "input_ids": np.array([[5, 6, 7]], np.int32),
        "request_output_len": np.array([[120]], np.int32),
        "runtime_top_p": np.array([[1.0]], np.float32),
        "seed": np.array([[seed]], np.uint64),
        "guided_decoding_guide_type": np.array([[kind.encode()]], object),
        "guided_decoding_guide": np.array([[guide.encode()]], object),
        **more,
    }


@pytest.mark.parametrize(
    ("kind", "guide", "holds"),
    [
        ("json_schema", json.dumps(CITY), lambda text: set(json.loads(text)) == {"city", "size", "sea"}),
        ("regex", "(yes|no) [0-9]{3}", lambda text: text[:2] in ("ye", "no") and text[-3:].isdecimal()),
        ("ebnf_grammar", 'root ::= "a" [0-9] "z"', lambda text: text[0] == "a" and text[-1] == "z"),
    ],
)
def test_texts_follow(engine: tuple[Runtime, Path], kind: str, guide: str, holds: Any) -> None:
    """Twelve random texts at once, alongside one that follows nothing; each ends by itself."""
    running, folder = engine
    guides, tokenizer = Guides(folder, running.facts), Tokenizer.from_file(str(TOKENIZER))
    scheduler, listeners = Scheduler(running), [Collected() for _ in range(12)]
    scheduler.start()
    for seed, listener in enumerate(listeners):
        scheduler.submit(parse(asked(kind, guide, seed), listener, running.facts, guides=guides))
    free = Collected()
    scheduler.submit(parse(PLAIN, free, running.facts))
    texts = [tokenizer.decode(list(listener.wait(60)[0].ids)).strip() for listener in listeners]
    free.wait(60)
    scheduler.stop()
    assert all(map(holds, texts)), texts
    assert len(set(texts)) > 3


ONE_OF = json.dumps({"oneOf": [{"properties": {name: {"type": "string"}}} for name in "ab"]})


@pytest.mark.parametrize(
    ("kind", "guide", "more", "says"),
    [
        ("json_schema", "{", {}, "guided_decoding_guide: Expecting property name"),
        ("json_schema", '{"type": "wat"}', {}, "guided_decoding_guide: Invalid type: wat"),
        ("json_schema", "[]", {}, "guided_decoding_guide: Expecting object schema"),
        ("regex", "(", {}, "guided_decoding_guide: .*invalid regex.*unclosed group"),
        ("json_schema", '{"type": "string", "pattern": "(?=a)"}', {}, "look-ahead .* is not supported"),
        ("json_schema", ONE_OF, {}, "oneOf constraints are not supported: use anyOf$"),
        ("json_schema", '{"minProperties": 2}', {}, "minProperties of names that are free is not supported"),
        ("ebnf_grammar", "root ::= (", {}, "guided_decoding_guide: "),
        ("yaml", "a", {}, "guided_decoding_guide_type is 'yaml'; this engine knows json"),
        ("", "a", {}, "guided_decoding_guide_type is ''"),
        ("regex", "a" * (LONGEST + 1), {}, "characters; send"),
        ("regex", "a", {"beam_width": np.array([[2]], np.int32)}, "cannot be combined with beam_width=2"),
    ],
)
def test_what_nobody_can_follow_is_refused(
    engine: tuple[Runtime, Path], kind: str, guide: str, more: dict[str, Any], says: str
) -> None:
    """Before anything runs, with the tensor's name; and an engine without a tokenizer follows nothing."""
    running, folder = engine
    with pytest.raises(BadRequest, match=says):
        parse(asked(kind, guide, 1, **more), Collected(), running.facts, guides=Guides(folder, running.facts))
    with pytest.raises(BadRequest, match="not supported by this engine"):
        parse(asked(kind, guide, 1, **more), Collected(), running.facts)


def test_a_grammar_that_leaves_nothing_is_an_error(engine: tuple[Runtime, Path]) -> None:
    """A word that the schema wants and bad_words forbid: no text that pretends to follow."""
    running, folder = engine
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    first = [
        token for token in range(running.facts.vocabulary) if tokenizer.decode([token]).strip()[:1] == "z"
    ]
    words = np.array([[first, [*range(1, len(first) + 1)]]], np.int32)
    job = parse(
        asked("regex", "z", 1, bad_words_list=words), refused := Collected(), running.facts,
        guides=Guides(folder, running.facts),
    )  # fmt: skip
    scheduler = Scheduler(running)
    scheduler.start()
    scheduler.submit(job)
    with pytest.raises(BadRequest, match="guided_decoding_guide allows nothing"):
        refused.wait(60)
    scheduler.stop()
