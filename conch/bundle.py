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

from .contract import Stored

MANIFEST, PARAMETERS, ENGINE = "manifest.json", "parameters.json", "engine"


class Positions:
    """Lengths of an engine, for every contract that has both fields."""

    positions: int
    encoder_positions: int

    @property
    def encodes(self) -> bool:
        """Tell whether it has an encoder and a decoder, so that the input is not part of the output."""
        return self.encoder_positions > 0

    @property
    def reads(self) -> int:
        """Return the length in tokens of the longest text that it reads."""
        return self.encoder_positions or self.positions


@dataclass(frozen=True)
class EngineFacts(Positions, Stored):
    """Contents of engine.json.

    Attributes:
        positions: tokens that the decoder can hold
        encoder_positions: length of the longest encoder output; 0 for a decoder-only model
        other_ends: further ids that end a text, besides `end_id`
        mels: width of the features that the engine reads; 0 if it reads ids
        suppress: ids that are never generated
        decoder_start: the decoder's first ids where a request gives none
        layers: of portable engines, as are `heads` (of keys and values) and `head_width`
        attends: it returns cross-attention for each token that it generates
        timestamp_rules: it applies Whisper's timestamp rules
        takes_samples: it computes features from samples itself
        tempered_log_probs: log probabilities are taken after temperature and penalties
        full_logits: without streaming, logits cover every token that was allowed
        misread: inputs that the backend reads incorrectly
        short_frames: lengths of features, below the longest, that it reads in less time
        dimensions: size of the vector of an embedding model; 0 if the engine generates
        prompt_width: size of a row of the prompt-embedding table that a request may bring; 0 if it takes none
        prompt_rows: the most rows of that table; 0 for as many as there are positions
        windows: decoder-only: each layer's sliding window in ids, including the id itself, 0 for all ids
        score_cap: decoder-only: attention scores x become cap * tanh(x / cap); 0 leaves them
    """

    FILE = "engine.json"

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
    windows: tuple[int, ...] = ()
    score_cap: float = 0.0

    @property
    def frames(self) -> int:
        """Return the frames of the longest features that it reads: two for each encoder position (Whisper's
        second convolution has a stride of 2).
        """
        return 2 * self.encoder_positions


@dataclass(frozen=True)
class PictureFacts(Stored):
    """Contents of picture.json. The shorter side is resized to `resized` pixels, then the central square of
    `size` pixels is cut out. If `resized` is 0, both sides are resized to `size` pixels whatever the shape.
    `mean` and `deviation` normalize red, green and blue, each from 0 to 1. `pixels` is the precision of the
    encoder's input: float32 or float16.
    """

    FILE = "picture.json"

    size: int
    resized: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    pixels: str = "float32"


@dataclass(frozen=True)
class PicturePrompt(Stored):
    """Contents of picture_prompt.json: how a picture is placed in a prompt.

    Attributes:
        placeholder: id that stands for a picture; the tokenizer's `token`
        rows: rows of the prompt-embedding table that replace it
        template: prompt, with `{text}`, for a text that does not place its picture
        leads: rows come before all tokens, including the tokenizer's first, so there is one picture at most
    """

    FILE = "picture_prompt.json"

    rows: int
    placeholder: str
    token: int
    template: str
    leads: bool = False

    @staticmethod
    def there(engine: Path) -> bool:
        """Tell whether the engine answers questions about pictures."""
        return (engine / PicturePrompt.FILE).exists()


@dataclass(frozen=True)
class Probe:
    """A tiny real inference used as health check: the model, and for each input its datatype, shape and
    content.
    """

    model: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class Serving:
    """What the guard needs to start a server.

    Attributes:
        world_size: processes of an instance, each with one GPU
        cuda_pool_bytes: size of Triton's CUDA memory pool
        mpi: the backend uses MPI, even with one process, and the guard starts all processes; otherwise the
            engine starts those beyond the first
    """

    world_size: int = 1
    cuda_pool_bytes: int = 0
    mpi: bool = False


@dataclass(frozen=True)
class Manifest(Stored):
    """Contents of manifest.json. A build whose `engine` and `repository` equal these does nothing. `content`
    is the hash of the weights, `built` the time in UTC.
    """

    FILE = MANIFEST

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

    @property
    def wanted(self) -> dict[str, Any]:
        """Return what the bundle was made from."""
        names = ("model", "family", "target", "engine", "repository")
        return {name: getattr(self, name) for name in names}


def speech_facades(parameters: Mapping[str, Any], cpus: int) -> int:
    """Return how many processes the speech façade of a bundle with these parameters has on a machine with
    `cpus`; 0 if its target leaves that to its configuration. With one process in front of a GPU, Python's GIL
    limits it (docs/benchmarks/h200.md), and each takes memory.
    """
    if "facade_instances" not in parameters:
        return 0
    return int(parameters["facade_instances"]) or max(1, min(4, cpus // 4))


def load_parameters(bundle: Path) -> dict[str, Any]:
    """Read parameters.json. Which parameters it has depends on family and target (model_repos/families)."""
    return dict(json.loads((bundle / PARAMETERS).read_text("utf-8")))
