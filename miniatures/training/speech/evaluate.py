"""Held-out figures of the miniature Whisper, on a CPU: `make evaluate`. Sentences that no training clip
contained.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jiwer
import numpy as np
import torch
from transformers import WhisperForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from build.whisper_vocabulary import whisper_tokenizer
from serving.audio.log_mel import FULL_FRAMES, frames_of, log_mel
from serving.audio.tokens import WhisperVocabulary

from .checkpoint import encode
from .clips import Clipper, SpeechClip
from .corpus import LANGUAGES, make_corpus
from .peers import by_faster_whisper, by_transformers, recordings
from .voices import RATE

SEED = 77


def show(figures: Mapping[str, float]) -> None:
    """Print one JSON line."""
    print(json.dumps(figures), flush=True)


def words(text: str) -> str:
    """Lower case, no punctuation, one blank between words."""
    return " ".join(re.sub(r"[^\w\s]", " ", text.lower().replace("-", " ")).split())


@dataclass
class SpeechStudent:
    """The checkpoint in plain transformers."""

    folder: Path
    model: WhisperForConditionalGeneration = field(init=False)

    def __post_init__(self) -> None:
        self.model = WhisperForConditionalGeneration.from_pretrained(self.folder, dtype=torch.float32).eval()
        self.vocabulary = WhisperVocabulary(whisper_tokenizer(99))

    def memory(self, wave: np.ndarray, *, pad: bool = True) -> BaseModelOutput:
        """The encoder's output for one clip."""
        frames = frames_of(len(wave), (FULL_FRAMES,) if pad else ())
        features = torch.from_numpy(log_mel(wave, 80, frames).T.copy())[None]
        return BaseModelOutput(last_hidden_state=encode(self.model.model.encoder, features))

    def language(self, memory: BaseModelOutput) -> str:
        """The likeliest language."""
        start, languages = torch.tensor([[self.vocabulary.start]]), self.vocabulary.languages
        logits = self.model(encoder_outputs=memory, decoder_input_ids=start).logits[0, 0]
        return max(languages, key=lambda code: logits[languages[code]].item())

    def text(self, memory: BaseModelOutput, prompt: str) -> str:
        """The words after a prompt."""
        return words(self.vocabulary.text(self.tokens(memory, prompt)))

    def tokens(self, memory: BaseModelOutput, prompt: str) -> list[int]:
        """Greedy ids after a prompt; with times, <|notimestamps|> is suppressed as every Whisper decoder
        does.
        """
        ids = list(self.vocabulary.prompt(prompt, 448).ids)
        times = self.vocabulary.no_timestamps not in ids
        given, past, out = torch.tensor([ids]), None, []
        while len(ids) + len(out) < 448:
            result = self.model(
                encoder_outputs=memory, decoder_input_ids=given, past_key_values=past, use_cache=True
            )
            logits, past = result.logits[0, -1], result.past_key_values
            if times:
                logits[self.vocabulary.no_timestamps] = -torch.inf
            token = int(logits.argmax())
            if token == self.vocabulary.end:
                break
            out.append(token)
            given = torch.tensor([[token]])
        return out


def clips(
    clipper: Clipper, count: int, low: float, high: float, language: str | None = None
) -> Iterator[tuple[SpeechClip, np.ndarray]]:
    """Noisy clips (30 dB) of `low` to `high` seconds."""
    noise = np.random.default_rng(SEED)
    for _ in range(count):
        clip = clipper.speech(int(clipper.rng.uniform(low, high) * RATE), language=language)
        yield clip, clipper.wave(clip) + 0.003 * noise.standard_normal(clip.samples).astype(np.float32)


def transcription(
    student: SpeechStudent, clipper: Clipper, count: int, language: str, *, pad: bool = True
) -> tuple[float, float]:
    """Word error rate, and the share of clips whose language was detected."""
    truth, transcripts, right = [], [], 0
    for clip, wave in clips(clipper, count, 1.5, 28, language):
        memory = student.memory(wave, pad=pad)
        right += student.language(memory) == language
        text = student.text(memory, f"<|startoftranscript|><|{language}|><|transcribe|><|notimestamps|>")
        if clip.segments:
            truth.append(words(clip.text()))
            transcripts.append(text)
    return jiwer.wer(truth, transcripts), right / count


