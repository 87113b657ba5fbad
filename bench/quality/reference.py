"""References for ids and word times: transformers on the same features, and openai/whisper on the same
weights and audio.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, GenerationMixin, WhisperForConditionalGeneration
from transformers.generation.logits_process import (
    LogitsProcessorList,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)
from transformers.modeling_outputs import BaseModelOutput

from build.layouts.whisper import openai_file
from serving.audio.log_mel import log_mel
from serving.audio.whisper import Whisper
from speech.transcript import Word

from .scores import PLAIN

Floats = NDArray[np.float32]
LONGEST = 200  # ids
# Too large for everybody's environment: 210 MB, of which most is numba's compiler.
OPENAI = (
    "bench.quality words: openai/whisper is missing; run pip install --no-deps openai-whisper==20250625 "
    "tiktoken==0.14.0 numba==0.68.1 llvmlite==0.50.0 more-itertools==11.2.1"
)


@dataclass(frozen=True)
class Transformers:
    """transformers' own search, in 32 bits, over a façade's features."""

    folder: Path
    whisper: Whisper

    @cached_property
    def model(self) -> WhisperForConditionalGeneration:
        """Load the folder's model."""
        return WhisperForConditionalGeneration.from_pretrained(self.folder, dtype=torch.float32).eval()

    def ids(self, wave: Floats, prefix: str, beams: int) -> list[int]:
        """Return the ids of a clip, samples [n], after a prompt. With timestamps, Whisper's rules for them
        are transformers', too.
        """
        vocabulary, facts = self.whisper.vocabulary, self.whisper.facts
        prompt = list(vocabulary.prompt(prefix, facts.positions).ids)
        config = GenerationConfig(
            num_beams=beams,
            do_sample=False,
            max_length=len(prompt) + LONGEST,
            eos_token_id=vocabulary.end,
            pad_token_id=vocabulary.end,
            decoder_start_token_id=vocabulary.start,
        )
        rules = [SuppressTokensLogitsProcessor(list(facts.suppress))] if facts.suppress else []
        if vocabulary.no_timestamps not in prompt:
            config.no_timestamps_token_id = vocabulary.no_timestamps
            config.max_initial_timestamp_index = 50
            rules.append(WhisperTimeStampLogitsProcessor(config, begin_index=len(prompt)))
        features = log_mel(wave, facts.mels).astype(np.float16).astype(np.float32)
        with torch.no_grad():
            memory = self.model.model.encoder(torch.from_numpy(features.T.copy())[None])
            out = GenerationMixin.generate(
                self.model,
                encoder_outputs=BaseModelOutput(last_hidden_state=memory.last_hidden_state),
                decoder_input_ids=torch.tensor([prompt]),
                generation_config=config,
                logits_processor=LogitsProcessorList(rules),
            )
        return [token for token in out[0].tolist()[len(prompt) :] if token != vocabulary.end]


def openai_model(folder: Path, heads: Sequence[tuple[int, int]]) -> Any:
    """Load openai/whisper's model of a Hugging Face folder; `heads` are the (layer, head) pairs for word
    times.

    Raises:
        SystemExit: the package is not installed.
    """
    try:
        from whisper.model import ModelDimensions
        from whisper.model import Whisper as Theirs
    except ImportError as error:
        raise SystemExit(OPENAI) from error
    made = openai_file(folder)
    model = Theirs(ModelDimensions(**made["dims"]))
    model.load_state_dict({name: tensor.float() for name, tensor in made["model_state_dict"].items()})
    mask = torch.zeros(model.dims.n_text_layer, model.dims.n_text_head, dtype=torch.bool)
    mask[tuple(zip(*heads, strict=True))] = True
    model.register_buffer("alignment_heads", mask.to_sparse(), persistent=False)
    return model.eval()


def openai_words(model: Any, wave: Floats) -> list[Word]:
    """Return its words of samples [n], greedy, with times in seconds."""
    with torch.no_grad():
        found = model.transcribe(
            wave, language="en", temperature=0.0, word_timestamps=True, fp16=False, verbose=None
        )
    return [
        Word(word["word"], float(word["start"]), float(word["end"]))
        for segment in found["segments"]
        for word in segment["words"]
    ]


def apart(ours: Sequence[Word], theirs: Sequence[Word]) -> Iterator[float]:
    """Return the seconds between the starts, and between the ends, of words that both have."""
    mine, others = ([PLAIN(word.text) for word in words] for words in (ours, theirs))
    for a, b, count in SequenceMatcher(None, mine, others, autojunk=False).get_matching_blocks():
        for one, other in zip(ours[a : a + count], theirs[b : b + count], strict=True):
            yield abs(one.start - other.start)
            yield abs(one.end - other.end)
