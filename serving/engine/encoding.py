"""Serve engines that map ids, pixels or audio to one vector: what several requests ask for is computed
together, with little padding.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from conch.bundle import EngineFacts

from ..errors import BadRequest, encode_error
from ..triton.calls import BlsClient
from ..triton.stub import Request, Sender, Utils, arrays_of
from .rounds import Rounds, Work

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]
# A group of rows is cut where the next one would be padding for more than a quarter, once the group has work
# for all cores: measured, a product of 256 rows is as fast for each as one of 2,048.
PADDING, ENOUGH, MOST = 0.75, 256, 8192
# Lengths are rounded up to a multiple of this: a length that is new to an engine has kernels to be made for
# it, which took longer than a short text itself (8.5 against 5.1 ms a text).
STEP = 8
# Computed together at most: measured on ViT-B/32, and on ten seconds of sound, more are no faster for each.
AT_ONCE = 16


class EncoderRuntime(Protocol):
    """Protocol of an encoder's runtime."""

    @property
    def facts(self) -> EngineFacts:
        """Return engine.json."""

    @property
    def tokens_at_once(self) -> int:
        """Return how many tokens of texts take a moment: where more wait, small requests may come between."""

    def encode(self, **inputs: NDArray[Any]) -> Floats:
        """Return vectors [rows, dimensions] for int64 `ids` and `mask` [texts, n], or for float32 `pixels`
        [pictures, 3, size, size] or `wav` [sounds, n]; a segmentation of sounds returns [sounds, frames,
        classes].
        """


def groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Group all rows, by number, so that rows computed together have about the same length."""
    group: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        size = len(group) * lengths[group[0]] if group else 0
        if group and (
            (size >= ENOUGH and lengths[row] < PADDING * lengths[group[0]]) or size + lengths[group[0]] > MOST
        ):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def embed(encoder: EncoderRuntime, rows: Sequence[Ids]) -> Floats:
    """Return vectors [rows, dimensions] for rows of ids."""
    lengths = [len(row) for row in rows]
    found = np.empty((len(rows), encoder.facts.dimensions), np.float32)
    for group in groups(lengths):
        width = min(-(-lengths[group[0]] // STEP) * STEP, encoder.facts.positions)
        ids = np.full((len(group), width), encoder.facts.pad_id, np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(group):
            ids[i, : lengths[row]] = rows[row]
            mask[i, : lengths[row]] = 1
        found[group] = encoder.encode(ids=ids, mask=mask)
    return found


def encoded(encoder: EncoderRuntime, name: str, rows: Sequence[Floats]) -> list[Floats]:
    """Encode rows as the input `name`, those of one shape together, and return what the encoder makes of
    each.
    """
    found: dict[int, Floats] = {}
    for shape in {row.shape for row in rows}:
        alike = [number for number, row in enumerate(rows) if row.shape == shape]
        for at in range(0, len(alike), AT_ONCE):
            some = alike[at : at + AT_ONCE]
            found |= zip(some, encoder.encode(**{name: np.stack([rows[n] for n in some])}), strict=True)
    return [found[number] for number in range(len(rows))]


def taken_in(facts: EngineFacts, inputs: dict[str, NDArray[Any]]) -> list[Ids]:
    """Return the rows of one request without their padding.

    Raises:
        BadRequest: shapes that differ, a mask with gaps, no tokens or too many, or ids that there are not.
    """
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    if ids.shape != mask.shape:
        raise BadRequest(
            f"attention_mask has shape {list(mask.shape)}; input_ids has {list(ids.shape)}, and it must be "
            "the same"
        )
    lengths = mask.sum(1)
    if not np.array_equal(mask, np.arange(mask.shape[1]) < lengths[:, None]):
        raise BadRequest("attention_mask must be 1 for the tokens of a text and 0 after them")
    if lengths.min() < 1 or lengths.max() > facts.positions:
        raise BadRequest(f"a text must have from 1 to {facts.positions} tokens")
    if ids.min() < 0 or ids.max() >= facts.vocabulary:
        raise BadRequest(f"input_ids must be from 0 to {facts.vocabulary - 1}")
    return [row[:length] for row, length in zip(ids, lengths, strict=True)]


class EncoderEndpoint(ABC):
    """Connects Triton's requests to an encoder whose input is `reads`; the model's output is `makes`. `most`:
    what a round costs (serving.engine.rounds).
    """

    reads, makes = "", "embedding"
    most: float = AT_ONCE

    def __init__(self, encoder: EncoderRuntime, utils: Utils) -> None:
        self.encoder, self.calls = encoder, BlsClient(utils, encode_error)
        self.rounds = Rounds(self.embed, self.most)

    @abstractmethod
    def rows(self, inputs: dict[str, NDArray[Any]]) -> Sequence[NDArray[Any]]:
        """Return what one request wants vectors of: int64 [tokens] for each text, float32 [3, size, size] for
        each picture, [samples] for each sound.

        Raises:
            BadRequest: it cannot be read.
        """

    def embed(self, rows: Sequence[NDArray[Any]]) -> Iterable[Floats]:
        """Return a vector [dimensions] for each row."""
        return encoded(self.encoder, self.reads, rows)

    def cost(self, row: NDArray[Any]) -> float:
        """Return what a row costs of a round."""
        return 1.0

    def outputs(self, found: Floats, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Make the outputs of one request from the vectors of its rows, `found` [rows, dimensions]."""
        return {self.makes: found}

    def execute(self, requests: Iterable[Request]) -> None:
        """Queue requests; an error of one affects no other."""
        works = []
        for request in requests:
            sender = request.get_response_sender()
            try:
                inputs = arrays_of(request.inputs())
                rows = self.rows(inputs)
                if not rows:
                    raise BadRequest("the request has no rows")
            except Exception as error:  # noqa: BLE001  # the boundary: it is this request's answer
                self._refuse(sender, error)
            else:
                costs = [self.cost(row) for row in rows]
                works.append(
                    Work(rows, costs, partial(self._answer, sender, inputs), partial(self._refuse, sender))
                )
        self.rounds.submit(works)

    def _answer(self, sender: Sender, inputs: dict[str, NDArray[Any]], found: list[Floats]) -> None:
        try:
            arrays = self.outputs(np.stack(found), inputs)
            self.calls.answer(sender, arrays, set(arrays))
        except Exception as error:  # noqa: BLE001  # see above; shared memory may be full
            self._refuse(sender, error)

    def _refuse(self, sender: Sender, error: Exception) -> None:
        with suppress(Exception):  # Triton has dropped the request
            self.calls.refuse(sender, error)

    def close(self) -> None:
        """Stop when the model is unloaded."""
        self.rounds.close()
        self.calls.close()


