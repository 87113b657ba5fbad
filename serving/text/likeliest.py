"""`top_log_probs`: the tokens of a result with their log probabilities, and the likeliest alternatives of
each.

Log probabilities are the model's, including the request's own bias, however a token was chosen. An engine
whose log probabilities come after temperature and penalties (`tempered_log_probs`) is asked for logits
instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..arrays import scalar
from ..engine.sampling import log_softmax
from ..errors import BadRequest
from .arrays import Arrays, Given
from .model import TextModel

MOST_TOP_LOG_PROBS = 20
# What makes TensorRT-LLM's log probabilities others than those that the model gave.
TEMPERING = ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")


def wanted_top(inputs: Given) -> int | None:
    """Return how many of the likeliest tokens are requested; None if no tokens are.

    Raises:
        BadRequest: too many, or not the same for each text of the request.
    """
    if "top_log_probs" not in inputs:
        return None
    wanted = scalar(inputs, "top_log_probs", 0)
    if (inputs["top_log_probs"] != wanted).any():
        raise BadRequest("top_log_probs differs between the texts of one request; send separate requests")
    if not 0 <= wanted <= MOST_TOP_LOG_PROBS:
        raise BadRequest(f"top_log_probs is {wanted}; it must be 0 to {MOST_TOP_LOG_PROBS}")
    return wanted


def inputs_for(model: TextModel, request: Arrays, top: int, rows: int) -> Arrays:
    """Return further engine inputs, bool [rows, 1] each. There are logits only for new tokens, so the prompt
    cannot be included.

    Raises:
        BadRequest: the prompt is wanted, too.
    """
    if "exclude_input_in_output" in request and not request["exclude_input_in_output"].all():
        raise BadRequest(
            "top_log_probs requires exclude_input_in_output=true: the prompt has no log probabilities"
        )
    logits = top or (
        model.facts.tempered_log_probs
        and any(name in request for name in TEMPERING)
        and scalar(request, "beam_width", 1) == 1
    )
    names = [
        "return_log_probs",
        *(["return_generation_logits"] if logits else []),
        *([] if model.facts.encodes else ["exclude_input_in_output"]),
    ]
    return {name: np.ones((rows, 1), bool) for name in names}


def with_tokens(model: TextModel, result: Arrays, request: Arrays, top: int, *, with_logits: bool) -> Arrays:
    """Add tokens [rows, beams, longest] to a response and, with `top`, the likeliest alternatives [rows,
    beams, longest, top]. `with_logits`: the client also requested `generation_logits`.
    """
    ids = np.maximum(result["output_ids"], 0)
    tokens: Arrays = {
        "output_token_ids": ids,
        "output_tokens": model.pieces(ids),
        "output_lengths": result["sequence_length"],
    }
    if "generation_logits" not in result:
        return result | tokens
    probs = _log_probs(model, result, request)
    if model.facts.tempered_log_probs and scalar(request, "beam_width", 1) == 1:
        chosen = np.take_along_axis(probs, ids[..., None], -1)[..., 0]
        tokens["output_log_probs"] = chosen.astype(np.float32)
    kept = {name: array for name, array in result.items() if with_logits or name != "generation_logits"}
    return kept | tokens | (_likeliest(model, probs, top) if top else {})


def _log_probs(model: TextModel, result: Arrays, request: Arrays) -> NDArray[np.float32]:
    """Compute float32 [rows, beams, longest, vocabulary] from a response's logits."""
    shape = (*result["output_ids"].shape, model.facts.vocabulary)
    # An engine may fill its vocabulary up.
    logits = result["generation_logits"][:, :, : shape[2], : shape[3]]
    if model.facts.tempered_log_probs and "embedding_bias" in request:
        # TensorRT-LLM's logits are those before the bias.
        logits = logits + request["embedding_bias"][:, None, None]
    return log_softmax(logits.astype(np.float32)) if logits.size else np.zeros(shape, np.float32)


def _likeliest(model: TextModel, probs: NDArray[np.float32], top: int) -> Arrays:
    best = np.argsort(-probs, axis=-1, kind="stable")[..., :top].astype(np.int32)
    return {
        "top_tokens": model.pieces(best),
        "top_token_log_probs": np.take_along_axis(probs, best, -1).astype(np.float32),
    }
