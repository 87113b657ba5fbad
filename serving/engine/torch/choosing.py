"""Choose ids on the device by the rules of `sampling.py`: bias, Whisper's timestamps, penalties, greedy or
sampled. All rows are computed at once, so that a step need not wait for the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..sampling import NEVER, Sampling
from .device import Device

LOWEST = float(NEVER)
NOTHING = -1


@dataclass
class Choices:
    """What each slot requested, and what it has generated.

    `counts` int64 [11, slots] and `weights` float32 [5, slots] hold the other tensors, [slots] each, as rows:
    a request goes to the device in two copies. `bias` float32 [slots, vocabulary], `uniform` float32 [slots,
    positions] (a random number for each token), `generated_counts` int32 and `seen` bool [slots, vocabulary]
    (how often an id was generated; in prompt or generated text).
    """

    counts: Tensor
    weights: Tensor
    bias: Tensor
    uniform: Tensor
    generated_counts: Tensor
    seen: Tensor

    def __post_init__(self) -> None:
        (
            self.end_id,
            self.min_tokens,
            self.top_k,
            self.first_time,
            self.latest_start,
            self.text_end,
            self.greedy,
            self.generated,
            self.last,
            self.before,
            self.last_time,
        ) = self.counts
        self.temperature, self.top_p, self.repetition, self.presence, self.frequency = self.weights

    @classmethod
    def empty(cls, device: Device, slots: int, vocabulary: int, positions: int) -> Choices:
        """Allocate it, with no requests."""
        found = cls(
            counts=device.zeros(11, slots, dtype=torch.int64),
            weights=device.zeros(5, slots, dtype=torch.float32),
            bias=device.zeros(slots, vocabulary, dtype=torch.float32),
            uniform=device.zeros(slots, positions, dtype=torch.float32),
            generated_counts=device.zeros(slots, vocabulary, dtype=torch.int32),
            seen=device.zeros(slots, vocabulary, dtype=torch.bool),
        )
        found.temperature.fill_(1.0)
        found.repetition.fill_(1.0)
        found.first_time.fill_(vocabulary)
        return found

    def begin(
        self, device: Device, rows: Sequence[int], asked: Sequence[Sampling], prompts: Sequence[Sequence[int]]
    ) -> None:
        """Set what joining rows, by slot, request; nothing is generated yet."""
        slots = device.upload(np.array(rows, np.int64))
        vocabulary, positions = self.bias.shape[1], self.uniform.shape[1]
        counts, weights = zip(*(_asked(sampling, vocabulary) for sampling in asked), strict=True)
        self.counts[:, slots] = device.upload(np.array(counts, np.int64).T)
        self.weights[:, slots] = device.upload(np.array(weights, np.float32).T)
        for tensor in (self.generated_counts, self.seen, self.bias):
            tensor[slots] = 0
        # By numbers of the host: a single index on the device would be waited for.
        for slot, sampling, prompt in zip(rows, asked, prompts, strict=True):
            if sampling.bias is not None:
                self.bias[slot].copy_(device.upload(sampling.bias))
            if sampling.repetition_penalty != 1.0:
                words = [token for token in prompt if token < vocabulary]  # those of a prompt table are none
                self.seen[slot].index_fill_(0, device.upload(np.array(words, np.int64)), True)
            if not sampling.greedy:
                numbers = np.random.default_rng(sampling.seed).random(positions)
                self.uniform[slot].copy_(device.upload(numbers.astype(np.float32)))

    def copy(self, target: int, source: int) -> None:
        """Copy the contents of one slot into another."""
        for tensor in (self.counts, self.weights):
            tensor[:, target].copy_(tensor[:, source])
        for tensor in (self.bias, self.uniform, self.generated_counts, self.seen):
            tensor[target].copy_(tensor[source])

    def kept(self, slot: Tensor, *, plain: bool) -> tuple[Tensor, ...]:
        """Copy what `choose` changes of a slot, int64 [1], to be undone."""
        some = () if plain else (self.generated_counts[slot], self.seen[slot])
        return (self.counts[:, slot], *some)

    def undo(self, slot: Tensor, kept: tuple[Tensor, ...]) -> None:
        """Restore what `kept` has copied."""
        counts, *some = kept
        self.counts[:, slot] = counts
        for tensor, old in zip((self.generated_counts, self.seen), some, strict=False):
            tensor[slot] = old

    def choose(self, logits: Tensor, rows: Tensor, *, plain: bool) -> tuple[Tensor, Tensor]:
        """Choose the next id of each row, int64 [rows], with its log probability under the model, float32
        [rows]. `logits` are float32 [rows, vocabulary] without the bias, `rows` their slots; `plain`: no row
        has penalties or sampling.
        """
        ruled = self._timed(logits + self.bias[rows], rows)
        scores = self._bounded(ruled, rows) if plain else self._penalised(ruled, rows)
        token = scores.argmax(-1)
        if not plain:
            token = torch.where(self.greedy[rows] > 0, token, self._drawn(scores, rows))
        log_prob = ruled.gather(1, token[:, None])[:, 0] - ruled.logsumexp(-1)
        self._remember(token, rows, plain=plain)
        return token, log_prob

    def _remember(self, token: Tensor, rows: Tensor, *, plain: bool) -> None:
        self.before[rows] = self.last[rows]
        self.last[rows] = token
        self.generated[rows] += 1
        self.last_time[rows] = torch.where(token >= self.first_time[rows], token, self.last_time[rows])
        if not plain:
            self.generated_counts[rows, token] += 1
            self.seen[rows, token] = torch.ones_like(rows, dtype=torch.bool)

    def _timed(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Apply `TimestampRules` to rows that have them; for others `first_time` is above all ids."""
        ids = torch.arange(logits.shape[1], device=logits.device)[None]
        first = self.first_time[rows, None]
        last, before, generated = self.last[rows, None], self.before[rows, None], self.generated[rows, None]
        latest, end = self.latest_start[rows, None], self.text_end[rows, None]
        last_time = self.last_time[rows, None]
        begun, timed = generated > 0, first < logits.shape[1]
        after_time = begun & (last >= first)
        after_pair = after_time & ((generated < 2) | (before >= first))
        is_time = ids >= first
        never = ~begun & ((ids < first) | (ids > first + latest))
        never = never | (after_pair & is_time) | (after_time & ~after_pair & (ids < end))
        reached = last_time + torch.where(after_time & ~after_pair, 0, 1)
        never = timed & (never | ((last_time >= 0) & is_time & (ids < reached)))
        ruled = logits.masked_fill(never, LOWEST)
        time = ruled.masked_fill(~is_time, -torch.inf).logsumexp(-1, keepdim=True)
        text = ruled.masked_fill(is_time, -torch.inf).amax(-1, keepdim=True)
        return ruled.masked_fill(timed & (time > text) & ~is_time, LOWEST)

    def _bounded(self, scores: Tensor, rows: Tensor) -> Tensor:
        """Forbid the end token while the text is too short."""
        ids = torch.arange(scores.shape[1], device=scores.device)[None]
        early = (self.generated[rows] < self.min_tokens[rows])[:, None]
        return scores.masked_fill(early & (ids == self.end_id[rows, None]), LOWEST)

    def _penalised(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Apply penalties as `sampling.processed`."""
        out = logits / self.temperature[rows, None]
        repetition = self.repetition[rows, None]
        out = torch.where(self.seen[rows], torch.where(out < 0, out * repetition, out / repetition), out)
        generated_counts = self.generated_counts[rows]
        once = (generated_counts > 0) * self.presence[rows, None] + generated_counts * self.frequency[
            rows, None
        ]
        return self._bounded(out - once, rows)

    def _drawn(self, scores: Tensor, rows: Tensor) -> Tensor:
        """Draw as `sampling._draw`, with the row's own random number for this token."""
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        weights = ordered.softmax(-1)
        rank = torch.arange(scores.shape[1], device=scores.device)[None]
        top_k, top_p = self.top_k[rows, None], self.top_p[rows, None]
        weights = weights.masked_fill((top_k > 0) & (rank >= top_k), 0.0)
        weights = weights / weights.sum(-1, keepdim=True)
        sums = weights.cumsum(-1)
        nucleus = (top_p > 0) & (top_p < 1)
        kept = weights.masked_fill(nucleus & (sums - weights >= top_p), 0.0).cumsum(-1)
        at = self.generated[rows, None].clamp(max=self.uniform.shape[1] - 1)
        target = self.uniform[rows].gather(1, at) * kept[:, -1:]
        found = (kept <= target).sum(-1, keepdim=True).clamp(max=scores.shape[1] - 1)
        return order.gather(1, found)[:, 0]


def _asked(sampling: Sampling, vocabulary: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return one row's numbers in the order of `Choices.counts` and `Choices.weights`."""
    rules = sampling.timestamps
    counts = (
        sampling.end_id,
        sampling.min_tokens if sampling.end_id >= 0 else 0,
        sampling.top_k,
        rules.first if rules else vocabulary,
        rules.latest_start if rules else 0,
        rules.end_id if rules else 0,
        int(sampling.greedy),
        0,
        NOTHING,
        NOTHING,
        NOTHING,
    )
    weights = (
        sampling.temperature or 1.0,
        sampling.top_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )
    return counts, weights


def on_device(sampling: Sampling) -> bool:
    """Tell whether the device chooses for such a request: one beam, no stop or bad words of several ids, no
    logits for the caller, no minimum length with several end ids.
    """
    early = bool(sampling.min_tokens and sampling.other_ends)
    return sampling.beam_width == 1 and not (sampling.bad_words or sampling.keep_logits or early)


def simple(sampling: Sampling) -> bool:
    """Tell whether a row needs neither penalties nor random numbers."""
    neutral = sampling.repetition_penalty == 1.0 and not sampling.presence_penalty
    return neutral and not sampling.frequency_penalty and sampling.greedy
