"""The portable engine against transformers, and the scheduler's promises."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, WhisperForConditionalGeneration
from transformers.generation.utils import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput

from build.checkpoints.whisper import alignment_heads
from miniatures.training.speech.clips import Clipper, SpeechClip
from miniatures.training.speech.corpus import Corpus
from serving.audio.log_mel import log_mel
from serving.engine.collected import Collected
from serving.engine.jobs import Job, Limits
from serving.engine.openvino.runtime import REMEMBERED, OpenVinoRuntime
from serving.engine.sampling import Hypothesis, Sampling
from serving.engine.scheduler import Scheduler
from serving.errors import QueueFull

from .. import engines
from ..conftest import MINIATURE

pytestmark = pytest.mark.long

CLIPS, BATCH = 12, 6
END = 50257
LANGUAGES = {"en": 50259, "es": 50262}
Speech = list[tuple[SpeechClip, np.ndarray]]


def prompt(clip: SpeechClip) -> tuple[int, ...]:
    return (50258, LANGUAGES[clip.language], 50359, 50363)


@pytest.fixture(scope="module")
def speech(corpus: Corpus) -> Speech:
    clipper = Clipper(corpus, random.Random(1))
    clips = [clipper.speech(int(clipper.rng.uniform(1.5, 14) * 16000)) for _ in range(CLIPS)]
    return [(clip, log_mel(clipper.wave(clip), 80)) for clip in clips]


@pytest.fixture(scope="module")
def reference() -> WhisperForConditionalGeneration:
    return WhisperForConditionalGeneration.from_pretrained(
        MINIATURE, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def theirs(model: WhisperForConditionalGeneration, speech: Speech, beams: int) -> list[list[int]]:
    """transformers' plain generate, without Whisper's own extras, `BATCH` clips at a time."""
    start = len(prompt(speech[0][0]))
    config = GenerationConfig(
        num_beams=beams,
        do_sample=False,
        max_length=start + 100,
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=50258,
    )
    said: list[list[int]] = []
    for first in range(0, len(speech), BATCH):
        clips, features = zip(*speech[first : first + BATCH], strict=True)
        with torch.no_grad():
            mels = torch.from_numpy(np.stack([one.T for one in features]))
            memory = BaseModelOutput(last_hidden_state=model.model.encoder(mels).last_hidden_state)
            ids = torch.tensor([prompt(clip) for clip in clips])
            out = GenerationMixin.generate(
                model, encoder_outputs=memory, decoder_input_ids=ids, generation_config=config
            )
        said += [[token for token in row[start:] if token != END] for row in out.tolist()]
    return said


@pytest.mark.timeout(900)  # two minutes on two idle cores
@pytest.mark.parametrize("beams", [1, 4])
def test_ids_equal_transformers(
    graphs: OpenVinoRuntime, speech: Speech, reference: WhisperForConditionalGeneration, beams: int
) -> None:
    """Greedy and beam ids are transformers', for clips of mixed length that share the running batch."""
    some = speech[: BATCH if beams > 1 else CLIPS]  # 24 beams are more than there are rows
    sampling = Sampling(max_tokens=100, end_id=END, beam_width=beams)
    jobs = [Job(prompt(clip), sampling, Collected(), features) for clip, features in some]
    assert engines.answers(graphs, jobs, max_rows=16) == theirs(reference, some, beams)


class Begun(Collected):
    """Says when its first token is there."""

    def __init__(self) -> None:
        super().__init__()
        self.first = threading.Event()
        self.on_update = lambda _: self.first.set()


def ask(
    scheduler: Scheduler,
    said: tuple[SpeechClip, np.ndarray],
    tokens: int,
    listener: Any = None,
    *,
    request_id: str = "",
    **sampling: Any,
) -> Any:
    """A request for a clip; its listener. It streams if one is given."""
    clip, features = said
    heard = listener or Collected()
    choice = Sampling(**{"max_tokens": tokens, "end_id": END, **sampling})
    streams = listener is not None
    scheduler.submit(Job(prompt(clip), choice, heard, features, streaming=streams, request_id=request_id))
    return heard


def test_short_overtakes_long(scheduler: Scheduler, speech: Speech) -> None:
    """A request that comes later and needs fewer tokens finishes first; both results are as if alone."""
    long = ask(scheduler, speech[0], 440, Begun(), min_tokens=440)
    assert long.first.wait(60)
    early = ask(scheduler, speech[0], 5).wait(60)[0].ids
    assert not long.result.done()
    assert len(long.wait(60)[0].ids) == 440
    assert ask(scheduler, speech[0], 5).wait(60)[0].ids == early


def test_full_queue_is_refused(scheduler: Scheduler, speech: Speech) -> None:
    """Beyond max_queue waiting requests, submit says so at once; what was accepted is answered."""
    listeners = []
    with pytest.raises(QueueFull, match="at capacity"):
        for _ in range(40):
            listeners.append(ask(scheduler, speech[0], 200, min_tokens=200))
    assert all(len(listener.wait(60)[0].ids) == 200 for listener in listeners)


def test_streaming_shows_every_token(scheduler: Scheduler, speech: Speech) -> None:
    """Updates grow by one token and lead to the result."""
    seen: list[tuple[int, ...]] = []
    listener = Collected(on_update=lambda beams: seen.append(beams[0].ids))
    final: Hypothesis = ask(scheduler, speech[1], 100, listener).wait(60)[0]
    assert [len(ids) for ids in seen] == list(range(1, len(seen) + 1))
    assert final.ids[: len(seen[-1])] == seen[-1]


