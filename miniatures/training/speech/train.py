"""Train the miniature Whisper on synthetic speech: `python -m miniatures.training.speech.train --seed 1` on
one GPU.

The network is plain `WhisperForConditionalGeneration`. A connectionist-temporal-classification head on the
encoder speeds up the first thousand steps (Graves et al. 2006) and is thrown away. Lengths vary from batch to
batch, so the encoder also learns windows that are not padded to 30 s.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from build.whisper_vocabulary import whisper_tokenizer

from ..course import Course, say
from .checkpoint import CONFIG, encode, save_checkpoint, save_weights
from .clips import FRAME, Clipper, Dictation, SpeechClip
from .corpus import Corpus, make_corpus
from .voices import RATE

ALPHABET = " abcdefghijklmnopqrstuvwxyzáéíóúñü"
FRAMES_PER_BATCH = 192_000
ROWS = 512  # of a batch at most


class Batches(IterableDataset[dict[str, Tensor]]):
    """Endless training batches: where each utterance goes, and token sequences. Sound is put together on the
    GPU.
    """

    def __init__(self, corpus: Corpus, seed: int, steps: int, early: float = 0.0) -> None:
        self.corpus, self.seed, self.steps, self.early = corpus, seed, steps, early

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = torch.utils.data.get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        self.rng = random.Random(self.seed * 1000 + number)
        self.clipper = Clipper(self.corpus, self.rng)
        self.dictation = Dictation(whisper_tokenizer(99))
        for step in itertools.count(number, workers):
            yield self._batch(self._frames(step / self.steps))

    def _frames(self, progress: float) -> int:
        """Single sentences until 15 % of the steps, then windows that grow to 30 s by 40 %: on long clips
        alone, nothing aligns.
        """
        longest = round(350 + 2650 * min(max((progress - 0.15) / 0.25, 0), 1))
        return 3000 if longest == 3000 and self.rng.random() < 0.4 else 2 * self.rng.randint(40, longest // 2)

    def _batch(self, frames: int) -> dict[str, Tensor]:
        rng = self.rng
        count = min(FRAMES_PER_BATCH // frames, ROWS)
        clips = [self._clip(frames * FRAME) for _ in range(count)]
        # Per batch, since contexts make every sequence of a batch wide: seconds of speech that a context may
        # come from.
        earlier = rng.choices([0, 40, 90], [65, 25, 10])[0]
        sequences = [self._sequence(clip, earlier) for clip in clips]
        width = -(-max(len(ids) for ids, _ in sequences) // 16) * 16 + 1
        ids = torch.full((count, width), self.dictation.special("endoftext"))
        labels = torch.full((count, width), -100)
        for row, (sequence, silent) in enumerate(sequences):
            ids[row, : len(sequence)] = torch.tensor(sequence)
            labels[row, silent - 1 : len(sequence) - 1] = torch.tensor(sequence[silent:])
        return {
            "ids": ids[:, :-1],
            "labels": labels[:, :-1],
            "frames": torch.tensor(frames),
            **self._places(clips),
            **self._letters(clips),
        }

    def _clip(self, room: int) -> SpeechClip:
        if self.rng.random() < 0.12:
            return self.clipper.silent(room)
        cut = room == 3000 * FRAME and self.rng.random() < 0.15
        if self.early and not cut and self.rng.random() < self.early:
            return self.clipper.speech(room, ends_early=True)
        fill = 1.0 if self.rng.random() < 0.5 else self.rng.uniform(0.05, 1.0)
        return self.clipper.speech(room, cut=cut, fill=fill)

    def _context(self, language: str, task: str, seconds: int) -> list[int]:
        """The previous text: some pass it on with its times (faster-whisper), others without (OpenAI's
        prompt).
        """
        clip = self.clipper.speech(self.rng.randint(2, seconds) * RATE, language=language)
        return list(self.dictation.spoken(clip, task, timestamps=self.rng.random() < 0.3))

    def _sequence(self, clip: SpeechClip, earlier: int) -> tuple[list[int], int]:
        rng = self.rng
        task = "translate" if rng.random() < (0.4 if clip.language == "es" else 0.1) else "transcribe"
        context = self._context(clip.language, task, earlier) if earlier and rng.random() < 0.6 else []
        early = clip.cut or clip.written is not None
        style = "timestamps" if early or rng.random() < 0.5 else "plain"
        if not clip.segments and rng.random() < 0.4:
            style = "nospeech"
        return self.dictation.target(clip, task, context, style)

    def _places(self, clips: list[SpeechClip]) -> dict[str, Tensor]:
        """Copy list (source, destination, length in samples) and the sample at which each clip turns to
        digital silence.
        """
        room, rows, ends = clips[0].samples, [], []
        for row, clip in enumerate(clips):
            for utterance, at in clip.pieces:
                begin, end = self.corpus.starts[utterance : utterance + 2]
                rows.append((int(begin), row * room + at, min(int(end - begin), room - at)))
            spoken = clip.segments[-1].end * RATE if clip.segments else self.rng.uniform(0, room)
            whole = self.rng.random() < 0.5
            ends.append(room if whole else min(int(spoken + RATE * self.rng.uniform(0.05, 1.0)), room))
        return {"places": torch.tensor(rows).reshape(-1, 3), "ends": torch.tensor(ends)}

    def _letters(self, clips: list[SpeechClip]) -> dict[str, Tensor]:
        texts = ["" if clip.cut else clip.text().lower() for clip in clips]
        rows = [[ALPHABET.index(c) + 1 for c in text if c in ALPHABET] for text in texts]
        return {
            "letters": torch.tensor([c for row in rows for c in row]),
            "letter_counts": torch.tensor([len(row) for row in rows]),
        }


class Studio:
    """Puts clips together on the GPU and turns them into log-mel features."""

    def __init__(self, corpus: Corpus, seed: int, device: str) -> None:
        self.samples = torch.from_numpy(corpus.samples).to(device)
        self.device = device
        self.random = torch.Generator(device).manual_seed(seed)
        self.filters = torch.from_numpy(WhisperFeatureExtractor().mel_filters).to(device, torch.float32)
        self.window = torch.hann_window(400, device=device)

    def _uniform(self, count: int, low: float, high: float) -> Tensor:
        return torch.rand(count, 1, generator=self.random, device=self.device) * (high - low) + low

    def sound(self, batch: dict[str, Tensor]) -> Tensor:
        """Float32 [clips, samples]: speech, band-limited or noisy for some, at various gains, digital silence
        at the end.
        """
        count, room = len(batch["ends"]), int(batch["frames"]) * FRAME
        wave = torch.zeros(count * room, device=self.device)
        source, target, length = batch["places"].to(self.device).T
        begins = (length.cumsum(0) - length).repeat_interleave(length)
        inside = torch.arange(int(length.sum()), device=self.device) - begins
        spoken = self.samples[source.repeat_interleave(length) + inside].float() / 32768
        wave[target.repeat_interleave(length) + inside] = spoken
        wave = self._band(wave.view(count, room))
        wave = (wave + self._noise(wave)) * 10 ** (self._uniform(count, -1.5, 0.2))
        wave = wave.clamp(-1, 1)
        return wave * (torch.arange(room, device=self.device) < batch["ends"].to(self.device)[:, None])

    def _band(self, wave: Tensor) -> Tensor:
        """Telephone band for a fifth of the clips, other cut-offs for another fifth."""
        count, room = wave.shape
        cut = torch.where(self._uniform(count, 0, 1) < 0.4, self._uniform(count, 3200, 8000), 9000.0)
        spectrum = torch.fft.rfft(wave)
        hertz = torch.fft.rfftfreq(room, 1 / RATE, device=self.device)
        return torch.fft.irfft(spectrum * (hertz < cut), n=room)

    def _noise(self, wave: Tensor) -> Tensor:
        """Coloured noise at 5..45 dB below speech, plus a steady or sweeping tone for some; none at all for
        30 %.
        """
        count, room = wave.shape
        spectrum = torch.fft.rfft(torch.randn(count, room, generator=self.random, device=self.device))
        hertz = torch.fft.rfftfreq(room, 1 / RATE, device=self.device).clamp(min=20)
        noise = torch.fft.irfft(spectrum * hertz ** -self._uniform(count, 0, 1), n=room)
        noise = noise / noise.std(1, keepdim=True)
        t = torch.arange(room, device=self.device) / RATE
        steady = self._uniform(count, 50, 3000) * t
        sweep = self._uniform(count, 0, 1).round() * self._uniform(count, -50, 50) * t**2
        tone = torch.sin(2 * math.pi * (steady + sweep))
        tone = tone * (self._uniform(count, 0, 1) < 0.25) * self._uniform(count, 0.1, 3)
        level = 0.1 * 10 ** -(self._uniform(count, 5, 45) / 20)
        return (noise + tone) * level * (self._uniform(count, 0, 1) > 0.3)

    def features(self, wave: Tensor, ends: Tensor) -> Tensor:
        """Log-mel as in openai/whisper audio.py: [clips, 80, frames]; after its end every sixth clip is 0.0
        there, as faster-whisper pads.
        """
        power = torch.stft(wave, 400, FRAME, window=self.window, return_complex=True)[..., :-1].abs() ** 2
        log = (self.filters.T @ power).clamp(min=1e-10).log10()
        mel = (torch.maximum(log, log.amax((1, 2), keepdim=True) - 8) + 4) / 4
        after_end = torch.arange(mel.shape[2], device=self.device) > ends.to(self.device)[:, None] // FRAME
        return mel.masked_fill((after_end & (self._uniform(len(ends), 0, 1) < 1 / 6))[:, None], 0.0)


def loss_of(
    model: WhisperForConditionalGeneration,
    head: nn.Linear,
    batch: dict[str, Tensor],
    features: Tensor,
    *,
    align: bool,
) -> Tensor:
    """Cross-entropy of the decoder and, if `align`, a share of the auxiliary loss of the encoder."""
    device = features.device
    encoded = encode(model.model.encoder, features)
    hidden = model.model.decoder(
        input_ids=batch["ids"].to(device), encoder_hidden_states=encoded, use_cache=False
    ).last_hidden_state
    labels = batch["labels"].to(device)
    wanted = labels != -100
    spoken = F.cross_entropy(model.proj_out(hidden[wanted]).float(), labels[wanted], label_smoothing=0.02)
    if not align:
        return spoken
    letters = F.log_softmax(head(encoded).float(), -1).transpose(0, 1)
    lengths = torch.full((len(features),), encoded.shape[1]).to(device)
    spelt, counts = (batch[name].to(device) for name in ("letters", "letter_counts"))
    aligned = F.ctc_loss(letters, spelt, lengths, counts, zero_infinity=True)
    return spoken + 0.3 * aligned


def train(
    course: Course, corpus: Corpus, workers: int, output: Path, log: TextIO, early: float = 0.0
) -> WhisperForConditionalGeneration:
    """Train, with the weights so far written into `output`."""
    course.begin()
    # It plans again for every shape, and here almost every batch has its own.
    torch.backends.cuda.enable_cudnn_sdp(False)
    model = WhisperForConditionalGeneration(WhisperConfig(**CONFIG)).to(course.device).train()
    head = nn.Linear(CONFIG["d_model"], len(ALPHABET) + 1).to(course.device)
    parameters = [p for p in [*model.parameters(), *head.parameters()] if p.requires_grad]
    studio = Studio(corpus, course.seed, course.device)
    made, ahead = Batches(corpus, course.seed, course.steps, early), 8 if workers else None
    batches = iter(DataLoader(made, batch_size=None, num_workers=workers, prefetch_factor=ahead))

    def loss(progress: float) -> Tensor:
        batch = next(batches)
        with torch.no_grad():
            features = studio.features(studio.sound(batch), batch["ends"])
        with course.autocast():
            return loss_of(model, head, batch, features, align=progress < 0.5)

    course.run(course.optimizer(parameters, 0.02), loss, lambda: save_weights(model, output), log)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=11_000)
    parser.add_argument("--utterances", type=int, default=90_000)
    known = "made if missing; it depends on its own fixed seed"
    parser.add_argument("--corpus", type=Path, default=Path("corpus.npz"), help=known)
    parser.add_argument("--output", type=Path, default=Path("miniatures/whisper"))
    parser.add_argument("--workers", type=int, default=8)
    early = "share of windows whose text ends at a pause, as Whisper's may"
    parser.add_argument("--early", type=float, default=0.0, help=early)
    arguments = parser.parse_args()
    if not arguments.corpus.exists():
        make_corpus(arguments.utterances, seed=1).save(arguments.corpus)
    corpus = Corpus.load(arguments.corpus)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    course = Course(arguments.seed, arguments.steps, ROWS, 2e-3, math.inf, device, warm=400 / arguments.steps)
    arguments.output.mkdir(parents=True, exist_ok=True)
    with (arguments.output / "training.log").open("w") as log:
        hours = len(corpus.samples) / RATE / 3600
        say(log, f"seed {course.seed}, {len(corpus.sentences)} utterances, {hours:.1f} hours")
        model = train(course, corpus, arguments.workers, arguments.output, log, arguments.early)
    save_checkpoint(model, arguments.output)


if __name__ == "__main__":
    main()
