"""The text façades as Triton models."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.names import PICTURES, UNIQUE_ID

from ..errors import BadRequest, EngineError
from ..triton.calls import ALWAYS, engine_id
from ..triton.stub import Request, Sender, Utils, arrays_of, failure_of, is_decoupled, response_of
from ..triton.threaded import ThreadedEndpoint
from .arrays import Arrays, Given
from .facade import ENGINE_OUTPUTS, complete, stop_words
from .model import TextModel
from .processing import postprocess, preprocess

BROUGHT = {
    "IMAGE_BYTES": "image_bytes_input",
    "IMAGE_URL": "image_url_input",
}  # `preprocessing`'s and the façade's
TABLE = ("OUT_PROMPT_EMBEDDING_TABLE", "OUT_PROMPT_VOCAB_SIZE")


class TextEndpoint(ThreadedEndpoint):
    """Serves `tensorrt_llm_bls`, its `_stream` variant and `ensemble_stream`. `config` is the Triton model's
    configuration.
    """

    def __init__(self, model: TextModel, config: dict[str, Any], utils: Utils) -> None:
        super().__init__(utils)
        self.model, self.decoupled = model, is_decoupled(config)
        # Narrowed to what the engine has (build/tensors.py).
        declared = {*ALWAYS, *(output["name"] for output in config["output"])}
        self.outputs = [name for name in ENGINE_OUTPUTS if name in declared]

    def answer(self, request: Request, sender: Sender) -> None:
        inputs = arrays_of(request.inputs())
        if not self.decoupled and "stream" in inputs and inputs["stream"].any():
            raise BadRequest(
                "stream=true requires the decoupled face of this model; use the name ending in _stream"
            )
        wanted, (own, stoppable) = set(request.requested_output_names()), engine_id(request)
        unique = stoppable or re.search(UNIQUE_ID, own)
        if not unique and not self.decoupled and stop_words(inputs):  # which end it by its id
            own = stoppable = unique = uuid.uuid4().hex

        def engine(arrays: Arrays, streaming: bool) -> Iterator[Arrays]:
            # Decoding and encoding pictures takes seconds, in which nothing watches whether anybody waits.
            if sender.is_cancelled():
                raise EngineError("UNAVAILABLE: the client left before the engine was asked")
            yield from self.calls.engine(own, self.outputs, arrays, streaming=streaming)

        stop = partial(self.calls.stop, own) if unique else None
        results = complete(self.model, inputs, engine, lambda pixels: self._seen(own, pixels), stop)
        if self.decoupled:
            self.calls.stream(sender, results, wanted, stoppable)
            return
        with self.stopping(sender, [stoppable] if stoppable else ()):
            result = next(results)
        # Not while it is watched: Triton must not be asked about what it has let go.
        self.calls.answer(sender, result, wanted)

    def _seen(self, request_id: str, pixels: NDArray[np.float16]) -> Arrays:
        """Call `multimodal_encoders` for pixels [rows, n, 3, size, size]."""
        return self.calls.ask(PICTURES, {"pixel_values": pixels}, TABLE, request_id)


class ProcessingEndpoint:
    """Serves `preprocessing` or `postprocessing`: `process` maps input arrays to output arrays, fast enough
    to answer at once.
    """

    def __init__(self, process: Callable[[Given], Arrays], utils: Utils) -> None:
        self.process, self.utils = process, utils

    def execute(self, requests: Iterable[Request]) -> list[Any]:
        """Return a response for each request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Any:
        try:
            arrays = self.process(arrays_of(request.inputs()))
        except Exception as error:  # noqa: BLE001  # the boundary: whatever went wrong is this request's answer
            return failure_of(self.utils, error, str(error))
        return response_of(self.utils, arrays, set(request.requested_output_names()))


def preprocessing(model: TextModel, utils: Utils) -> ProcessingEndpoint:
    """Convert strings to ids, and pictures to the pixels that `multimodal_encoders` takes."""

    def process(inputs: Given) -> Arrays:
        if model.picture is None:
            return preprocess(model, inputs)
        from ..vision.questions import pictures_of  # Pillow is nothing that texts need

        pixels = pictures_of(
            {new: inputs[old] for old, new in BROUGHT.items() if old in inputs}, model.picture, model.pictures
        )
        ids = preprocess(model, inputs, 0 if pixels is None else pixels.shape[1])
        return ids if pixels is None else {**ids, "PIXEL_VALUES": pixels}

    return ProcessingEndpoint(process, utils)


def postprocessing(model: TextModel, utils: Utils) -> ProcessingEndpoint:
    """Convert ids to strings."""

    def process(inputs: Mapping[str, Any]) -> Arrays:
        ids, lengths = inputs["TOKENS_BATCH"], inputs["SEQUENCE_LENGTH"]
        return {"OUTPUT": postprocess(model, ids, lengths, inputs.get("STOP_WORDS_IDS"))}

    return ProcessingEndpoint(process, utils)
