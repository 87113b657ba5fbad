"""How TensorRT-LLM chooses tokens, from its kernels: penaltyKernels.cu, samplingTopKKernels.cu,
samplingTopPKernels.cu, stopCriteriaKernels.cu, and runtime/samplingConfig.h (`validate`), as they stood about
0.20.0. No bundle serves more beams than one.

What matters for those who read the figures: log probabilities are those after bias, temperature and
penalties; among the top k only where they are normalised; penalties count the prompt too; the end id is never
part of a sequence, a stop word always is.
"""

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Beam:
    """What was generated."""

    tokens: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    cumulative: float = 0.0
    done: bool = False


def effective(sampling):
    """`validate` and setupTopKRuntimeArgs: temperature 0 becomes 1 with whichever of top_k and top_p was
    given made greedy; neither of both is greedy.
    """
    top_k, top_p, temperature = sampling.top_k, sampling.top_p, sampling.temperature
    if temperature == 0.0:
        temperature, top_k, top_p = 1.0, None if top_k is None else 1, None if top_p is None else 1.0
    k, p = top_k or 0, top_p or 0.0
    if k == 0 and p == 0.0:
        k = 1
    return replace(sampling, top_k=k, top_p=1.0 if k and p == 0.0 else p, temperature=temperature)


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


class Decoding:
    """One request on its way."""

    def __init__(self, request, vocabulary, *, normalize):
        self.request, self.vocabulary, self.normalize = request, vocabulary, normalize
        self.sampling = effective(request.sampling)
        self.random = np.random.default_rng(self.sampling.seed)
        self.beam = Beam()
        self.limit = request.max_new_tokens

    def penalised(self, logits, beam):
        """batchApplyPenalty, then banned words."""
        out, sampling = logits.astype(np.float64), self.sampling
        if self.request.bias is not None:
            out += self.request.bias
        if sampling.temperature is not None and abs(sampling.temperature - 1.0) > 1e-9:
            out *= 1.0 / (sampling.temperature + 1e-6)
        if (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (
            1.0,
            0.0,
            0.0,
        ):
            seen, counts = np.unique([*self.request.tokens, *beam.tokens], return_counts=True)
            out[seen] = np.where(
                out[seen] < 0,
                out[seen] * sampling.repetition_penalty,
                out[seen] / sampling.repetition_penalty,
            )
            out[seen] -= sampling.presence_penalty + sampling.frequency_penalty * counts
        if len(beam.tokens) < sampling.min_tokens and self.request.end_id is not None:
            out[self.request.end_id] = -np.inf
        whole = (*self.request.tokens, *beam.tokens)
        for word in self.request.bad_words:
            if len(word) == 1 or whole[len(whole) - len(word) + 1 :] == word[:-1]:
                out[word[-1]] = -np.inf
        return out

    def advance(self, logits):
        """Choose a token by logits [vocabulary]."""
        log_probs = log_softmax(self.penalised(logits, self.beam))
        token, chosen = self._draw_top_k(log_probs) if self.sampling.top_k else self._draw_top_p(log_probs)
        self.beam = self._plus(self.beam, token, chosen, float(log_probs[token]))

    def _draw_top_k(self, log_probs):
        top = np.argsort(-log_probs, kind="stable")[: self.sampling.top_k]
        probs = np.exp(log_probs[top])
        left = self.random.uniform() * self.sampling.top_p * probs.sum()
        n = next((i for i, total in enumerate(np.cumsum(probs)) if left <= total), len(top) - 1)
        return int(top[n]), float(log_probs[top[n]] - (np.log(probs.sum()) if self.normalize else 0.0))

    def _draw_top_p(self, log_probs):
        order = np.argsort(-log_probs, kind="stable")
        total = np.cumsum(np.exp(log_probs[order]))
        n = int(np.searchsorted(total, self.random.uniform() * self.sampling.top_p))
        token = int(order[min(n, len(order) - 1)])
        return token, float(log_probs[token])

    def _plus(self, beam, token, log_prob, full):
        if token == self.request.end_id:
            return replace(beam, cumulative=beam.cumulative + full, done=True)
        tokens = (*beam.tokens, token)
        stopped = any(tokens[len(tokens) - len(word) :] == word for word in self.request.stop_words if word)
        return Beam(
            tokens, (*beam.log_probs, log_prob), beam.cumulative + full, stopped or len(tokens) >= self.limit
        )
