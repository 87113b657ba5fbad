"""POST /v1/audio/transcriptions and /v1/audio/translations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import structlog
from fastapi import APIRouter, Request, Response
from numpy.typing import NDArray

from conch.deployment import Pool
from conch.errors import ApiError
from conch.tasks import end
from speech import media
from speech.cutters import Cutter, PauseCutter, TurnCutter
from speech.options import Options
from speech.speakers.turns import Diarization
from speech.tracks import Warn
from speech.transcript import Transcript, joined
from speech.windows import Window

from ..disconnect import cancel_on_disconnect
from ..errors import error_body
from ..metrics import StreamTimer
from ..services import Services, ServicesDep
from ..settings import Settings
from ..sse import event, streamed
from ..triton import call_id
from ..upload import receive
from . import responses as formats
from .decoding import DECODERS, media_errors
from .diarization import Diarizer, TritonVoices, known_voices
from .languages import check_languages
from .schema import (
    TranscriptionRequest,
    TranslationRequest,
    body_schema,
    options,
    parse_transcription,
    parse_translation,
    turns,
)
from .speakers import SpeakersWanted

router = APIRouter()
log = structlog.get_logger()
END = object()
Speakers = asyncio.Task[Diarization] | None
TURN = 16  # blocks: a minute of sound, 0.05 s of work, after which other recordings have theirs


@dataclass
class UploadedRecording:
    """An uploaded file that is being cut into windows. `seconds` is its length so far, complete after the
    last window; `damage` is what ends its audio early.
    """

    path: Path
    cutter: Cutter
    settings: Settings
    track: int | None = None
    seconds: float = 0.0
    stopped: bool = False
    damage: str = ""

    async def windows(self) -> AsyncGenerator[Window, None]:
        """Yield windows, decoded and cut in a thread, one ahead of the consumer.

        Raises:
            ApiError: 400 if the file is not a recording.
        """
        source, loop = self._windows(), asyncio.get_running_loop()
        try:
            while (found := await loop.run_in_executor(DECODERS, next, source, END)) is not END:
                if isinstance(found, Window) and found.speech:
                    yield found
        finally:
            self.stopped = True  # a thread cannot be cancelled; it looks here after each block

    def blocks(self, warn: Warn = media.silent) -> Iterator[NDArray[np.float32]]:
        """Decode the sound within the limits of the settings. See media.blocks."""
        most, limit = self.settings.max_audio_seconds, self.settings.decode_seconds
        return media.blocks(self.path, max_seconds=most, time_limit=limit, track=self.track, warn=warn)

    def _damaged(self, what: str) -> None:
        log.warning("damaged recording", what=what)
        self.damage = what

    def _windows(self) -> Iterator[Window | None]:
        """Yield windows, and None now and then: hours without a window must not keep a thread from other
        recordings, and each step costs a switch to the thread and back.
        """
        with media_errors():
            for number, block in enumerate(self.blocks(warn=self._damaged), 1):
                if self.stopped:
                    return
                self.seconds += len(block) / media.RATE
                yield from self.cutter.feed(block)
                if number % TURN == 0:
                    yield None
        yield from self.cutter.finish()


@dataclass
class TranscriptionRun:
    """One request: what to transcribe, how, and the results so far."""

    services: Services
    pool: Pool
    recording: UploadedRecording
    chosen: Options
    request_id: str
    diarizer: Diarizer | None = None
    parts: list[Transcript] = field(default_factory=list)

    async def run(self) -> AsyncGenerator[Transcript, None]:
        """Yield transcripts of the windows in order."""
        metrics, model = self.services.metrics, self.pool.model_id
        found = self.services.transcriber.transcribe(
            self.pool, self.recording.windows(), self.chosen, self.request_id
        )
        with metrics.speech.labels(model).time():
            async with aclosing(found):
                async for part in found:
                    self.parts.append(part)
                    yield part
        metrics.audio.labels(model).inc(self.recording.seconds)

    async def whole(self) -> Transcript:
        """Return the whole transcript. Without speech, its language is the requested one, or English."""
        async with self._speakers() as speakers, aclosing(self.run()) as found:
            async for _ in found:
                _check(speakers)
            return await self._result(speakers)

    @asynccontextmanager
    async def _speakers(self) -> AsyncIterator[Speakers]:
        """Diarize, if requested, during the transcription."""
        if self.diarizer is None:
            yield None
            return
        task = asyncio.create_task(self._measured(self.diarizer))
        try:
            yield task
        finally:
            await end([task])

    async def _measured(self, diarizer: Diarizer) -> Diarization:
        metrics, model = self.services.metrics, diarizer.model.pool.model_id
        with metrics.diarization.labels(model).time():
            found = await diarizer.speakers_of(self.recording.blocks())
        metrics.speakers.labels(model).observe(len(found.voices))
        return found

    async def _result(self, speakers: Speakers) -> Transcript:
        """Return all parts as one transcript, with its speakers if requested."""
        found = joined(self.parts)
        language = found.language or self.chosen.language or "en"
        found = replace(found, duration=round(self.recording.seconds, 3), language=language)
        return self.diarizer.label(found, await speakers) if self.diarizer and speakers else found

    async def events(self, *, log_probs: bool) -> AsyncGenerator[str, None]:
        """Yield server-sent events: a delta for each window, then the whole text and usage. An error after
        the first is an event as well.
        """
        sent, timer = "", StreamTimer(self.services.metrics, self.pool.model_id)
        try:
            async with self._speakers() as speakers, aclosing(self.run()) as found:
                async for part in found:
                    _check(speakers)
                    text = part.joint + part.text if sent and part.text else part.text
                    sent += text
                    if text:
                        timer.piece()
                        yield event(formats.delta(text, part, log_probs=log_probs))
                transcript = await self._result(speakers)
            for segment in formats.speaker_segments(transcript) if self.diarizer else ():
                yield event(segment)
            yield event(formats.done(transcript, log_probs=log_probs))
        except ApiError as error:
            if not sent:
                raise
            yield event(error_body(error))


def _check(speakers: Speakers) -> None:
    """Stop the transcription of a recording whose diarization has failed.

    Raises:
        ApiError: why they cannot.
    """
    if speakers and speakers.done():
        speakers.result()


async def _begin(
    request: Request, services: Services, stack: AsyncExitStack, task: str
) -> tuple[TranscriptionRequest | TranslationRequest, TranscriptionRun]:
    upload = await stack.enter_async_context(receive(request, services.settings.max_upload_bytes))
    form = (parse_transcription if task == "transcribe" else parse_translation)(upload.fields)
    chosen, cut = options(form, task), turns(form)
    pool = services.pool(form.model, "transcription" if task == "transcribe" else "translation")
    request.state.model = pool.model_id
    check_languages(pool, chosen.language, chosen.languages, "languages" if chosen.languages else "language")
    if chosen.words and "word_timestamps" not in pool.capabilities:
        message = (
            f"timestamp_granularities[]=word is not supported by the engine of {form.model!r}; use segment"
        )
        raise ApiError(400, message, param="timestamp_granularities[]", code="unsupported_value")
    wanted = form.speakers() if isinstance(form, TranscriptionRequest) else None
    if wanted and "word_timestamps" in pool.capabilities:
        chosen = replace(chosen, words=True)
    stack.enter_context(services.recordings.place(pool))
    recording = UploadedRecording(
        Path(upload.path), TurnCutter(cut) if cut else PauseCutter(), services.settings, form.audio_track
    )
    request_id = call_id(request.state.request_id)
    diarizer = await _diarizer(services, wanted, request_id) if wanted else None
    return form, TranscriptionRun(services, pool, recording, chosen, request_id, diarizer)


async def _diarizer(services: Services, wanted: SpeakersWanted, request_id: str) -> Diarizer:
    able = [pool for pool in services.pools.values() if "diarization" in pool.capabilities]
    if not able:
        message = (
            "this deployment has no model that tells speakers apart; omit diarized_json and diarize, or have "
            "speakers added to MODEL_ID"
        )
        raise ApiError(400, message, param=wanted.asked_by, code="unsupported_value")
    model = TritonVoices(services.triton, able[0], request_id)
    return Diarizer(model, wanted, await known_voices(model, wanted.references))


@router.post("/v1/audio/transcriptions", openapi_extra=body_schema(TranscriptionRequest))
async def transcriptions(request: Request, services: ServicesDep) -> Response:
    """Transcribe speech in the spoken language."""
    async with AsyncExitStack() as stack:
        form, work = await _begin(request, services, stack, "transcribe")
        assert isinstance(form, TranscriptionRequest)
        if form.stream:
            return await streamed(request, work.events(log_probs=work.chosen.log_probs), stack.pop_all())
        transcript = await cancel_on_disconnect(request, work.whole())
    answer = formats.formatted(
        transcript,
        form.response_format,
        form.timestamp_granularities,
        "transcribe",
        log_probs=work.chosen.log_probs,
    )
    return _warned(answer, work)


@router.post("/v1/audio/translations", openapi_extra=body_schema(TranslationRequest))
async def translations(request: Request, services: ServicesDep) -> Response:
    """Translate speech in any language to English text."""
    async with AsyncExitStack() as stack:
        form, work = await _begin(request, services, stack, "translate")
        transcript = await cancel_on_disconnect(request, work.whole())
    return _warned(formats.formatted(transcript, form.response_format, ["segment"], "translate"), work)


def _warned(answer: Response, work: TranscriptionRun) -> Response:
    """Add a header with what ended the audio early; the answer covers what a player plays of the file."""
    if work.recording.damage:
        answer.headers["x-conch-warning"] = work.recording.damage
    return answer
