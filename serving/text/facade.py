"""The text façades: words in, an engine request; ids out, words. T5, BART and GPT-2 differ in facts only.

Like the speech façade it uses only tensors of TensorRT-LLM's models. What is ours besides are optional inputs
(`accumulate_tokens`, `logit_bias_ids`, `logit_bias_weights`, `top_log_probs`) and the outputs that the last
of them brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.bundle import ENGINE as FOLDER
from conch.bundle import EngineFacts, load_parameters

from ..engine.sampling import log_softmax
from ..engine.stop_words import Said, StopFilter, trimmed, words_in
from ..errors import BadRequest
from ..triton.rows import merge, newest, refuse_beams, refuse_logits, refuse_samples, split
from .tokens import GrowingText, TextTokenizer

Arrays = dict[str, NDArray[Any]]
Given = Mapping[str, NDArray[Any]]
Engine = Callable[[Arrays, bool], Iterator[Arrays]]
MOST_TOP_LOG_PROBS = 20
LONGEST_TOKEN = 128  # characters of the longest token in the vocabularies of GPT-2, T5 and BART
LONGEST_WORDS = 1 << 18  # bytes of a request's bad or stop words
# `preprocessing`'s inputs by the façade's names (upstream's ensemble).
PREPROCESSED = {
    "text_input": "QUERY",
    "decoder_text_input": "DECODER_QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
    "image_bytes_input": "IMAGE_BYTES",
    "image_url_input": "IMAGE_URL",
    "video_bytes_input": "VIDEO_BYTES",
}
# `tensorrt_llm`'s inputs by `preprocessing`'s outputs, and by the façade's names.
ENGINE = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "DECODER_INPUT_ID": "decoder_input_ids",
    "REQUEST_DECODER_INPUT_LEN": "decoder_input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}
FORWARDED = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
    **{
        name: name
        for name in (
            "exclude_input_in_output",
            "temperature",
            "repetition_penalty",
            "min_tokens",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "return_log_probs",
            "return_context_logits",
            "return_generation_logits",
            "num_return_sequences",
            "beam_width",
            "prompt_embedding_table",
            "prompt_vocab_size",
            "lora_task_id",
            "lora_weights",
            "lora_config",
            "return_perf_metrics",
            "guided_decoding_guide_type",
            "guided_decoding_guide",
        )
    },
}
ENGINE_OUTPUTS = [
    "output_ids",
    "sequence_length",
    "cum_log_probs",
    "output_log_probs",
    "context_logits",
    "generation_logits",
]
# What makes TensorRT-LLM's log probabilities others than those that the model gave.
TEMPERING = ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")
# Outputs with a place for each token: [rows, beams, tokens, …].
BY_TOKEN = (
    "output_ids",
    "output_log_probs",
    "generation_logits",
    "output_token_ids",
    "output_tokens",
    "top_tokens",
    "top_token_log_probs",
)
# What no text model has: pictures, and a draft model beside it.
NO_TEXT = ("IMAGE_BYTES", "IMAGE_URL", "VIDEO_BYTES", "PROMPT_TABLE_EXTRA_ID")
NO_ENGINE = ("image_input",)
NO_DRAFT = ("num_draft_tokens", "use_draft_logits")


class TextModel:
    """The façade of one bundle."""

    def __init__(self, bundle: Path) -> None:
        facts, parameters = EngineFacts.load(bundle / FOLDER), load_parameters(bundle)
        self.memory, self.positions, self.vocabulary = facts.memory, facts.positions, facts.vocabulary
        self.end, self.pad = facts.end_id, facts.pad_id
        self.start = list(facts.decoder_start) if self.memory else [self.pad]
        self.tempered, self.full_logits = facts.tempered_log_probs, facts.full_logits
        self.beams: int | None = parameters.get("served_beam_width")
        self.excludes = bool(parameters.get("exclude_input_in_output", True))
        self.accumulate = bool(parameters.get("accumulate_tokens", False))
        self.skip_special = bool(parameters.get("skip_special_tokens", True))
        self.tokenizer = TextTokenizer.load(bundle / FOLDER)

    def preprocess(self, inputs: Given) -> Arrays:
        """`preprocessing`: from strings [rows, 1] to ids int32 [rows, longest] with lengths, word lists int32
        [rows, 2, n] and embedding bias.

        Raises:
            BadRequest: a text that is too long for the model, or an input that no text model takes.
        """
        _refuse(inputs, NO_TEXT)
        rows = [self._read(text) for text in _strings(inputs, "QUERY")]
        starts = [self._started(text) for text in _strings(inputs, "DECODER_QUERY") or [""] * len(rows)]
        longest = inputs["REQUEST_OUTPUT_LEN"].reshape(-1, 1)
        for row, start, tokens in zip(rows, starts, longest.ravel().tolist(), strict=True):
            self._fits(row, start, tokens)
        # As TensorRT-LLM does (GenericLlmRequest::validate): what does not fit behind the prompt is not asked
        # for.
        room = [
            [self.positions - len(start if self.memory else row)]
            for row, start in zip(rows, starts, strict=True)
        ]
        longest = np.minimum(longest, np.array(room, np.int32))
        return {
            "INPUT_ID": _padded(rows, self.pad),
            "REQUEST_INPUT_LEN": _lengths(rows),
            "DECODER_INPUT_ID": _padded(starts, self.pad),
            "REQUEST_DECODER_INPUT_LEN": _lengths(starts),
            "BAD_WORDS_IDS": self._word_lists(inputs, "BAD_WORDS_DICT", len(rows)),
            "STOP_WORDS_IDS": self._word_lists(inputs, "STOP_WORDS_DICT", len(rows)),
            "EMBEDDING_BIAS": self._bias_words(inputs, len(rows)),
            "REQUEST_OUTPUT_LEN": longest.astype(np.int32),
            "OUT_END_ID": _filled(inputs, "END_ID", self.end, len(rows)),
            "OUT_PAD_ID": _filled(inputs, "PAD_ID", self.pad, len(rows)),
            "OUT_PROMPT_TABLE_EXTRA_IDS": np.zeros((len(rows), 0), np.uint64),
        }

    def postprocess(
        self,
        tokens: NDArray[np.int32],
        lengths: NDArray[np.int32],
        stop_words: NDArray[np.int32] | None = None,
    ) -> NDArray[Any]:
        """`postprocessing`: from ids [rows, beams, longest] and lengths [rows, beams] to texts, bytes in a
        flat object array [rows x beams], as upstream's postprocessing gives them: its clients read them so.

        `stop_words` int32 [rows, 2, n]: a text ends before one of its row.
        """
        if (
            lengths.shape != tokens.shape[:2]
            or (lengths < 0).any()
            or (tokens[np.arange(tokens.shape[2]) < lengths[..., None]] < 0).any()
        ):
            raise BadRequest(
                f"TOKENS_BATCH {list(tokens.shape)} and SEQUENCE_LENGTH {list(lengths.shape)} do not fit, or "
                "have negative values; send what tensorrt_llm gave"
            )
        if stop_words is not None:
            lengths = trimmed(tokens, lengths, [words_in(own) for own in stop_words])
        texts = [
            [self._text(ids[:count]) for ids, count in zip(row, own, strict=True)]
            for row, own in zip(tokens, lengths, strict=True)
        ]
        return _objects([text for row in texts for text in row])

    def complete(self, inputs: Given, engine: Engine) -> Iterator[Arrays]:
        """`tensorrt_llm_bls`: all rows in one request to the engine, one dictionary of output arrays; while
        streaming, one for each of its responses.

        A stream of one sequence gives what is new, or with `accumulate_tokens` the text so far; a stream of
        beams always gives the texts so far.

        Raises:
            BadRequest: what was sent cannot be served.
        """
        streaming, top, beams = _flag(inputs, "stream"), self._top(inputs), _number(inputs, "beam_width", 1)
        request = self._request(inputs, top)
        if streaming and len(request["input_ids"]) > 1:
            raise BadRequest(
                f"a stream takes one text, text_input has {len(request['input_ids'])}; send one request for "
                "each"
            )
        logits = "return_generation_logits" in request
        if beams == 1 and streaming:
            accumulate = (
                _flag(inputs, "accumulate_tokens") if "accumulate_tokens" in inputs else self.accumulate
            )
            results = self._growing(engine(request, True), request, accumulate=accumulate)
        elif beams == 1 and top is not None and logits and self.full_logits:
            results = iter([merge([self._gathered(row, engine) for row in split(request)])])
        else:
            refuse_logits(request, self.vocabulary)
            results = self._whole(engine(request, streaming), request)
        for result in results:
            yield (
                result
                if top is None or "output_ids" not in result
                else self._chosen(result, request, top, with_logits=_flag(inputs, "return_generation_logits"))
            )

    def _request(self, inputs: Given, top: int | None) -> Arrays:
        """The engine's request."""
        _refuse(inputs, (*NO_ENGINE, *(name for name in NO_DRAFT if name in inputs and inputs[name].any())))
        refuse_samples(inputs)
        refuse_beams(inputs, self.beams)
        given = self.preprocess(
            {PREPROCESSED[name]: array for name, array in inputs.items() if name in PREPROCESSED}
        )
        rows = len(given["INPUT_ID"])
        request = {ENGINE[name]: array for name, array in given.items() if name in ENGINE and array.size}
        request |= {
            FORWARDED[name]: array.reshape(rows, -1) if array.ndim < 2 else array
            for name, array in inputs.items()
            if name in FORWARDED
        }
        request |= self._bias_ids(inputs, request.get("embedding_bias"), rows)
        if self.memory:
            request.pop(
                "exclude_input_in_output", None
            )  # an answer never holds what the encoder read, nor the decoder's start
        return request | ({} if top is None else self._asked_for(request, top, rows))

    def _whole(self, results: Iterator[Arrays], request: Arrays) -> Iterator[Arrays]:
        words = [words_in(own) for own in request["stop_words_list"]]
        for result in results:
            lengths = trimmed(result["output_ids"], result["sequence_length"], words)
            found = {
                **result,
                "sequence_length": lengths,
                "text_output": self.postprocess(result["output_ids"], lengths),
            }
            yield found | self._counts(request, (lengths - self._repeated(request)).sum(1, keepdims=True))

    def _repeated(self, request: Arrays) -> NDArray[np.int32]:
        """How many ids of each answer are the text that was read, int32 [rows, 1]: a decoder alone may repeat
        it.
        """
        lengths = request["input_lengths"].reshape(-1, 1)
        excluded = request.get("exclude_input_in_output", np.full(lengths.shape, self.excludes)).reshape(
            -1, 1
        )
        return np.where(excluded | bool(self.memory) | _flag(request, "streaming"), 0, lengths).astype(
            np.int32
        )

    @staticmethod
    def _counts(request: Arrays, written: NDArray[Any]) -> Arrays:
        """Tokens that were read and written, int32 [rows, 1] each: counted here, since not every release of
        TensorRT-LLM does.
        """
        return {
            "num_input_tokens": request["input_lengths"].reshape(-1, 1),
            "num_output_tokens": written.astype(np.int32),
        }

    def _growing(self, results: Iterator[Arrays], request: Arrays, *, accumulate: bool) -> Iterator[Arrays]:
        text, written = GrowingText(self.tokenizer, skip_special=self.skip_special), 0
        stop = StopFilter(words_in(request["stop_words_list"][0]))
        for result in results:
            shown = stop.add(_said(result))
            written += len(shown)
            piece = text.add([said.token for said in shown])
            kept = {name: array for name, array in result.items() if name not in BY_TOKEN}
            texts = {"text_output": _objects([text.so_far if accumulate else piece])}
            yield kept | _arrays(shown, result) | texts | self._counts(request, np.array([[written]]))
        shown = stop.rest()
        piece = text.add([said.token for said in shown]) + text.rest()
        if shown or piece:
            texts = {"text_output": _objects([text.so_far if accumulate else piece])}
            yield (
                (_arrays(shown, {}) if shown else {})
                | texts
                | self._counts(request, np.array([[written + len(shown)]]))
            )

    def _gathered(self, row: Arrays, engine: Engine) -> Arrays:
        """One text with the logits of each token, by way of a stream: in one response they would be those of
        every token that was allowed.
        """
        row = {**row, "streaming": np.array([[True]])}
        parts = list(self._growing(engine(row, True), row, accumulate=False))
        by_token = {
            name: np.concatenate([part[name] for part in parts if name in part], 2)
            for name in BY_TOKEN
            if name in parts[0]
        }
        length = np.array([[by_token["output_ids"].shape[2]]], np.int32)
        whole = _objects([b"".join(part["text_output"].item() for part in parts)])
        return {**parts[-1], **by_token, "sequence_length": length, "text_output": whole}

    def _read(self, text: str) -> list[int]:
        """GPT-2 begins a text with its end-of-text token where there is nothing else to begin with.

        Raises:
            BadRequest: certainly too long; tokenizing it would hold up everybody else.
        """
        most = LONGEST_TOKEN * (self.memory or self.positions)
        if len(text) > most:
            raise BadRequest(
                f"the text has {len(text)} characters, this model reads {self.memory or self.positions} "
                "tokens; shorten it"
            )
        return self.tokenizer.ids(text) or [self.end]

    def _started(self, text: str) -> list[int]:
        if len(text) > LONGEST_TOKEN * self.positions:
            raise BadRequest(
                f"the decoder's prompt has {len(text)} characters, this model has {self.positions} "
                "positions; shorten it"
            )
        return self.start + (self.tokenizer.ids(text, special=False) if text and self.memory else [])

    def _fits(self, row: Sequence[int], start: Sequence[int], tokens: int) -> None:
        if self.memory and len(row) > self.memory:
            raise BadRequest(
                f"the text has {len(row)} tokens, this model reads at most {self.memory}; shorten it"
            )
        before, name = (start, "the decoder's prompt") if self.memory else (row, "the text")
        if len(before) >= self.positions:
            raise BadRequest(
                f"{name} has {len(before)} tokens, this model has {self.positions} positions; shorten it"
            )
        if tokens < 1:
            raise BadRequest(f"max_tokens is {tokens}; it must be 1 at least")

    def _word_lists(self, inputs: Given, name: str, rows: int) -> NDArray[np.int32]:
        """Int32 [rows, 2, n]."""
        words = inputs[name].reshape(rows, -1).tolist() if name in inputs else [[]] * rows
        if (size := sum(len(word) for row in words for word in row)) > LONGEST_WORDS:
            raise BadRequest(f"{name} has {size} bytes; send {LONGEST_WORDS} at most")
        lists = [self.tokenizer.word_list([_text(word, name) for word in row]) for row in words]
        longest = max(one.shape[1] for one in lists)
        return np.stack(
            [np.pad(one, [(0, 0), (0, longest - one.shape[1])], constant_values=-1) for one in lists]
        )

    def _bias_words(self, inputs: Given, rows: int) -> NDArray[np.float32]:
        """Float32 [rows, vocabulary]: each word's weight on all its ids; [rows, 0] without words."""
        names, weights = inputs.get("EMBEDDING_BIAS_WORDS"), inputs.get("EMBEDDING_BIAS_WEIGHTS")
        if names is None or not names.size or not any(names.ravel().tolist()):
            return np.zeros((rows, 0), np.float32)
        if weights is None or weights.size != names.size:
            raise BadRequest(
                f"embedding_bias_words has {names.size} words, embedding_bias_weights "
                f"{0 if weights is None else weights.size}; send one for each"
            )
        bias = np.zeros((rows, self.vocabulary), np.float32)
        for row, words, own in zip(bias, names.reshape(rows, -1), weights.reshape(rows, -1), strict=True):
            for word, weight in zip(words, own, strict=True):
                row[self.tokenizer.ids(_text(word, "EMBEDDING_BIAS_WORDS"), special=False)] += weight
        return bias

    def _bias_ids(self, inputs: Given, words: NDArray[np.float32] | None, rows: int) -> Arrays:
        """Embedding bias by token id, on top of that by words."""
        ids, weights = inputs.get("logit_bias_ids"), inputs.get("logit_bias_weights")
        if ids is None or not ids.size:
            return {}
        if weights is None or weights.size != ids.size:
            raise BadRequest(
                f"logit_bias_ids has {ids.size} ids, logit_bias_weights "
                f"{0 if weights is None else weights.size} weights; send one for each"
            )
        if ((ids < 0) | (ids >= self.vocabulary)).any():
            raise BadRequest(f"logit_bias names a token outside 0 to {self.vocabulary - 1}")
        bias = np.zeros((rows, self.vocabulary), np.float32) if words is None else words
        for row, own, values in zip(bias, ids.reshape(rows, -1), weights.reshape(rows, -1), strict=True):
            np.add.at(row, own, values)
        return {"embedding_bias": bias}

    @staticmethod
    def _top(inputs: Given) -> int | None:
        if "top_log_probs" not in inputs:
            return None
        wanted = _number(inputs, "top_log_probs", 0)
        if (inputs["top_log_probs"] != wanted).any():
            raise BadRequest("top_log_probs differs between the texts of one request; send them apart")
        if not 0 <= wanted <= MOST_TOP_LOG_PROBS:
            raise BadRequest(f"top_log_probs is {wanted}; it must be 0 to {MOST_TOP_LOG_PROBS}")
        return wanted

    def _asked_for(self, request: Arrays, top: int, rows: int) -> Arrays:
        """What the likeliest tokens are made from. There are logits for what is new only, so the prompt
        cannot be among the tokens.
        """
        if "exclude_input_in_output" in request and not request["exclude_input_in_output"].all():
            raise BadRequest(
                "top_log_probs needs exclude_input_in_output=true: there are none for the prompt"
            )
        logits = top or (
            self.tempered
            and any(name in request for name in TEMPERING)
            and _number(request, "beam_width", 1) == 1
        )
        names = [
            "return_log_probs",
            *(["return_generation_logits"] if logits else []),
            *([] if self.memory else ["exclude_input_in_output"]),
        ]
        return {name: np.ones((rows, 1), bool) for name in names}

    def _chosen(self, result: Arrays, request: Arrays, top: int, *, with_logits: bool) -> Arrays:
        """The tokens of a response besides, and with `top` the likeliest at each place: [rows, beams,
        longest] and [rows, beams, longest, top].

        Log probabilities are those that the model gave, with the request's own bias, whatever made a token
        chosen.
        """
        ids = np.maximum(result["output_ids"], 0)
        tokens: Arrays = {
            "output_token_ids": ids,
            "output_tokens": self._pieces(ids),
            "output_lengths": result["sequence_length"],
        }
        if "generation_logits" not in result:
            return result | tokens
        logits = result["generation_logits"][
            :, :, : ids.shape[2], : self.vocabulary
        ]  # an engine may fill its vocabulary up
        if self.tempered and "embedding_bias" in request:
            logits = (
                logits + request["embedding_bias"][:, None, None]
            )  # TensorRT-LLM's logits are those before the bias
        probs = (
            log_softmax(logits.astype(np.float32))
            if logits.size
            else np.zeros((*ids.shape, self.vocabulary), np.float32)
        )
        if self.tempered and _number(request, "beam_width", 1) == 1:
            tokens["output_log_probs"] = np.take_along_axis(probs, ids[..., None], -1)[..., 0].astype(
                np.float32
            )
        kept = {
            name: array for name, array in result.items() if with_logits or name != "generation_logits"
        } | tokens
        if not top:
            return kept
        best = np.argsort(-probs, axis=-1, kind="stable")[..., :top].astype(np.int32)
        likely = {
            "top_tokens": self._pieces(best),
            "top_token_log_probs": np.take_along_axis(probs, best, -1).astype(np.float32),
        }
        return kept | likely

    def _pieces(self, ids: NDArray[np.int32]) -> NDArray[Any]:
        out = np.empty(ids.size, object)
        out[:] = [self.tokenizer.piece(int(i)).encode() for i in ids.ravel()]
        return out.reshape(ids.shape)

    def _text(self, ids: NDArray[np.int32]) -> bytes:
        return self.tokenizer.text(ids.tolist(), skip_special_tokens=self.skip_special).encode()


