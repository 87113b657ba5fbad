"""Descriptions of request fields for OpenAPI. A name means the same on every route."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

FIELDS = {
    # All routes.
    "model": "id of a served model, an alias, or one of OpenAI's names",
    "stream": "send the answer as server-sent events while it is made",
    "stream_options": "`include_usage`: the last event counts tokens",
    "temperature": "0: the likeliest; higher values choose more freely",
    # Audio.
    "file": "the recording, in any container that FFmpeg reads",
    "language": "language of the speech: a BCP 47 or ISO 639 code, an English name, or auto",
    "languages": "languages that detection chooses among",
    "response_format": "form of the answer",
    "prompt": "earlier text; for completions: what the text goes on from",
    "keywords": "names and words that are likely to occur, with their spelling",
    "timestamp_granularities": "times of segments, words or both, in verbose_json",
    "include": "logprobs: log probabilities of the tokens, in json",
    "chunking_strategy": "where a recording is cut, or a text for search",
    "condition_on_previous_text": "transcribe one window after another, each with the text before it",
    "multilingual": "detect the language again in every window",
    "max_tokens": "most tokens of the answer; for audio: of each window",
    "beam_width": "beams of each window; the default is the model's own",
    "audio_track": "audio track of the file, from 1; the default is the one that a player takes",
    "diarize": "tell speakers apart in verbose_json, srt and vtt",
    "num_speakers": "number of speakers, where it is known",
    "min_speakers": "least number of speakers",
    "max_speakers": "greatest number of speakers",
    "known_speaker_names": "names of known speakers, in the order of their references",
    "known_speaker_references": "a data URL with 2 to 10 s of each known speaker",
    # Text.
    "messages": "the conversation",
    "input": "texts to embed, or the conversation of a response",
    "instructions": "system message in front of the conversation",
    "frequency_penalty": "lowers tokens by how often the text has them",
    "presence_penalty": "lowers tokens that the text has",
    "repetition_penalty": "divides the logits of tokens that the text has",
    "length_penalty": "exponent of the length by which beams are ranked",
    "logit_bias": "token id to a number that is added to its logit",
    "n": "answers for each prompt",
    "best_of": "beams, of which the best `n` are returned",
    "seed": "the same seed and request give the same text",
    "stop": "texts that end the answer",
    "bad_words": "texts that the answer must not have",
    "top_p": "choose among the likeliest tokens of this total probability",
    "top_k": "choose among this many of the likeliest tokens; 0: all",
    "min_tokens": "fewest tokens before the text may end",
    "echo": "repeat the prompt in front of the answer",
    "suffix": "text after the answer; no model here takes one",
    "logprobs": "log probabilities of the tokens; for completions also of so many alternatives",
    "top_logprobs": "alternatives of each token with their log probabilities",
    "max_completion_tokens": "the same as max_tokens",
    "max_output_tokens": "most tokens of the answer",
    "tools": "functions that the model may call",
    "tool_choice": "auto, none, required, or the function that must be called",
    "parallel_tool_calls": "allow several calls in one answer",
    "chat_template_kwargs": "variables of the model's chat template, such as enable_thinking",
    "text": "`format`: text, json_object or json_schema",
    # Embeddings.
    "dimensions": "size of the vectors; only the model's own",
    "encoding_format": "vectors as lists of numbers or base64 of little-endian float32",
    "truncate": "cut inputs that are too long instead of refusing them",
    "token_ids": "model: lists of ids are of the model's own tokenizer",
    # Files, vector stores and search.
    "after": "id after which the list begins",
    "before": "id before which the list ends",
    "limit": "most items of the list",
    "order": "by time of creation: asc or desc",
    "purpose": "purpose of the files",
    "filter": "state of the files",
    "name": "name of the store",
    "description": "description of the store",
    "metadata": "up to 16 texts by name",
    "expires_after": "of a client secret: seconds from now; stores do not expire",
    "file_ids": "files, by id",
    "files": "files with options of their own",
    "file_id": "id of a file",
    "store_id": "id of a vector store",
    "batch_id": "id of a batch",
    "attributes": "up to 16 texts, numbers or booleans by name, for filters",
    "embedding_models": "models that embed the store's texts and pictures",
    "query": "what to search for: texts, or parts with a picture",
    "question": "about the picture of `query`; the answer of a vision-language model is searched for",
    "filters": "conditions on attributes",
    "max_num_results": "most results",
    "ranking_options": "`score_threshold`: the least score of a result",
    "rewrite_query": "must be false",
    "session": "the live session that the key may open",
}


class Described(FastAPI):
    """An application whose OpenAPI document has a description for each field."""

    def openapi(self) -> dict[str, Any]:
        """Return the document."""
        if not self.openapi_schema:
            describe(super().openapi())
        return super().openapi()


def describe(schema: Any) -> None:
    """Add descriptions, in place, to the fields of an OpenAPI document that have none."""
    if isinstance(schema, list):
        for one in schema:
            describe(one)
    elif isinstance(schema, dict):
        for name, row in schema.get("properties", {}).items():
            if isinstance(row, dict) and (text := FIELDS.get(name.removesuffix("[]"))):
                row.setdefault("description", text)
        if "in" in schema and (text := FIELDS.get(schema.get("name", ""))):
            schema.setdefault("description", text)
        for one in schema.values():
            describe(one)
