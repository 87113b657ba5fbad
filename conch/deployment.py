"""deployment.json: what runs where, and what each pool can do. Everybody who serves reads this file alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import contract
from .bundle import Positions


@dataclass(frozen=True)
class Instance:
    """One tritonserver: which model, on which CPUs and GPUs, where its guard listens, where its bundle lies.

    `cpus`: none where it has those of its host to itself. `http`, `grpc`: "host:port" or "unix:/path". `gpus`
    as CUDA_VISIBLE_DEVICES says it; `kv_share`: the part of the engine's cache budget that it may take, less
    than 1 on a shared GPU.
    """

    index: int
    model_id: str
    family: str
    bundle: str
    cpus: tuple[int, ...]
    http: str
    grpc: str
    gpus: str = ""
    kv_share: float = 1.0

    @property
    def name(self) -> str:
        """Its name in logs, supervision and URLs."""
        return f"triton-{self.index}"


@dataclass(frozen=True)
class Chat:
    """A tokenizer's chat template (Jinja), and its special tokens by name (bos_token, eos_token, …).
    `sampling`: temperature, top_p, top_k and repetition_penalty as the checkpoint recommends them.
    """

    template: str
    specials: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pool(Positions):
    """The instances of one model, by index, the probe that tells whether it answers, what its engine can do.

    `positions` and `encoder_positions`: how many tokens its decoder and (0: there is none) its encoder
    read; of an embedding model, `positions` is what its encoder reads, and `dimensions` the size of its
    vectors. `chat`: none where the model has no template. `target` and `precision`: how its engine was
    made, for people; `precision` is empty where the engine chooses when it is loaded. `beams`: how many a
    request for speech takes that names no number; `languages`: codes of those that a speech model knows.
    `built`: when, in seconds since 1970; `size`: bytes of its engine's files. `licence` (of its weights),
    `note` and `examples` (prompts to try it with) are those of its catalogue.
    """

    model_id: str
    family: str
    instances: tuple[int, ...]
    probe: Mapping[str, Any] = field(default_factory=dict)
    capabilities: frozenset[str] = frozenset()
    positions: int = 0
    encoder_positions: int = 0
    chat: Chat | None = None
    target: str = ""
    precision: str = ""
    dimensions: int = 0
    beams: int = 1
    languages: tuple[str, ...] = ()
    built: int = 0
    size: int = 0
    licence: str = ""
    note: str = ""
    examples: tuple[str, ...] = ()

    @property
    def abilities(self) -> frozenset[str]:
        """What may be asked of it: its capabilities, `chat` with a template, `translation` (into English) of
        a speech model that knows several languages.
        """
        translates = "transcription" in self.capabilities and self.languages != ("en",)
        more = {"chat": self.chat is not None, "translation": translates}
        return self.capabilities | {name for name, able in more.items() if able}

    @property
    def embeds_documents(self) -> bool:
        """Its vectors are for texts of any length; those that pictures have too stand for a caption."""
        return "embedding" in self.capabilities and not self.embeds_pictures

    @property
    def embeds_pictures(self) -> bool:
        """Its vectors of pictures and of texts are of one space."""
        return "picture_embedding" in self.capabilities


@dataclass(frozen=True)
class Deployment:
    """All instances, and the pools in MODEL_ID order; the first pool owns the plain /v2 paths.

    `gateways`: their addresses. `resolver`: the name server that nginx asks for hosts that may move, empty
    where all are addresses. `inner_key`: what the gateway says at nginx's inner listener, where that is a
    port that others could reach; empty where it is a socket.
    """

    instances: tuple[Instance, ...]
    pools: tuple[Pool, ...]
    gateways: tuple[str, ...] = ()
    resolver: str = ""
    inner_key: str = ""

    def pool(self, model_id: str) -> Pool:
        """The pool of a model.

        Raises:
            KeyError: no instance serves it.
        """
        for pool in self.pools:
            if pool.model_id == model_id:
                return pool
        raise KeyError(model_id)

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        contract.save(self, path)

    @classmethod
    def load(cls, path: Path) -> Deployment:
        """Read it.

        Raises:
            Malformed: see `contract.load`.
        """
        return contract.load(cls, path)

    @classmethod
    def parse(cls, text: str) -> Deployment:
        """The content of the file.

        Raises:
            Malformed: see `contract.load`.
        """
        return contract.parse(cls, text, "deployment.json")
