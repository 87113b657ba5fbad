"""TensorRT-LLM's executor as far as its callers notice it: its queue, its checks, in-flight batching, shared
blocks of cache and the responses.

From cpp/tensorrt_llm/executor/executorImpl.cpp, cpp/tensorrt_llm/batch_manager/llmRequest.cpp (`validate`,
`createResult`), promptTuningBuffers.cpp and kvCacheManager.cpp of about 0.20.0.
"""

import itertools
import threading
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from decoding import Decoding
from wire import TllmError, check


@dataclass(frozen=True)
class Limits:
    """What the engines were built for, and what the model's configuration says."""

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_beam_width: int
    max_queue_size: int
    vocabulary: int
    max_encoder_input_len: int | None = None
    gather_generation_logits: bool = False
    gather_context_logits: bool = False
    normalize: bool = True
    prompt_rows: int = 0
    hidden: int = 0
    reuse: bool = False


@dataclass(eq=False)
class Active:
    """LlmRequest: a request that is in the executor."""

    id: int
    request: object
    respond: object
    decoding: object = None
    session: object = None
    logits: list = field(default_factory=list)
    sent: int = 0


class Blocks:
    """Blocks that requests share: one is known by its tokens, their extra ids (0 without) and the block
    before it, and anything that asks for it gets what the first made. Keys and values follow from what was
    read, so rows of prompt tables are kept in their place.
    """

    SIZE = 32  # tokens_per_block

    def __init__(self, vocabulary):
        self.vocabulary, self.known = vocabulary, {}

    def table(self, request):
        """The rows that the engine would have read."""
        table, tokens = request.table.copy(), request.tokens
        extra, before, shared = request.extra_ids or (0,) * len(tokens), None, 0
        whole = range(0, len(tokens) - self.SIZE, self.SIZE)  # the last token is always read
        for part in (slice(at, at + self.SIZE) for at in whole):
            rows = [token - self.vocabulary for token in tokens[part] if token >= self.vocabulary]
            key = (before, tokens[part], extra[part])
            shared += key in self.known
            before, kept = self.known.setdefault(key, (len(self.known), table[rows].copy()))
            table[rows] = kept
        print(f"contract backend: {shared} of {len(whole)} blocks shared", flush=True)
        return table


