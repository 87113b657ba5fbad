"""Bodies of the text routes as typed requests. OpenAI's fields that these models cannot support are refused
by name, never ignored.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from conch.deployment import Pool
from conch.errors import refused, too_long
from conch.pictures import MOST_PICTURES

from ..fields import Fields, Json, Only, Text
from ..vision.parts import ImagePart
from .tools import CalledTool, ResponseFormat, Tool, ToolChoice

MOST_TEXTS = 64  # completions of one request: prompts times n
MOST_WORDS = 1000  # bad words of one request; each is looked at after every token
LONGEST_STOP = 1000  # characters of a stop sequence; the text is searched for it after every token
LONGEST_WORDS = 32_768  # characters of all bad words together
# Bytes of the longest token of GPT-2's vocabulary; a text of more than so many times the limit is too long.
LONGEST_TOKEN = 128


def _token_id(text: str) -> str:
    if not (text.isascii() and text.isdecimal() and len(text) <= 7):
        raise ValueError(f"{text[:40]!r} is not a token id; send ids as the tokenizer gives them")
    return text


# Lists stop at their first fault: a large one with many would be as many errors, and none of them is shown
# but the first.
Texts = Annotated[list[Text], Field(fail_fast=True)]
Ids = Annotated[list[int], Field(fail_fast=True)]
TokenId = Annotated[str, AfterValidator(_token_id)]


class StreamOptions(Fields):
    """OpenAI's stream_options."""

    HARMLESS: ClassVar = frozenset({"continuous_usage_stats"})

    include_usage: bool = False
    include_obfuscation: bool = False


# OpenAI's for billing and caches: they change no answer.
BILLING = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)


class Generation(Fields):
    """Fields that both routes share. Those from `bad_words` on are extensions, under TensorRT-LLM's names."""

    # OpenAI's for its own models' style; vLLM's, llama.cpp's and Ollama's for caches.
    HARMLESS: ClassVar = BILLING | {"cache_prompt", "keep_alive", "prediction", "priority", "verbosity"}
    NEUTRAL: ClassVar = {
        "ignore_eos": Only((False,), "is not supported; omit it, and use min_tokens"),
        "include_stop_str_in_output": Only((False,), "is not supported; omit it"),
        "min_p": Only((0,), "is not supported; omit it, and use top_p or top_k"),
        "mirostat": Only((0,), "is not supported; omit it"),
        "moderation": Only((), "is not supported: this server does not moderate; omit it"),
        "skip_special_tokens": Only((True,), "must be true; omit it"),
        "spaces_between_special_tokens": Only((True, False), ""),
        "typical_p": Only((1,), "is not supported; omit it, and use top_p"),
        "use_beam_search": Only((False,), "is not supported; omit it, and use best_of at /v1/completions"),
    }

    model: str
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    n: int = Field(1, ge=1, le=MOST_TEXTS)
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: Text | Texts | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0.0, le=2.0)
    top_p: float | None = Field(None, ge=0.0, le=1.0)
    bad_words: Text | Texts | None = None
    top_k: int | None = Field(None, ge=0, lt=2**31)
    min_tokens: int | None = Field(None, ge=0)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100.0)
    length_penalty: float | None = Field(None, ge=-10.0, le=10.0)

    @property
    def beams(self) -> int:
        """Return the number of beams."""
        return 1

    @property
    def stops(self) -> list[str]:
        """Return the stop sequences."""
        return words(self.stop)


class CompletionRequest(Generation):
    """Body of /v1/completions."""

    HARMLESS: ClassVar = Generation.HARMLESS | {"reasoning_effort"}

    prompt: Text | Texts | Ids | Annotated[list[Ids], Field(fail_fast=True)]
    best_of: int | None = Field(None, ge=1, le=16)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=5)
    max_tokens: int = Field(16, ge=1)
    suffix: str | None = None

    @property
    def beams(self) -> int:
        """Return the number of beams."""
        return self.best_of or 1

    @property
    def prompts(self) -> list[str]:
        """Return the prompts.

        Raises:
            ApiError: 400 for token ids, an empty list, or one that is too long.
        """
        prompts = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if not prompts:
            raise refused("prompt", "is an empty list; send at least one text")
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if len(texts) < len(prompts):
            raise refused("prompt", "must be text; token ids are not supported")
        return texts


class TextPart(Fields):
    """A piece of a message's content."""

    HARMLESS: ClassVar = frozenset({"prompt_cache_breakpoint"})

    type: Literal["text"]
    text: Text


Part = Annotated[TextPart | ImagePart, Field(discriminator="type")]


