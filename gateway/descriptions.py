"""Descriptions of request fields for OpenAPI, by name, or by schema and name where routes differ."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

FIELDS = {
    # All routes.
    "model": "id of a served model, an alias, or an OpenAI model name",
    "stream": "send the answer as server-sent events while it is generated",
    "stream_options": "`include_usage`: the last event has token counts",
    "temperature": "sampling temperature; 0 is greedy",
    # Audio.
    "file": "the recording, in any container that FFmpeg reads",
    "language": "language of the speech: a BCP 47 or ISO 639 code, an English name, or auto",
    "languages": "languages that detection chooses among",
    "response_format": "format of the answer",
    "prompt": "text that precedes the recording",
    "CompletionRequest.prompt": "text to continue, or a list of texts",
    "keywords": "names and terms that are likely to occur, spelled as wanted",
    "timestamp_granularities": "timestamps of segments, words or both, in verbose_json",
    "include": "logprobs: log probabilities of the tokens, in json",
    "chunking_strategy": "where a recording is cut",
    "AttachRequest.chunking_strategy": "size and overlap of chunks, in tokens",
    "BatchRequest.chunking_strategy": "size and overlap of chunks, in tokens",
    "CreateStore.chunking_strategy": "size and overlap of chunks, in tokens",
    "condition_on_previous_text": "transcribe windows in turn, each with the previous text as context",
    "multilingual": "detect the language in every window",
    "max_tokens": "maximum tokens of the answer",
    "TranscriptionRequest.max_tokens": "maximum tokens of each window",
    "TranslationRequest.max_tokens": "maximum tokens of each window",
    "beam_width": "beams per window; the default is the model's own",
    "audio_track": "audio track of the file, from 1; the default is the one that a player plays",
    "diarize": "label speakers in verbose_json, srt and vtt",
    "num_speakers": "number of speakers, if known",
    "min_speakers": "minimum number of speakers",
    "max_speakers": "maximum number of speakers",
    "known_speaker_names": "names of known speakers, in the order of their references",
    "known_speaker_references": "a data URL with 2 to 10 s of each known speaker",
    # Text.
    "messages": "the conversation",
    "input": "the conversation: a text or items",
    "EmbeddingsRequest.input": "texts, token ids or content parts to embed",
    "instructions": "system message in front of the conversation",
    "frequency_penalty": "penalty for tokens, by how often they were generated",
    "presence_penalty": "penalty for tokens that were generated",
    "repetition_penalty": "divisor of the logits of tokens in prompt and text",
    "length_penalty": "exponent of the length in the ranking of beams",
    "logit_bias": "numbers that are added to the logits, by token id",
    "n": "number of answers per prompt",
    "best_of": "number of beams, of which the best `n` are returned",
    "seed": "the same seed and request give the same text",
    "stop": "stop sequences",
    "bad_words": "texts that are never generated",
    "top_p": "sample from the likeliest tokens of this total probability",
    "top_k": "sample from this many of the likeliest tokens; 0: all",
    "min_tokens": "minimum tokens of the answer",
    "echo": "repeat the prompt before the answer",
    "suffix": "not supported",
    "logprobs": "return log probabilities of tokens",
    "CompletionRequest.logprobs": "return log probabilities of tokens and of this many alternatives",
    "top_logprobs": "number of alternatives with log probabilities per token",
    "max_completion_tokens": "the same as max_tokens",
    "max_output_tokens": "maximum tokens of the answer",
    "tools": "functions that the model may call",
    "tool_choice": "auto, none, required, or the function that must be called",
    "parallel_tool_calls": "allow several calls in one answer",
    "chat_template_kwargs": "variables of the model's chat template, such as enable_thinking",
    "reasoning_effort": "for models that can reason before they answer: none turns it off",
    "reasoning": "`effort`: none turns off reasoning where the model can do without",
    "text": "`format`: text, json_object or json_schema",
    # Embeddings.
    "dimensions": "size of the vectors: the model's own",
    "encoding_format": "vectors as lists of numbers or base64 of little-endian float32",
    "truncate": "truncate long inputs instead of refusing them",
    "token_ids": "`model`: `input` has ids of the model's own tokenizer",
    # Files, vector stores and search.
    "after": "list items after this id",
    "before": "list items before this id",
    "limit": "maximum number of items",
    "order": "by time of creation: asc or desc",
    "purpose": "purpose of the files",
    "filter": "status of the files",
    "name": "name of the store",
    "description": "description of the store",
    "metadata": "up to 16 texts by name",
    "expires_after": "lifetime of the client secret in seconds",
    "CreateStore.expires_after": "not supported",
    "StoreFields.expires_after": "not supported",
    "file_ids": "files, by id",
    "files": "files with individual options",
    "file_id": "id of a file",
    "store_id": "id of a vector store",
    "batch_id": "id of a batch",
    "attributes": "up to 16 texts, numbers or booleans by name, for filters",
    "embedding_models": "models that embed the store's texts and pictures",
    "query": "what to search for: texts, or parts with a picture",
    "question": "about the picture in `query`; a model's answer becomes the query",
    "filters": "conditions on attributes",
    "max_num_results": "maximum number of results",
    "ranking_options": "`score_threshold`: the minimum score of a result",
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
            field = name.removesuffix("[]")
            text = FIELDS.get(f"{schema.get('title')}.{field}") or FIELDS.get(field)
            if isinstance(row, dict) and text:
                row.setdefault("description", text)
        if "in" in schema and (text := FIELDS.get(schema.get("name", ""))):
            schema.setdefault("description", text)
        for one in schema.values():
            describe(one)