class Executor:
    """One loop: admits what fits, gives every active request a token, responds."""

    def __init__(self, network, limits):
        self.network, self.limits = network, limits
        self.blocks = Blocks(limits.vocabulary)
        self.ids, self.queue, self.active, self.cancelled = itertools.count(1), deque(), [], set()
        self.wake, self.stopping = threading.Condition(), False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def enqueue(self, requests, respond):
        """enqueueRequests: all or none; the ids. `respond(row, beams, logits, final, error)` is called from
        the loop.
        """
        with self.wake:
            most = self.limits.max_queue_size
            if most > 0 and len(self.queue) + len(requests) > most:
                raise TllmError(
                    f"Maximum queue size of {most} has been reached, please try again later",
                    "tensorrt_llm/executor/executorImpl.cpp:1032",
                )
            found = [
                Active(next(self.ids), request, lambda *a, row=row: respond(row, *a))
                for row, request in enumerate(requests)
            ]
            self.queue.extend(found)
            self.wake.notify()
        return [one.id for one in found]

    def cancel(self, ids):
        """cancelRequest."""
        with self.wake:
            self.cancelled |= set(ids)

    def stop(self):
        with self.wake:
            self.stopping = True
            self.wake.notify()
        self.thread.join()

    def _run(self):
        while True:
            with self.wake:
                self.wake.wait_for(lambda: self.stopping or self.queue or self.active)
                if self.stopping:
                    return
                cancelled, self.cancelled = self.cancelled, set()
                fresh = self._fetch()
            for one in [one for one in [*self.active, *fresh, *self.queue] if one.id in cancelled]:
                self._finish_cancelled(one)
            for one in (one for one in fresh if one.id not in cancelled):
                self._admit(one)
            for one in list(self.active):
                self._step(one)

    def _fetch(self):
        """getLeaderNewReqWithIds: requests of one beam width at a time, in their order."""
        fresh = []
        while self.queue and len(self.active) + len(fresh) < self.limits.max_batch_size:
            operating = next((one.request.sampling.beam_width for one in [*self.active, *fresh]), None)
            if operating not in (None, self.queue[0].request.sampling.beam_width):
                break
            fresh.append(self.queue.popleft())
        return fresh

    def _finish_cancelled(self, one):
        """finishByReason(kCANCELLED), clearGeneratedTokens: a final response without tokens."""
        if one in self.active:
            self.active.remove(one)
            one.session.close()
        elif one in self.queue:
            self.queue.remove(one)
        print(
            f"contract backend: request {one.id} was cancelled after "
            f"{0 if one.decoding is None else len(one.decoding.beam.tokens)} tokens",
            flush=True,
        )
        one.respond([((), ())], [0.0], None, True, None)

    def _admit(self, one):
        try:
            one.decoding = self._validated(one.request)
            table = one.request.table
            if table is not None and self.limits.reuse and not self._unusable(table):
                table = self.blocks.table(one.request)
            one.session = self.network.session(self.network.encode(one.request), table)
        except Exception as error:  # noqa: BLE001  # as the C++ does
            message = (
                f"Executor failed process requestId {one.id} due to the following error: Encountered an "
                f"error when fetching new request: {error}"
            )
            one.respond(None, None, None, True, message)
            return
        self.active.append(one)
        if table is not None and (reason := self._unusable(table)):
            self._terminate(f"Encountered an error in forwardAsync function: {reason}")

    def _unusable(self, table):
        """PromptTuningBuffers::validate, and the copy into the request's slot; nothing if it fits."""
        rows, most = len(table), self.limits.prompt_rows
        if rows > most:
            return (
                f"Prompt vocab size{rows} is larger than max prompt vocab size of {most}. Max prompt vocab "
                "size is computed from max_prompt_embedding_table_size / max_batch_size. "
            )
        if table.shape[1] != self.limits.hidden:
            return "Assertion failed: src.getSizeInBytes() == dst.getSizeInBytes()"
        return ""

    def _terminate(self, message):
        """terminateActiveRequests: all of them, whosever fault it is."""
        for one in list(self.active):
            self.active.remove(one)
            one.session.close()
            one.respond(None, None, None, True, message)

    def _validated(self, request):
        limits, place = self.limits, "tensorrt_llm/batch_manager/llmRequest.cpp:248"
        size, longest = limits.vocabulary, len(request.tokens)
        in_range = request.end_id is None or -1 <= request.end_id < size
        check(in_range, f"EndId ({request.end_id}) is not within acceptable range [-1, {size}).", place)
        if request.features is not None and limits.max_encoder_input_len is not None:
            frames = len(request.features)
            fits = frames <= limits.max_encoder_input_len
            check(
                fits,
                f"Encoder length ({frames}) exceeds maximum encoder input length "
                f"({limits.max_encoder_input_len}).",
                place,
            )
        if longest > limits.max_input_len:
            raise TllmError(
                f"Prompt length ({longest}) exceeds maximum input length ({limits.max_input_len}). Set log "
                "level to info and check "
                "TRTGptModel logs for how maximum input length is set",
                place,
            )
        rows = 0 if request.table is None else len(request.table)
        if max(request.tokens) >= size + rows:
            raise TllmError(
                f"token {max(request.tokens)} is beyond {size} words and {rows} rows; the engine would read "
                "another request's",
                "stand-in",
            )
        if limits.reuse and request.table is not None:
            message = "Input token extra ids must be provided when enabling kv cache reuse with prompt table"
            check(request.extra_ids is not None, message, place)
        sampling = request.sampling
        check(sampling.top_p is None or sampling.top_p <= 1.0, "Incorrect sampling config", place)
        check(
            sampling.num_return_sequences in (None, 1)
            or sampling.num_return_sequences <= sampling.beam_width,
            "Incorrect sampling config",
            place,
        )
        message = (
            f"Requested beam width {sampling.beam_width} is larger than configured max beam width "
            f"{limits.max_beam_width}"
        )
        check(
            sampling.beam_width <= limits.max_beam_width,
            message,
            "tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp:1520",
        )
        check(sampling.beam_width == 1, "beams are not played by this stand-in", "stand-in")
        message = "Return context logit need to build engine with gather_context_logits"
        check(
            not request.context_logits or limits.gather_context_logits,
            message,
            "tensorrt_llm/executor/executorImpl.cpp:1470",
        )
        message = "To return generation logits, gather_generation_logits must be enabled in ExecutorConfig"
        check(
            not request.generation_logits or limits.gather_generation_logits,
            message,
            "tensorrt_llm/executor/executorImpl.cpp:1478",
        )
        message = (
            "The embedding bias shape is not as expected. Expected last dimension to be same as vocab size: "
            f"{size}."
        )
        check(
            request.bias is None or len(request.bias) == size,
            message,
            "tensorrt_llm/batch_manager/createNewDecoderRequests.cpp:220",
        )
        decoding = Decoding(request, size, normalize=limits.normalize)
        decoding.limit = min(request.max_new_tokens, limits.max_seq_len - longest)
        return decoding

    def _step(self, one):
        """A token."""
        request, decoding = one.request, one.decoding
        try:
            logits = one.session.step(decoding.beam.tokens[-1:] or request.tokens)
            decoding.advance(logits)
        except Exception as error:  # noqa: BLE001  # as the C++ does
            self.active.remove(one)
            one.respond(
                None,
                None,
                None,
                True,
                f"Executor failed process requestId {one.id} due to the following error: {error}",
            )
            return
        if request.generation_logits:
            one.logits.append(logits)
        self._respond(one, final=decoding.beam.done)

    def _respond(self, one, *, final):
        """createResult."""
        request, beam = one.request, one.decoding.beam
        if final:
            self.active.remove(one)
            one.session.close()
        length = len(beam.tokens)
        if not final and not (request.streaming and length > one.sent):
            return
        prompt = () if request.exclude_input or request.streaming else request.tokens
        rows = [((*prompt, *beam.tokens[one.sent :]), beam.log_probs)]
        one.respond(rows, [beam.cumulative], self._logits(one, length), final, None)
        one.sent = length

    def _logits(self, one, length):
        """allocGenerationLogitsHost: [beams, max_new_tokens, vocabulary]; for streams [tokens, beams,
        vocabulary], of the new tokens.
        """
        request = one.request
        if not request.generation_logits:
            return None
        vocabulary = self.limits.vocabulary
        if request.streaming:
            return np.array(one.logits[one.sent : length], np.float32).reshape(-1, 1, vocabulary)
        whole = np.zeros((1, one.decoding.limit, vocabulary), np.float32)
        whole[0, : len(one.logits)] = one.logits
        return whole
