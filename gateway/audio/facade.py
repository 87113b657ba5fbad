"""The speech façade over Triton, for the package `speech`."""

from __future__ import annotations

from collections.abc import Sequence

from conch.deployment import Pool
from conch.errors import ApiError
from conch.names import SPEECH

from ..triton import Arrays, Triton

# Form fields by what the façade complains about.
FIELDS = {
    "TEXT_PREFIX": "prompt",
    "WAV": "file",
    "MAX_TOKENS": "max_tokens",
    "WORD_TIMESTAMPS": "timestamp_granularities[]",
    "<|": "language",
    "beam_width": "beam_width",
    "temperature": "temperature",
}


class SpeechFacade:
    """A `speech.model.SpeechModel` over Triton."""

    def __init__(self, triton: Triton) -> None:
        self.triton = triton

    async def infer(self, pool: Pool, arrays: Arrays, outputs: Sequence[str], request_id: str) -> Arrays:
        """Return the requested outputs for one window.

        Raises:
            ApiError: the pool did not answer, or refused; it names the form field.
        """
        try:
            return await self.triton.infer(pool, SPEECH, arrays, outputs, request_id)
        except ApiError as error:
            field = next((field for word, field in FIELDS.items() if word in error.message), None)
            error.param = error.param or field
            raise
