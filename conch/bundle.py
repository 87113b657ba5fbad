"""What a build leaves and serving reads: engines/<model>/<target>/.

manifest.json        what it was made from, and what the guard must know
parameters.json      the recipe's parameters (precision, batch sizes, …), by name
engine/engine.json   what schedulers and façades must know about the engine
engine/picture.json  of engines that read pictures: how those are made ready
engine/picture_prompt.json  of engines that answer about pictures: how those stand in a text
engine/…             the engine's own files, and the tokenizer's
repository/          Triton's model repository
conch/, serving/     the Python code of the repository's models
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import contract

MANIFEST, PARAMETERS, ENGINE = "manifest.json", "parameters.json", "engine"


class Positions:
    """What the lengths of an engine say, for contracts that have both."""

    positions: int
    encoder_positions: int

    @property
    def encodes(self) -> bool:
        """It has an encoder and a decoder: what is read is not part of what is written."""
        return self.encoder_positions > 0

    @property
    def reads(self) -> int:
        """Tokens of the longest text that it reads."""
        return self.encoder_positions or self.positions


@dataclass(frozen=True)
class EngineFacts(Positions):
    """engine.json.

    `positions`: tokens that the decoder holds; `other_ends`: ids that end a text as `end_id` does;
    `encoder_positions`: those of the longest memory that its encoder leaves (0: a decoder alone). `mels`:
    width of the features that it reads (0: it reads ids). `suppress`: ids that are never generated;
    `decoder_start`: the decoder's first ids where a request names none. `layers`, `heads`, `head_width`: of
    portable engines. `aligns`: it gives cross-attention for a text, `attends`: and for each token of a text
    that it makes; `timestamp_rules`: it knows Whisper's; `takes_samples`: it makes features of samples
    itself. `tempered_log_probs`: log probabilities are those after temperature and penalties; `full_logits`:
    without streaming, logits come for every token that was allowed; `misread`: inputs that the backend reads
    wrongly. `short_frames`: lengths of features, less than the longest, that it reads in less time.
    `dimensions`: numbers of the vector that an encoder alone gives (0: the engine generates).
    `prompt_width`: numbers of a row of the prompt-embedding table that a request may bring (0: it takes
    none), `prompt_rows`: the most rows (0: as many as there are positions); `heads` are those of keys and
    values.
    """

    family: str
    positions: int
    vocabulary: int
    end_id: int
    pad_id: int = 0
    encoder_positions: int = 0
    decoder_start: tuple[int, ...] = ()
    mels: int = 0
    suppress: tuple[int, ...] = ()
    layers: int = 0
    heads: int = 0
    head_width: int = 0
    aligns: bool = False
    attends: bool = False
    timestamp_rules: bool = False
    takes_samples: bool = False
    tempered_log_probs: bool = False
    full_logits: bool = False
    misread: tuple[str, ...] = ()
    dimensions: int = 0
    prompt_width: int = 0
    prompt_rows: int = 0
    other_ends: tuple[int, ...] = ()
    short_frames: tuple[int, ...] = ()

    @property
    def frames(self) -> int:
        """Frames of the longest features that it reads: two for each position of the memory (Whisper's second
        convolution has a stride of 2).
        """
        return 2 * self.encoder_positions

    @classmethod
    def load(cls, engine: Path) -> EngineFacts:
        """Of an engine folder.

        Raises:
            Malformed: see `contract.load`.
        """
        return contract.load(cls, engine / "engine.json")

    def save(self, engine: Path) -> None:
        """Into an engine folder."""
        contract.save(self, engine / "engine.json")


@dataclass(frozen=True)
class PictureFacts:
    """picture.json: the shorter side becomes `resized` pixels long, then the middle `size` pixels on a side
    are cut out; `resized` 0: both sides become `size` pixels long, whatever the picture's shape. `mean`,
    `deviation`: what red, green and blue, from 0 to 1, are normalized with.
    """

    size: int
    resized: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def load(cls, engine: Path) -> PictureFacts:
        """Of an engine folder.

        Raises:
            Malformed: see `contract.load`.
        """
        return contract.load(cls, engine / "picture.json")

    def save(self, engine: Path) -> None:
        """Into an engine folder."""
        contract.save(self, engine / "picture.json")


@dataclass(frozen=True)
class PicturePrompt:
    """picture_prompt.json: how a picture stands in a text. It becomes `rows` rows of the prompt-embedding
    table, in place of `placeholder`, which is the tokenizer's `token`. `template`: what a text that names no
    place for its one picture stands in, as `{text}`. `leads`: rows come before all tokens, the first of the
    tokenizer's own included, so there is one picture at most.
    """

    rows: int
    placeholder: str
    token: int
    template: str
    leads: bool = False

    @classmethod
    def load(cls, engine: Path) -> PicturePrompt:
        """Of an engine folder.

        Raises:
            Malformed: see `contract.load`.
        """
        return contract.load(cls, engine / "picture_prompt.json")

    @staticmethod
    def there(engine: Path) -> bool:
        """Whether the engine answers about pictures."""
        return (engine / "picture_prompt.json").exists()

    def save(self, engine: Path) -> None:
        """Into an engine folder."""
        contract.save(self, engine / "picture_prompt.json")


@dataclass(frozen=True)
class Probe:
    """A tiny real inference: the model, and for each input its datatype, its shape, and what fills it."""

    model: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class Serving:
    """What the guard must know to start a server: how many processes, each with a GPU, an instance is
    (`world_size`), bytes of Triton's CUDA memory pool, and whether its backend uses MPI, which one process
    does too. With `mpi` the guard starts all of them, otherwise the engine starts those beyond the first.
    """

    world_size: int = 1
    cuda_pool_bytes: int = 0
    mpi: bool = False


@dataclass(frozen=True)
class Manifest:
    """manifest.json. `engine` and `repository`: what the bundle was made from; a build that wants the same
    does nothing. `content`: hash of the weights; `built`: when, UTC.
    """

    model: str
    family: str
    target: str
    engine: Mapping[str, Any]
    repository: Mapping[str, Any]
    content: str
    built: str
    capabilities: tuple[str, ...]
    probe: Probe
    serving: Serving = field(default_factory=Serving)

    @classmethod
    def load(cls, bundle: Path) -> Manifest:
        """Of a bundle.

        Raises:
            Malformed: see `contract.load`.
        """
        return contract.load(cls, bundle / MANIFEST)

    @property
    def wanted(self) -> dict[str, Any]:
        """What it was made from."""
        names = ("model", "family", "target", "engine", "repository")
        return {name: getattr(self, name) for name in names}


def load_parameters(bundle: Path) -> dict[str, Any]:
    """parameters.json: which there are depends on family and target (model_repos/families)."""
    return dict(json.loads((bundle / PARAMETERS).read_text("utf-8")))