def _said(result: Arrays) -> list[Said]:
    """The new tokens of one response of a stream of one sequence. TensorRT-LLM's logits are [1, tokens,
    beams, vocabulary] there.
    """
    count = int(result["sequence_length"].item())
    ids = result["output_ids"].ravel()[:count].tolist()
    probs = (
        newest(result["output_log_probs"], count).tolist() if "output_log_probs" in result else [None] * count
    )
    logits = result.get("generation_logits")
    rows = [None] * count if logits is None else list(logits.reshape(-1, logits.shape[-1])[:count])
    return [Said(*one) for one in zip(ids, probs, rows, strict=True)]


def _arrays(shown: Sequence[Said], like: Mapping[str, Any]) -> Arrays:
    """Arrays of the tokens of one sequence; which ones, their own say, or where there are none those of the
    response `like`.
    """
    count = len(shown)
    found: Arrays = {
        "output_ids": np.array([said.token for said in shown], np.int32)[None, None],
        "sequence_length": np.array([[count]], np.int32),
    }
    if "output_log_probs" in like or (shown and shown[0].log_prob is not None):
        found["output_log_probs"] = np.array([said.log_prob for said in shown], np.float32)[None, None]
    if shown and shown[0].logits is not None:
        found["generation_logits"] = np.stack([said.logits for said in shown if said.logits is not None])[
            None, None
        ]
    elif "generation_logits" in like:
        found["generation_logits"] = np.zeros((1, 1, 0, like["generation_logits"].shape[-1]), np.float32)
    return found


