"""Write vectors in OpenAI's response format."""

from __future__ import annotations

import base64

import orjson

from .embedder import EmbeddingRows


def body(model: str, vectors: EmbeddingRows, encoding_format: str) -> bytes:
    """Return JSON; base64 is of little-endian float32, like OpenAI's."""
    rows = list(vectors.values.astype("<f4"))
    coded = [base64.b64encode(row).decode() for row in rows] if encoding_format == "base64" else rows
    return orjson.dumps(
        {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": one} for index, one in enumerate(coded)
            ],
            "model": model,
            "usage": {"prompt_tokens": vectors.tokens, "total_tokens": vectors.tokens},
        },
        option=orjson.OPT_SERIALIZE_NUMPY,
    )
