"""What a client asked for, as the transcriber takes it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """`language`: ISO code or None for detection, which chooses among `languages` if there are any.
    `timestamps`: whether segments are wanted. `draft`: words for now, by one request for a window; the final
    text is transcribed again. `live`: somebody waits for these very words.
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