class TextEncoderEndpoint(EncoderEndpoint):
    """Reads int32 `input_ids` and `attention_mask` [rows, n]; a row costs its tokens."""

    def __init__(self, encoder: EncoderRuntime, utils: Utils) -> None:
        self.most = encoder.tokens_at_once
        super().__init__(encoder, utils)

    def cost(self, row: NDArray[Any]) -> float:
        return len(row)

    def rows(self, inputs: dict[str, NDArray[Any]]) -> Sequence[Ids]:
        return taken_in(self.encoder.facts, inputs)

    def embed(self, rows: Sequence[Ids]) -> Floats:
        return embed(self.encoder, rows)


class PictureEncoderEndpoint(EncoderEndpoint):
    """Reads float32 `pixel_values` [rows, 3, size, size]."""

    reads = "pixels"

    def __init__(self, encoder: EncoderRuntime, size: int, utils: Utils) -> None:
        self.size = size
        super().__init__(encoder, utils)

    def rows(self, inputs: dict[str, NDArray[Any]]) -> Sequence[Floats]:
        pixels = inputs["pixel_values"]
        if pixels.shape[1:] != (3, self.size, self.size):
            raise BadRequest(
                f"pixel_values has pictures of shape {list(pixels.shape[1:])}; it must be "
                f"{[3, self.size, self.size]}"
            )
        if not np.isfinite(pixels).all():
            raise BadRequest("pixel_values must be finite numbers")
        return list(pixels)


class PromptTableEndpoint(PictureEncoderEndpoint):
    """Serves `multimodal_encoders`: from float16 pixels [rows, pictures, 3, size, size], as `IMAGE` or
    `pixel_values`, to the rows of a prompt-embedding table for each row, its pictures one after another.
    """

    def rows(self, inputs: dict[str, NDArray[Any]]) -> Sequence[Floats]:
        given = [name for name in ("IMAGE", "pixel_values") if name in inputs]
        if len(given) != 1:
            raise BadRequest("send either IMAGE or pixel_values")
        pixels, wanted = inputs[given[0]], (3, self.size, self.size)
        if pixels.shape[2:] != wanted or not pixels.size:
            raise BadRequest(
                f"{given[0]} is {list(pixels.shape)}; this model takes [rows, pictures, 3, {self.size}, "
                f"{self.size}]"
            )
        if not np.isfinite(pixels).all():
            raise BadRequest(f"{given[0]} must be finite numbers")
        return list(pixels.reshape(-1, *wanted).astype(np.float32))

    def outputs(self, found: Floats, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        rows = next(len(inputs[name]) for name in ("IMAGE", "pixel_values") if name in inputs)
        table = found.reshape(rows, -1, found.shape[-1]).astype(np.float16)
        return {
            "OUT_PROMPT_EMBEDDING_TABLE": table,
            "OUT_PROMPT_VOCAB_SIZE": np.full((rows, 1), table.shape[1], np.int32),
        }


class SegmentationEndpoint(EncoderEndpoint):
    """Serves `speaker_segmentation`: reads float32 `WAV` [rows, n] of the length that the model was trained
    for.
    """

    reads, makes = "wav", "log_probabilities"

    def rows(self, inputs: dict[str, NDArray[Any]]) -> Sequence[Floats]:
        length = self.encoder.facts.positions
        return _sounds(inputs, length, length, f"{length}: fill up with zeros")


class VoiceEndpoint(EncoderEndpoint):
    """Serves `speaker_embedding`: reads float32 `WAV` [rows, n]; sounds of equal length are computed
    together.
    """

    reads = "wav"
    shortest = 8000  # samples

    def rows(self, inputs: dict[str, NDArray[Any]]) -> Sequence[Floats]:
        most = self.encoder.facts.positions
        return _sounds(inputs, self.shortest, most, f"{self.shortest} to {most}")


def _sounds(inputs: dict[str, NDArray[Any]], least: int, most: int, wanted: str) -> Sequence[Floats]:
    sounds = inputs["WAV"]
    if not least <= sounds.shape[1] <= most:
        raise BadRequest(f"WAV has {sounds.shape[1]} samples; it must have {wanted}")
    if not np.isfinite(sounds).all():
        raise BadRequest("WAV must be finite numbers")
    return list(sounds)
