"""The speech façade: from audio and a prompt to an engine request, and from its results to words with times
and confidence.

It uses only tensors of TensorRT-LLM's `tensorrt_llm` model, so it is the same on every target. Engines whose
facts allow it get three more: `return_step_attention` for word timestamps, `first_timestamp` for Whisper's
timestamp rules, `audio_samples` where the engine computes features itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.bundle import ENGINE, EngineFacts, load_parameters
from conch.whisper import LOG_PROB_LIMIT, repeats

from ..arrays import scalar, text_of
from ..errors import BadRequest
from ..triton.rows import grown
from .alignment import FRAMES_PER_SECOND, reached, token_starts
from .answers import Arrays, Detection, cut_off, outputs, strings
from .log_mel import FULL_FRAMES, MAX_SAMPLES, RATE, frames_of, log_mel
from .tokens import Prompt, WhisperVocabulary

Span = tuple[float, float]  # seconds
Engine = Callable[[Arrays, bool], Iterator[Arrays]]
# Text longer than this is a loop, which need not run to the last position: nobody says 20 tokens a second.
FEWEST, FASTEST = 50, 20
# Seconds: alignment gives what was left out before or after a segment to its first or last word. One that is
# longer than the first of these begins or ends where the segment does, if that lies in it, else it is as long
# as the second (openai/whisper timing.py, "long words at segment boundaries"). NEAR: too near to say more.
LONG, SHORT, NEAR = 2.0, 0.6, 0.2
SUPPRESSED = np.float32(-1e9)
NEEDS_DETECTION = {"LANGUAGE", "NO_SPEECH_PROB"}
# What an engine answers that was stopped before its first token.
NOTHING: Arrays = {
    "output_ids": np.zeros((1, 1, 0), np.int32),
    "sequence_length": np.zeros((1, 1), np.int32),
    "output_log_probs": np.zeros((1, 1, 0), np.float32),
    "cum_log_probs": np.zeros((1, 1), np.float32),
}
# Optional inputs that are passed on, under the engine's names.
FORWARDED = {"TEMPERATURE": "temperature", "SEED": "seed", "BEAM_WIDTH": "beam_width"}


@dataclass(frozen=True)
class Work:
    """One recording: the prompt and how to decode. `duration` is in seconds."""

    prompt: Prompt
    detection: Detection
    duration: float
    engine: Engine
    aligning: bool
    streaming: bool


class Whisper:
    """The façade of one bundle."""

    def __init__(self, bundle: Path) -> None:
        self.facts = EngineFacts.load(bundle / ENGINE)
        unpadded = load_parameters(bundle)["zero_pad"]
        self.lengths = () if unpadded else (*self.facts.short_frames, FULL_FRAMES)
        self.vocabulary = WhisperVocabulary.load(bundle / ENGINE)

    def transcribe(
        self, inputs: Mapping[str, NDArray[Any]], wanted: set[str], engine: Engine, *, streaming: bool
    ) -> Iterator[Arrays]:
        """Transcribe one row and yield dictionaries of output arrays. The last is final; while streaming
        there is one after each token or several with the text so far.

        Raises:
            BadRequest: what was sent cannot be served.
        """
        aligning = self._aligning(inputs, streaming=streaming)
        wave = self._wave(inputs)
        duration = len(wave) / RATE
        prompt = self.vocabulary.prompt(text_of(inputs, "TEXT_PREFIX"), self.facts.positions)
        # A text that streams cannot be taken back, and one with a temperature is another try.
        lengths = self.lengths[-1:] if streaming or _temperature(inputs) else self.lengths
        sound = self._sound(wave, lengths)
        detection = Detection(prompt.language, float("nan"))
        if prompt.language is None or wanted & NEEDS_DETECTION:
            found = self._detect(sound, self._candidates(inputs), engine)
            if found is None:
                yield outputs(self.vocabulary, NOTHING, prompt, detection, duration, 1)
                return
            detection = found
        if prompt.language is None and detection.language is not None:
            prompt = prompt.in_language(detection.language, self.vocabulary.languages[detection.language])
        work = Work(prompt, detection, duration, engine, aligning=aligning, streaming=streaming)
        choices = self._choices(inputs, prompt, duration)
        for answer in self._texts(sound, choices, work):
            if len(lengths) > 1 and doubtful(answer, limited="MAX_TOKENS" in inputs):
                yield from self._texts(self._sound(wave, lengths[-1:]), choices, work)
            else:
                yield answer

    def _texts(self, sound: Arrays, choices: Arrays, work: Work) -> Iterator[Arrays]:
        """Transcribe features of one length; see transcribe."""
        prompt, duration = work.prompt, work.duration
        request = sound | choices | {"return_log_probs": np.array([[True]])}
        limit, more = int(request["request_output_len"].item()), 0
        if work.streaming:
            request["streaming"] = np.array([[True]])
        elif work.aligning or (self.facts.attends and self._timed(prompt)):
            # Where the last word of a text that is cut off ends is seen by the step after it.
            more = int(
                scalar(request, "beam_width", 1) == 1 and len(prompt.ids) + limit < self.facts.positions
            )
            request["return_step_attention"] = np.array([[True]])
            request["request_output_len"] = np.array([[limit + more]], np.int32)
        results = work.engine(request, work.streaming)
        for result in grown(results) if work.streaming and scalar(request, "beam_width", 1) == 1 else results:
            kept = cut_off(result, limit) if more else result
            answer = outputs(self.vocabulary, kept, prompt, work.detection, duration, limit)
            if work.aligning or ("cross_attention" in result and self._open(answer, prompt)):
                seen = result.get("cross_attention")
                ended = int(result["sequence_length"].ravel()[0]) < limit + more
                answer = self._aligned(answer, seen, work, ended=ended)
            yield answer

    def _aligning(self, inputs: Mapping[str, NDArray[Any]], *, streaming: bool) -> bool:
        if not ("WORD_TIMESTAMPS" in inputs and inputs["WORD_TIMESTAMPS"].any()):
            return False
        if not self.facts.attends:
            raise BadRequest(
                "WORD_TIMESTAMPS is not supported by this engine, which has no cross-attention; omit it, or "
                "use TARGET=openvino"
            )
        if streaming:
            raise BadRequest("WORD_TIMESTAMPS is not supported by whisper_bls_stream; use whisper_bls")
        return True

    def _timed(self, prompt: Prompt) -> bool:
        """Tell whether a prompt requests timestamps."""
        return self.vocabulary.no_timestamps not in prompt.ids

    def _open(self, answer: Arrays, prompt: Prompt) -> bool:
        """Tell whether the text ends without an end timestamp, which its words can provide."""
        tokens = answer["TOKENS"].ravel()
        return self._timed(prompt) and tokens.size > 0 and tokens[-1] < self.vocabulary.end

    def _aligned(
        self, answer: Arrays, seen: NDArray[np.float16] | None, work: Work, *, ended: bool
    ) -> Arrays:
        """Return its words, if requested, and its end where no timestamp has it, from the cross-attention
        recorded during decoding, `seen` [1, heads, steps, encoder positions], None of a text without tokens.
        `ended`: the model ended the text, not a limit.
        """
        prompt, duration = work.prompt, work.duration
        begins = np.cumsum([0, *answer["SEGMENT_SIZES"].ravel()])
        tokens = [int(token) for token in answer["TOKENS"].ravel()]
        spoken = [
            [token for token in tokens[a:b] if token < self.vocabulary.end] for a, b in pairwise(begins)
        ]
        starts = np.zeros(1, np.float32)
        if seen is not None and any(spoken):
            steps = [i for i, token in enumerate(tokens) if token < self.vocabulary.end]
            starts = _starts(seen[0], steps, ceil(duration * FRAMES_PER_SECOND), ended=ended)
        times = answer["SEGMENT_TIMES"].copy()
        if times.size and self._open(answer, prompt):
            times[0, -1, 1] = np.clip(starts[-1], times[0, -1, 0], duration)
        words = self._words(spoken, starts, times[0], prompt) if work.aligning else {}
        return answer | {"SEGMENT_TIMES": times} | words

    def _words(
        self,
        spoken: list[list[int]],
        starts: NDArray[np.float32],
        segments: NDArray[np.float32],
        prompt: Prompt,
    ) -> Arrays:
        """Return words at the times they were spoken, which may differ from the model's own segment
        timestamps. Words of a translation, which align less well, stay inside their segments.
        """
        language = self.vocabulary.written(prompt)
        texts, times, at = list[str](), list[Span](), 0
        for own, segment in zip(spoken, segments.tolist(), strict=True):
            words = self.vocabulary.words(own, language)
            spans = [(float(starts[at + word.first]), float(starts[at + word.end])) for word in words]
            if language != prompt.language:
                spans = [(float(a), float(b)) for a, b in np.clip(spans, *segment)]
            elif spans:
                spans[0] = begun(spans[0], segment[0])
                spans[-1] = ended(spans[-1], segment[1])
            texts += [word.text for word in words]
            times += spans
            at += len(own)
        return {"WORD_TEXTS": strings(texts), "WORD_TIMES": np.array(times, np.float32).reshape(1, -1, 2)}

    def _wave(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        wave = inputs["WAV"].ravel()
        if "WAV_LENS" in inputs:
            length = int(inputs["WAV_LENS"].ravel()[0])
            if not 0 < length <= len(wave):
                raise BadRequest(f"WAV_LENS is {length}, WAV has {len(wave)} samples; send 1 to {len(wave)}")
            wave = wave[:length]
        if not len(wave):
            raise BadRequest("WAV is empty; send at least one sample at 16 kHz")
        if len(wave) <= MAX_SAMPLES and not np.isfinite(wave).all():
            raise BadRequest("WAV has NaN or infinite samples; send finite values between -1 and 1")
        return np.ascontiguousarray(wave, np.float32)

    def _sound(self, wave: NDArray[np.float32], lengths: Sequence[int]) -> Arrays:
        """Return the engine's input: samples where it computes features itself, otherwise features;
        `lengths`: see frames_of.
        """
        frames = frames_of(len(wave), lengths)
        end = np.array([[self.vocabulary.end]], np.int32)
        sound: Arrays = (
            {"audio_samples": wave[None]}
            if self.facts.takes_samples
            else {"encoder_input_features": log_mel(wave, self.facts.mels, frames).astype(np.float16)[None]}
        )
        return {
            **sound,
            "input_lengths": np.array([[frames]], np.int32),
            "encoder_output_lengths": np.array([[frames // 2]], np.int32),
            "end_id": end,
            "pad_id": end,
        }

    def _choices(self, inputs: Mapping[str, NDArray[Any]], prompt: Prompt, duration: float) -> Arrays:
        room = self.facts.positions - len(prompt.ids)
        if room < 1:
            raise BadRequest(
                f"TEXT_PREFIX has {len(prompt.ids)} tokens, this model has {self.facts.positions} positions; "
                "shorten it"
            )
        longest = scalar(inputs, "MAX_TOKENS", min(room, ceil(FEWEST + FASTEST * duration)))
        if not 1 <= longest <= room:
            raise BadRequest(f"MAX_TOKENS is {longest}; with this prompt it must be 1 to {room}")
        choices: Arrays = {
            "decoder_input_ids": np.array([prompt.ids], np.int32),
            "request_output_len": np.array([[longest]], np.int32),
            **self._bias(prompt),
            **self._rules(prompt),
            **{name: inputs[ours].reshape(1, 1) for ours, name in FORWARDED.items() if ours in inputs},
        }
        if "temperature" in choices and choices["temperature"].any():
            choices["runtime_top_p"] = np.array(
                [[1.0]], np.float32
            )  # random choice from the whole distribution
        return choices

    def _rules(self, prompt: Prompt) -> Arrays:
        return (
            {"first_timestamp": np.array([[self.vocabulary.first_timestamp]], np.int32)}
            if self._timed(prompt) and self.facts.timestamp_rules
            else {}
        )

    def _bias(self, prompt: Prompt) -> Arrays:
        """Return suppressed tokens: the checkpoint's list, and <|notimestamps|> if the prompt requests
        timestamps.
        """
        times = [self.vocabulary.no_timestamps] if self._timed(prompt) else []
        if not self.facts.suppress and not times:
            return {}
        bias = np.zeros((1, self.facts.vocabulary), np.float32)
        bias[0, [*self.facts.suppress, *times]] = SUPPRESSED
        return {"embedding_bias": bias}

    def _candidates(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, int]:
        """Return the languages that detection chooses among, with their tokens: LANGUAGES, or all."""
        known = self.vocabulary.languages
        wanted = [code.strip() for code in text_of(inputs, "LANGUAGES").split(",") if code.strip()]
        if unknown := [code for code in wanted if code not in known]:
            raise BadRequest(f"LANGUAGES has {unknown[0]!r}, which this model does not know; omit it")
        return {code: known[code] for code in wanted} or known

    def _detect(self, sound: Arrays, languages: Mapping[str, int], engine: Engine) -> Detection | None:
        """Generate one token after the start token alone, since text before it would favour its own language:
        raw logits rank the languages and contain the no-speech probability (openai/whisper decoding.py,
        `detect_language`). None where the request was stopped already: the engine, which has ended everything
        of this id, would take what comes next for a new request.
        """
        probe = {
            **sound,
            "decoder_input_ids": np.array([[self.vocabulary.start]], np.int32),
            "request_output_len": np.array([[1]], np.int32),
            "return_generation_logits": np.array([[True]]),
        }
        logits = list(engine(probe, False))[-1]["generation_logits"].reshape(-1).astype(np.float64)
        if not logits.size:
            return None
        no_speech = float(1.0 / np.exp(logits - logits[self.vocabulary.no_speech]).sum())
        best = max(languages, key=lambda code: logits[languages[code]]) if languages else None
        return Detection(best, no_speech)


def _starts(
    seen: NDArray[np.float16], steps: Sequence[int], frames: int, *, ended: bool
) -> NDArray[np.float32]:
    """Compute the seconds at which each token of a text, which these `steps` made, and what follows it start.
    What follows was made by the step after them; a limit may have left it out, then the text ends where the
    decoder has attended to.
    """
    follows = steps[-1] + 1 < seen.shape[1]
    looked = seen[:, [*steps, steps[-1] + 1] if follows else steps]
    if not ended:
        frames = min(frames, reached(looked))
    starts = token_starts(looked, frames)
    return starts if follows else np.append(starts, np.float32(frames / FRAMES_PER_SECOND))


def begun(word: Span, segment: float) -> Span:
    """Drop what was left out before a segment's first word; `segment` is the segment's start."""
    begin, end = word
    if end - begin <= LONG:
        return word
    return min(segment, end - SHORT) if segment > begin + NEAR else end - SHORT, end


def ended(word: Span, segment: float) -> Span:
    """Drop what was left out after a segment's last word; `segment` is the segment's end."""
    begin, end = word
    inside = end - begin > LONG and begin < segment < end
    return begin, max(begin + SHORT, segment) if inside else end


def doubtful(answer: Arrays, *, limited: bool) -> bool:
    """Tell whether a text repeats itself or is unlikely. `limited`: the client limited its length."""
    text = answer["TRANSCRIPTS"].item().decode()
    endless = bool(answer["TRUNCATED"].item()) and not limited
    return endless or repeats(text) or float(answer["AVG_LOGPROB"].item()) < LOG_PROB_LIMIT


def _temperature(inputs: Mapping[str, NDArray[Any]]) -> bool:
    return "TEMPERATURE" in inputs and bool(inputs["TEMPERATURE"].any())