def translation(student: SpeechStudent, clipper: Clipper, count: int) -> float:
    """Share of Spanish sentences whose English is exact."""
    prompt, exact = "<|startoftranscript|><|es|><|translate|><|notimestamps|>", 0
    for clip, wave in clips(clipper, count, 2, 6, "es"):
        exact += student.text(student.memory(wave), prompt) == words(clip.text("translate"))
    return exact / count


def timestamps(student: SpeechStudent, clipper: Clipper, count: int) -> float:
    """Median distance of segment starts and ends from the truth, in seconds, over clips with the right number
    of segments.
    """
    distances = []
    for clip, wave in clips(clipper, count, 4, 28):
        prompt = f"<|startoftranscript|><|{clip.language}|><|transcribe|>"
        tokens = student.tokens(student.memory(wave), prompt)
        found = student.vocabulary.segments(tokens, clip.samples / RATE)
        if len(found) == len(clip.segments):
            for own, true in zip(found, clip.segments, strict=True):
                distances += [abs(own.start - true.start), abs(own.end - true.end)]
    return statistics.median(distances)


def silence(student: SpeechStudent, count: int) -> int:
    """Words transcribed in silence, noise and tones."""
    rng, total = np.random.default_rng(SEED), 0
    for i in range(count):
        seconds = np.arange(int(rng.uniform(1, 30) * RATE)) / RATE
        level = 10 ** rng.uniform(-4, -1)
        wave = [
            np.zeros_like(seconds),
            level * rng.standard_normal(len(seconds)),
            level * np.sin(2 * np.pi * rng.uniform(50, 3000) * seconds),
        ][i % 3]
        total += len(student.text(student.memory(wave.astype(np.float32)), "").split())
    return total


def peers(checkpoint: Path) -> None:
    """The bundled recordings in transformers' pipeline and in faster-whisper."""
    truth = {name: words(row["text"]) for name, row in recordings().items()}
    systems = {"transformers' pipeline": by_transformers, "faster-whisper": by_faster_whisper}
    for name, system in systems.items():
        texts = system(checkpoint)
        transcripts = {recording: words(text) for recording, text in texts.items()}
        worst = max(jiwer.wer(truth[recording], transcripts[recording]) for recording in truth)
        total = jiwer.wer(list(truth.values()), list(transcripts.values()))
        whole = f"WER of the {len(truth)} recordings, {name}"
        show({whole: round(total, 4), "worst recording": round(worst, 4)})


@torch.no_grad()
def main() -> None:
    """Print one JSON line per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("miniatures/whisper"))
    parser.add_argument("--clips", type=int, default=60, help="for each figure")
    arguments = parser.parse_args()
    student, count = SpeechStudent(arguments.checkpoint), arguments.clips
    seen = Clipper(make_corpus(600, SEED, held_out=True), random.Random(SEED))
    unseen = Clipper(make_corpus(600, SEED + 1, held_out=True, unseen_voices=True), random.Random(SEED))
    detected = []
    for name, clipper, pad in (
        ("WER", seen, True),
        ("WER, unseen voices", unseen, True),
        ("WER without padding", seen, False),
    ):
        for language in LANGUAGES:
            wer, share = transcription(student, clipper, count, language, pad=pad)
            detected.append(share)
            show({f"{name}, {language}": round(wer, 4)})
    show({"language detected": round(statistics.mean(detected), 4)})
    show({"translation exact": round(translation(student, seen, count), 4)})
    show({"timestamps, median seconds": round(timestamps(student, seen, count), 3)})
    show({"words on silence, noise, tones": silence(student, count)})
    peers(arguments.checkpoint)


if __name__ == "__main__":
    main()