def test_bias_and_logits(scheduler: Scheduler, speech: Speech) -> None:
    """embedding_bias forbids a token for its request alone, while another runs without; logits come back one
    row per token.
    """
    plain = ask(scheduler, speech[2], 20).wait(60)[0].ids
    bias = np.zeros(51865, np.float32)
    bias[plain[0]] = -1e9
    biased = ask(scheduler, speech[2], 20, bias=bias, keep_logits=True)
    beside = ask(scheduler, speech[2], 20)
    result = biased.wait(60)[0]
    assert plain[0] not in result.ids
    assert result.logits[0].shape == (51865,)
    assert beside.wait(60)[0].ids == plain


def test_timeline_is_compacted(graphs: OpenVinoRuntime, speech: Speech) -> None:
    """Under load without a pause the common time axis stays bounded, and results stay right."""
    scheduler, widths = Scheduler(graphs, Limits(max_rows=4, max_queue=400)), list[int]()
    scheduler.start()
    expected = ask(scheduler, speech[3], 40, min_tokens=40).wait(60)[0].ids
    lengths = [
        20 + i % 17 for i in range(90)
    ]  # 600 steps, and different ones, so that the batch never runs empty
    listeners = [
        Collected(on_update=lambda _: widths.append(scheduler.batch.columns.shape[1])) for _ in lengths
    ]
    for length, listener in zip(lengths, listeners, strict=True):
        ask(scheduler, speech[3], length, listener, min_tokens=40)
    assert [listener.wait(120)[0].ids for listener in listeners] == [expected[:length] for length in lengths]
    assert 100 < max(widths) < 500, "looked at after every token"
    scheduler.stop()


def test_equal_requests_are_two(graphs: OpenVinoRuntime, speech: Speech) -> None:
    """The same request several times at once, with a bias: comparing them must not compare arrays."""
    scheduler = Scheduler(graphs)
    listeners = [ask(scheduler, speech[0], 60, bias=np.zeros(51865, np.float32)) for _ in range(4)]
    scheduler.start()
    assert len({listener.wait(60)[0].ids for listener in listeners}) == 1
    scheduler.stop()


@torch.no_grad()
def attended(
    model: WhisperForConditionalGeneration, features: np.ndarray, ids: tuple[int, ...]
) -> np.ndarray:
    """Cross-attention of the alignment heads from each id of a text."""
    mels, text = torch.from_numpy(features.T[None]), torch.tensor([ids])
    layers = model(mels, decoder_input_ids=text, output_attentions=True).cross_attentions
    return np.stack([layers[layer][0, head].numpy() for layer, head in alignment_heads(model)])


@pytest.mark.parametrize(("target", "beams"), [("openvino", 1), ("openvino", 3), ("torch", 3)])
def test_steps_tell_where_they_looked(
    torch_engine: Path,
    graphs: OpenVinoRuntime,
    speech: Speech,
    reference: WhisperForConditionalGeneration,
    target: str,
    beams: int,
) -> None:
    """As transformers' does in the whole text, of texts that run concurrently, and of the best beam. One
    sequence of the torch engine: test_torch_graphs.py.
    """
    runtime = graphs if target == "openvino" else engines.runtime("torch", torch_engine)
    scheduler, made = Scheduler(runtime), []
    scheduler.start()
    for clip, features in speech[:3]:
        sampling = Sampling(max_tokens=60, end_id=END, beam_width=beams)
        job = Job(prompt(clip), sampling, Collected(), features, attend=True)
        made.append(job)
        scheduler.submit(job)
    for (clip, features), job in zip(speech, made, strict=False):
        ids = (*prompt(clip), *job.listener.wait(60)[0].ids)
        read = attended(reference, features, ids)[:, len(prompt(clip)) - 1 :]
        seen = job.seen()
        assert seen.shape == read.shape
        assert np.abs(seen.astype(np.float32) - read).max() <= 0.02
    scheduler.stop()


@pytest.mark.parametrize("rows", [4, 3 * REMEMBERED])
def test_a_sound_is_encoded_once(
    monkeypatch: pytest.MonkeyPatch,
    graphs: OpenVinoRuntime,
    speech: Speech,
    rows: int,
) -> None:
    """Sounds are asked for again as their texts end, while more run, or wait, than memories are kept."""
    encoded: list[object] = []
    infer = graphs.encoding.infer  # type: ignore[union-attr]
    counted = SimpleNamespace(
        infer=lambda inputs: (encoded.append(inputs), infer(inputs)),
        get_output_tensor=graphs.encoding.get_output_tensor,  # type: ignore[union-attr]
    )
    monkeypatch.setattr(graphs, "encoding", counted)
    heard = [(clip, features + np.float32(1e-3 * rows)) for clip, features in speech[: 3 * REMEMBERED]]
    scheduler = Scheduler(graphs, Limits(max_rows=rows))
    scheduler.start()

    def ask(clip: SpeechClip, features: np.ndarray) -> None:
        for tokens in (100, 1):
            listener, sampling = Collected(), Sampling(max_tokens=tokens, end_id=END)
            scheduler.submit(Job(prompt(clip), sampling, listener, features))
            listener.wait(60)

    with ThreadPoolExecutor(len(heard)) as threads:
        list(threads.map(ask, *zip(*heard, strict=True)))
    scheduler.stop()
    assert len(encoded) == len(heard)