def _refuse(inputs: Given, names: Sequence[str]) -> None:
    for name in names:
        if name in inputs and inputs[name].size:
            raise BadRequest(f"{name} is not an input of text models; leave it out")


def _strings(inputs: Given, name: str) -> list[str]:
    return [_text(text, name) for text in inputs[name].ravel().tolist()] if name in inputs else []


def _text(raw: bytes, name: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"{name} is not UTF-8 at byte {error.start}; send UTF-8") from error


def _number(inputs: Given, name: str, default: int) -> int:
    return int(inputs[name].ravel()[0]) if name in inputs and inputs[name].size else default


def _flag(inputs: Given, name: str) -> bool:
    return bool(_number(inputs, name, 0))


def _padded(rows: Sequence[Sequence[int]], pad: int) -> NDArray[np.int32]:
    longest = max(len(row) for row in rows)
    return np.array([[*row, *[pad] * (longest - len(row))] for row in rows], np.int32)


def _lengths(rows: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    return np.array([[len(row)] for row in rows], np.int32)


def _filled(inputs: Given, name: str, value: int, rows: int) -> NDArray[np.int32]:
    return (
        inputs[name].reshape(rows, 1).astype(np.int32)
        if name in inputs and inputs[name].size
        else np.full((rows, 1), value, np.int32)
    )


def _objects(texts: Sequence[str | bytes]) -> NDArray[Any]:
    """Triton's strings: an object array [n] of UTF-8 bytes."""
    out = np.empty(len(texts), object)
    out[:] = [text.encode() if isinstance(text, str) else text for text in texts]
    return out
