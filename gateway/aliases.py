"""Map OpenAI's model names, which many clients send by default, and an operator's aliases to models."""

from __future__ import annotations

import re
from collections.abc import Mapping

from conch.deployment import Pool

# openai 3.52.0, types/audio_model.py, types/realtime/audio_transcription.py and types/embedding_model.py.
SPEECH = re.compile(
    r"whisper-1|gpt-realtime-whisper|gpt-(?:4o-(?:mini-)?|live-)?transcribe(?:-diarize)?(?:-\d{4}-\d\d-\d\d)?"
)
EMBEDDINGS = re.compile(r"text-embedding-(?:3-small|3-large|ada-002)")


class BadAlias(ValueError):
    """CONCH_MODEL_ALIASES cannot be parsed, or names a model that is not served."""


def own_aliases(given: str, pools: Mapping[str, Pool]) -> dict[str, str]:
    """Parse `name=model,name=model`.

    Raises:
        BadAlias: the message says what is wrong, and what is allowed.
    """
    found = {}
    for part in filter(None, (part.strip() for part in given.split(","))):
        name, equals, model = (piece.strip() for piece in part.partition("="))
        if not (name and equals and model in pools):
            raise BadAlias(
                f"CONCH_MODEL_ALIASES has {part!r}; write name=model, separated by commas, with models of: "
                f"{', '.join(pools)}"
            )
        found[name] = model
    return found


def meant(model: str, pools: Mapping[str, Pool], own: Mapping[str, str]) -> str:
    """Return the id of the model that a client's name stands for: an operator's alias or, for a name of
    OpenAI's, the first model of MODEL_ID for speech or for embeddings.
    """
    if model in pools or model in own:
        return own.get(model, model)
    able = []
    if SPEECH.fullmatch(model):
        able = [name for name, pool in pools.items() if "transcription" in pool.capabilities]
    elif EMBEDDINGS.fullmatch(model):
        able = [name for name, pool in pools.items() if pool.embeds_documents]
    return able[0] if able else model
