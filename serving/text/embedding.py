"""Embed texts, for Triton's `minilm` and `clip_text`: tokenizes and calls the encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from conch.bundle import ENGINE, EngineFacts

from ..errors import BadRequest
from ..triton.stub import Request, Sender, Utils, arrays_of
from ..triton.threaded import ThreadedEndpoint
from .arrays import Arrays, lengths_of, padded

OUTPUTS = ("embedding", "input_length")
Encode = Callable[[Arrays], NDArray[np.float32]]


class EmbeddingModel:
    """One model's tokenizer and limits."""

    def __init__(self, bundle: Path) -> None:
        self.facts = EngineFacts.load(bundle / ENGINE)
        self.tokenizer = Tokenizer.from_file(str(bundle / ENGINE / "tokenizer.json"))
        self.tokenizer.no_truncation()  # sentence-transformers' files bring both, for their own defaults
        self.tokenizer.no_padding()
        self.before, self.after = around(self.tokenizer)

    def embed(self, inputs: Mapping[str, NDArray[Any]], encode: Encode) -> Arrays:
        """Return vectors float32 [rows, dimensions] and lengths int32 [rows, 1] of one request. `encode` maps
        int32 `input_ids` and `attention_mask` [rows, n] to vectors.

        Raises:
            BadRequest: neither texts nor ids, both, ids that are none, or a text that is too long.
        """
        rows = self._rows(inputs)
        lengths = lengths_of(rows)
        cut = "truncate" in inputs and bool(inputs["truncate"].any())
        if not cut and (longest := int(lengths.max())) > self.facts.positions:
            raise BadRequest(
                f"text {int(lengths.argmax())} has {longest} tokens; this model reads {self.facts.positions} "
                "at most; shorten it, or send truncate=true"
            )
        return {"embedding": encode(with_mask([self._cut(row) for row in rows])), "input_length": lengths}

    def _rows(self, inputs: Mapping[str, NDArray[Any]]) -> list[list[int]]:
        if ("text" in inputs) == ("input_ids" in inputs):
            raise BadRequest("send either text or input_ids")
        if "text" in inputs:
            texts = [decoded(text) for text in inputs["text"].ravel()]
            return [list(row.ids) for row in self.tokenizer.encode_batch(texts)]
        ids = inputs["input_ids"]
        lengths = inputs["input_lengths"].ravel() if "input_lengths" in inputs else [ids.shape[1]] * len(ids)
        if any(not 0 < length <= ids.shape[1] for length in lengths):
            raise BadRequest(f"input_lengths must be from 1 to {ids.shape[1]}, the size of input_ids")
        if ids.min() < 0 or ids.max() >= self.facts.vocabulary:
            raise BadRequest(f"input_ids must be from 0 to {self.facts.vocabulary - 1}")
        return [
            [*self.before, *row[:length].tolist(), *self.after]
            for row, length in zip(ids, lengths, strict=True)
        ]

    def _cut(self, row: list[int]) -> list[int]:
        """Truncate as the tokenizer does: special tokens after a text stay."""
        most = self.facts.positions
        return row if len(row) <= most else [*row[: most - len(self.after)], *self.after]


class EmbeddingEndpoint(ThreadedEndpoint):
    """`encoder` is the Triton model that maps ids to vectors."""

    def __init__(self, model: EmbeddingModel, encoder: str, utils: Utils) -> None:
        super().__init__(utils)
        self.model, self.encoder = model, encoder

    def answer(self, request: Request, sender: Sender) -> None:
        arrays = self.model.embed(
            arrays_of(request.inputs()), lambda rows: self._encoded(request.request_id(), rows)
        )
        self.calls.answer(sender, arrays, set(request.requested_output_names()) or set(OUTPUTS))

    def _encoded(self, request_id: str, rows: Arrays) -> NDArray[np.float32]:
        return self.calls.ask(self.encoder, rows, ["embedding"], request_id)["embedding"]


def decoded(text: bytes) -> str:
    """Decode a text of a request.

    Raises:
        BadRequest: it is not UTF-8.
    """
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise BadRequest("text is not valid UTF-8") from None


def around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer puts before and after a text."""
    bare, whole = (list(tokenizer.encode("a", add_special_tokens=special).ids) for special in (False, True))
    at = next(i for i in range(len(whole)) if whole[i : i + len(bare)] == bare)
    return whole[:at], whole[at + len(bare) :]


def with_mask(rows: Sequence[Sequence[int]]) -> Arrays:
    """Pad rows of ids to int32 [rows, longest], with their mask."""
    ids = padded(rows, 0)
    mask = np.arange(ids.shape[1]) < lengths_of(rows)
    return {"input_ids": ids, "attention_mask": mask.astype(np.int32)}
