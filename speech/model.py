"""The protocol of the model that transcribes a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from conch.deployment import Pool

Arrays = dict[str, NDArray[Any]]


class SpeechModel(Protocol):
    """The speech façade (`whisper_bls`): over Triton in the gateway, in this process in a benchmark."""

    async def infer(self, pool: Pool, arrays: Arrays, outputs: Sequence[str], request_id: str) -> Arrays:
        """Return the requested outputs for one window."""
