"""POST /v1/completions, /v1/chat/completions and /v1/responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from conch.deployment import Pool
from conch.errors import ApiError, invalid, refused, too_long
from conch.pictures import MOST_URL_BYTES
from conch.tasks import end, results_of

from ..disconnect import cancel_on_disconnect
from ..errors import error_body
from ..metrics import StreamTimer
from ..services import Services, ServicesDep
from ..sse import streamed
from ..triton import call_id
from ..vision.fetching import data_urls
from .calls import Call, questions
from .chat import NO_TOOLS, calling_of, first_phase, guide_of, recommended, rendered, settings_of
from .filters import Phase
from .generator import TextDelta, stream, whole
from .item_writer import ResponseWriter
from .items import ResponseRequest, renamed
from .responses import ChatWriter, CompletionWriter, usage_of
from .schema import (
    ChatRequest,
    CompletionRequest,
    Generation,
    check,
    check_chat,
    check_completion,
    check_lengths,
    pictures_of,
)
from .tools import Calling

router = APIRouter()
# What the model's refusals begin with, where they are about something else than the text.
PARAMS = {
    "max_tokens": "max_tokens",
    "min_tokens": "min_tokens",
    "logit_bias": "logit_bias",
    "runtime_top_k": "top_k",
    "bad_words": "bad_words",
    "stop_words": "stop",
    "image_urls": "messages",
}
TOO_LONG = "shorten it"  # and what those end with that are about its length
GUIDE = "guided_decoding_guide"
PIECES = 64  # that wait for a slow reader; their streams wait, too


@dataclass
class GenerationRun:
    """One request: its calls, and the writer of its answers."""

    services: Services
    pool: Pool
    asked: list[Call]
    request_id: str
    written: CompletionWriter | ResponseWriter
    guided: str = "response_format"  # the field that a grammar comes from

    async def answers(self) -> list[TextDelta]:
        """Return every text in order. When one fails, the others are stopped.

        Raises:
            ApiError: the first failure.
        """
        triton, pool, name = self.services.triton, self.pool, self.request_id
        try:
            found = await results_of(
                whole(triton, pool, call, f"{name}.{i}") for i, call in enumerate(self.asked)
            )
        except ApiError as error:
            raise self._told(error) from None
        return [piece for pieces in found for piece in pieces]

    def _told(self, error: ApiError) -> ApiError:
        """Report an error in a grammar under the client's own field."""
        if error.status != 400 or not error.message.startswith(GUIDE):
            return error
        reason = error.message.removeprefix(GUIDE)
        return refused(self.guided, f"has a schema that answers cannot follow{reason}")

    def usage(self, answers: list[TextDelta]) -> dict[str, int]:
        """Return OpenAI's usage of complete answers, and count it."""
        usage = usage_of(answers, self.written.per_prompt)
        self.services.metrics.text_usage(
            self.pool.model_id, usage["prompt_tokens"], usage["completion_tokens"]
        )
        return usage

    async def pieces(self) -> AsyncGenerator[tuple[int, TextDelta], None]:
        """Yield all texts as they are generated, each piece with its text's number."""
        queue: asyncio.Queue[tuple[int, TextDelta] | Exception | None] = asyncio.Queue(PIECES)

        async def run(i: int, question: Call) -> None:
            try:
                async with aclosing(
                    stream(self.services.triton, self.pool, question, f"{self.request_id}.{i}")
                ) as found:
                    async for piece in found:
                        await queue.put((i, piece))
                await queue.put(None)
            except Exception as error:  # noqa: BLE001  # whatever went wrong must reach the queue's reader
                await queue.put(error)

        tasks = [asyncio.create_task(run(i, question)) for i, question in enumerate(self.asked)]
        try:
            running = len(tasks)
            while running:
                found = await queue.get()
                if isinstance(found, Exception):
                    raise found
                if found is None:
                    running -= 1
                else:
                    yield found
        finally:
            await end(tasks)

    async def events(self, *, usage: bool) -> AsyncGenerator[str, None]:
        """Yield server-sent events in OpenAI's shape. An error after the first is an event as well."""
        started, counts = False, dict[int, TextDelta]()
        timer = StreamTimer(self.services.metrics, self.pool.model_id)
        try:
            async with aclosing(self.pieces()) as found:
                async for i, piece in found:
                    timer.piece()
                    for chunk in self.written.chunks(i, piece):
                        started = True
                        yield self.written.line(chunk, usage=usage)
                    counts[i] = piece  # the last one counts
            counted = self.usage([counts[i] for i in sorted(counts)])
            timer.ended(counted["completion_tokens"])
            for chunk in self.written.last(counted, asked=usage):
                yield self.written.line(chunk, usage=False)
        except ApiError as error:
            told = self._told(error)
            if not started:
                raise told from error
            yield self.written.error(error_body(told))
        if self.written.end:
            yield self.written.end


