"""Options of a transcription."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """What a client requested.

    Attributes:
        language: ISO code; None to detect it
        languages: codes that detection chooses among; empty for all
        timestamps: segments are wanted
        draft: provisional words from one request per window; the final text is transcribed again
        live: a client is waiting for these words
    """

    task: str
    language: str | None
    prompt: str
    temperature: float
    timestamps: bool
    max_tokens: int | None = None
    beam_width: int | None = None
    words: bool = False
    log_probs: bool = False
    previous_text: bool = False
    multilingual: bool = False
    draft: bool = False
    languages: tuple[str, ...] = ()
    live: bool = False