class Message(Fields):
    """One message of a conversation; an earlier answer may be sent back unchanged."""

    HARMLESS: ClassVar = frozenset({"annotations", "id", "status"})
    NEUTRAL: ClassVar = {
        "audio": Only((), "of a message is not supported; send its text"),
        "function_call": Only((), "of a message is not supported; send it as tool_calls"),
        "refusal": Only(("",), "of a message is not supported; send it as content"),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[Part], Field(fail_fast=True)] = ""
    name: Text | None = None
    tool_calls: Annotated[list[CalledTool], Field(fail_fast=True)] = Field(default_factory=list)
    tool_call_id: Text | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None  # the same, as vLLM names it

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if "content" not in self.model_fields_set and not self.tool_calls:
            raise ValueError("content is missing; only an assistant's message with tool_calls may be without")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls belong to role assistant, not {self.role}")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("a message of role tool has tool_call_id, the id of the call that it answers")
        return self

    @property
    def text(self) -> str:
        """Return the content as one text, without pictures."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def parts(self) -> list[TextPart | ImagePart]:
        """Return the content in parts."""
        return [TextPart(type="text", text=self.content)] if isinstance(self.content, str) else self.content

    @property
    def pictures(self) -> list[str]:
        """Return the URLs of its pictures."""
        return [part.image_url.url for part in self.parts if isinstance(part, ImagePart)]


class ChatRequest(Generation):
    """Body of /v1/chat/completions."""

    NEUTRAL: ClassVar = {
        **Generation.NEUTRAL,
        "add_generation_prompt": Only((True,), "must be true; omit it"),
        "audio": Only((), "is not supported: answers are text; omit it"),
        "best_of": Only((1,), "is not supported in a chat; use n"),
        "function_call": Only(("none", "auto"), "is not supported; use tool_choice"),
        "functions": Only(([],), "are not supported; send them as tools"),
        "modalities": Only((["text"],), 'must be ["text"]; omit it'),
        "web_search_options": Only((), "is not supported: this server does not search the web; omit it"),
    }

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    tools: Annotated[list[Tool], Field(fail_fast=True)] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Text | None = None
    chat_template_kwargs: Json | None = None  # vLLM's: what the model's chat template knows besides


def words(given: str | list[str] | None) -> list[str]:
    """Return a list of one word, several or none."""
    return [] if given is None else [given] if isinstance(given, str) else given


def check(form: Generation, texts: int, tokens: int, pool: Pool) -> None:
    """Check what holds for every text route and needs no tokenizer.

    Raises:
        ApiError: 400 with `param`.
    """
    if texts > MOST_TEXTS:
        raise refused("n", f"times the number of prompts is {texts}; it must be at most {MOST_TEXTS}")
    if tokens >= pool.positions:
        raise refused(
            "max_tokens",
            f"is {tokens}; {pool.model_id} has {pool.positions} positions, so it must be below that",
        )
    if form.min_tokens and form.min_tokens > tokens:
        raise refused(
            "min_tokens", f"is {form.min_tokens}, but max_tokens is {tokens}; it must not be larger"
        )
    if len(form.stops) > 4 or not all(form.stops):
        raise refused("stop", "must be one to four non-empty strings")
    if any(len(stop) > LONGEST_STOP for stop in form.stops):
        raise refused("stop", f"has a sequence of more than {LONGEST_STOP} characters; shorten it")
    if sum(map(len, words(form.bad_words))) > LONGEST_WORDS:
        raise refused(
            "bad_words", f"has more than {LONGEST_WORDS} characters in all; send fewer or shorter words"
        )
    if not all(words(form.bad_words)):
        raise refused("bad_words", "has an empty word; remove it")
    if (count := len(words(form.bad_words))) > MOST_WORDS:
        raise refused("bad_words", f"has {count} words; send {MOST_WORDS} at most")
    if form.stream_options and not form.stream:
        raise refused("stream_options", "requires stream=true")


def check_completion(form: CompletionRequest) -> None:
    """Refuse what /v1/completions cannot do.

    Raises:
        ApiError: 400 with `param`.
    """
    if form.suffix:
        raise refused("suffix", "(fill-in-the-middle) is not supported by these models; omit it")
    if form.best_of is not None and form.best_of < form.n:
        raise refused("best_of", f"is {form.best_of}; it must be at least n ({form.n})")
    if form.beams > 1 and form.stream:
        raise refused("best_of", "cannot be combined with stream=true; omit one")
    if form.beams > 1 and form.temperature:
        raise refused(
            "best_of", "above n is a beam search, which cannot be combined with temperature; omit one"
        )
    if form.echo and form.logprobs is not None:
        raise refused("echo", "cannot be combined with logprobs, which do not cover the prompt; omit one")


def check_chat(form: ChatRequest) -> None:
    """Refuse what /v1/chat/completions cannot do.

    Raises:
        ApiError: 400 with `param`.
    """
    if form.top_logprobs is not None and not form.logprobs:
        raise refused("top_logprobs", "requires logprobs=true")
    if form.max_tokens and form.max_completion_tokens:
        raise refused("max_tokens", "cannot be combined with max_completion_tokens, its newer name; omit one")


def pictures_of(form: ChatRequest, pool: Pool) -> list[str]:
    """Return the URLs of a conversation's pictures in order.

    Raises: ApiError: 400 with `param`: for a model that takes text only, and where only a user's
    messages may have pictures.
    """
    for number, message in enumerate(form.messages):
        if message.pictures and "pictures" not in pool.capabilities:
            raise refused(
                "messages", f"[{number}] has a picture; {pool.model_id} takes text only; omit the picture"
            )
        if message.pictures and message.role != "user":
            reason = f"[{number}] has role {message.role}; pictures are supported in user messages only"
            raise refused("messages", reason)
    found = [url for message in form.messages for url in message.pictures]
    if len(found) > MOST_PICTURES:
        raise refused("messages", f"contain {len(found)} pictures; send at most {MOST_PICTURES}")
    if (count := form.n * len(found)) > MOST_PICTURES:
        raise refused("n", f"times the number of pictures is {count}; it must be at most {MOST_PICTURES}")
    return found


def check_lengths(prompts: list[str], pool: Pool, param: str) -> None:
    """Refuse texts that are certainly too long; `preprocessing`, which counts tokens, checks the rest.

    Raises:
        ApiError: 400 with `param`.
    """
    most = LONGEST_TOKEN * max(pool.positions, pool.encoder_positions)
    for prompt in prompts:
        if (size := len(prompt.encode())) > most:
            reason = f"{pool.model_id} reads {pool.reads} tokens, which are {most} bytes at most; shorten it"
            raise too_long(param, f"{param} has {size} bytes; {reason}")