@router.post("/v1/completions")
async def completions(form: CompletionRequest, request: Request, services: ServicesDep) -> Response:
    """Continue each prompt, or answer it, as the model was trained."""
    pool, prompts = services.pool(form.model, "completion"), form.prompts
    check(form, form.n * len(prompts), form.max_tokens, pool)
    check_completion(form)
    check_lengths(prompts, pool, "prompt")
    written = CompletionWriter(form.model, prompts, form.echo, form.logprobs is not None, form.n)
    asked = questions(form, prompts, form.max_tokens, form.logprobs, form.beams)
    work = GenerationRun(services, pool, asked, call_id(request.state.request_id), written)
    async with AsyncExitStack() as held:
        held.enter_context(services.generations.place(pool, len(asked) * form.beams))
        return await _answer(form, request, work, held, "prompt")


@router.post("/v1/chat/completions")
async def chat(form: ChatRequest, request: Request, services: ServicesDep) -> Response:
    """Generate the next message of a conversation, for models whose tokenizer has a chat template."""

    def writer(calling: Calling, phase: Phase) -> ChatWriter:
        return ChatWriter(
            form.model, log_probs=form.logprobs, per_prompt=form.n, calling=calling, phase=phase
        )

    return await _chat(form, request, services, writer)


@router.post("/v1/responses")
async def responses(form: ResponseRequest, request: Request, services: ServicesDep) -> Response:
    """Generate the next message of a conversation, in OpenAI's Responses API; nothing is stored."""
    try:
        form = recommended(form, services.pool(form.model, "chat"))
        return await _chat(form.chat(), request, services, partial(ResponseWriter, form))
    except ApiError as error:
        raise renamed(error) from error


async def _chat(
    form: ChatRequest,
    request: Request,
    services: Services,
    writer: Callable[[Calling, Phase], ChatWriter | ResponseWriter],
) -> Response:
    pool = services.pool(form.model, "chat")
    form = recommended(form, pool)
    check_chat(form)
    urls = pictures_of(form, pool)
    calling = calling_of(form, pool)
    guide = guide_of(form, calling, pool)
    prompt = rendered(pool, form.messages, calling, settings_of(form, pool, guide))
    tokens = form.max_completion_tokens or form.max_tokens or pool.positions - 1
    check(form, form.n, tokens, pool)
    check_lengths([prompt], pool, "messages")
    # A structured answer is none of the calls that it may look like.
    written = writer(NO_TOOLS if guide and not calling.forced else calling, first_phase(pool, prompt, guide))
    top = (form.top_logprobs or 0) if form.logprobs else None
    async with AsyncExitStack() as held:
        held.enter_context(services.generations.place(pool, form.n * form.beams))
        hosts, most = services.settings.allowed_hosts, MOST_URL_BYTES // form.n
        fetched = data_urls(urls, hosts, "messages", most, services.settings.picture_proxy)
        pictures = await cancel_on_disconnect(request, fetched)
        asked = questions(form, [prompt], tokens, top, pictures=pictures, guide=guide)
        guided = "tools" if calling.forced else "response_format"
        work = GenerationRun(services, pool, asked, call_id(request.state.request_id), written, guided)
        return await _answer(form, request, work, held, "messages")


async def _answer(
    form: Generation, request: Request, work: GenerationRun, held: AsyncExitStack, param: str
) -> Response:
    """Answer a request. `held` is its place, which a stream keeps."""
    request.state.model = work.pool.model_id
    with _named(param):
        if form.stream:
            events = work.events(usage=bool(form.stream_options and form.stream_options.include_usage))
            return await streamed(request, events, held.pop_all())
        answers = await cancel_on_disconnect(request, work.answers())
    return JSONResponse(work.written.body(answers, work.usage(answers)))


@contextmanager
def _named(param: str) -> Iterator[None]:
    """Attribute a model's error to the text field, unless it names another."""
    try:
        yield
    except ApiError as error:
        if error.status == 400 and error.param is None:
            if error.message.endswith(TOO_LONG):
                raise too_long(param, error.message) from error
            named = next((name for start, name in PARAMS.items() if error.message.startswith(start)), param)
            raise invalid(named, error.message) from error
        raise
