"""deployment.json: which instance runs where, and what each pool can do. The gateway, the guards and nginx's
configuration are made from this file alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import contract
from .bundle import Positions


@dataclass(frozen=True)
class Instance:
    """One tritonserver.

    Attributes:
        cpus: CPUs that it may use; empty if it has all of its host
        gpus: as CUDA_VISIBLE_DEVICES has it
        http: address of its guard, as is `grpc`: "host:port" or "unix:/path"
        kv_share: its part of the engine's cache budget, less than 1 on a shared GPU
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
        """Return its name in logs, supervision and URLs."""
        return f"triton-{self.index}"


@dataclass(frozen=True)
class Chat:
    """A tokenizer's chat template (Jinja), and its special tokens by name (bos_token, eos_token, …).
    `sampling` has the temperature, top_p, top_k and repetition_penalty that the checkpoint recommends;
    `control` the texts of all special tokens.
    """

    template: str
    specials: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, float] = field(default_factory=dict)
    control: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pool(Positions):
    """The instances of one model by index, its health probe, and what its engine can do.

    Attributes:
        positions: tokens that its decoder holds; for an embedding model, tokens that its encoder reads
        encoder_positions: tokens that its encoder reads; 0 without one
        dimensions: size of an embedding model's vectors
        chat: None if the model has no chat template
        target: how its engine was built, for display
        precision: empty if the engine chooses when it is loaded
        beams: default beam width of speech requests
        rows: sequences that its engine computes at once
        languages: codes of the languages that a speech model knows
        built: time in seconds since 1970
        size: bytes of its engine's files
        licence: of its weights; `note` and `examples` (sample prompts) are the catalog's, too
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
    rows: int = 16
    languages: tuple[str, ...] = ()
    built: int = 0
    size: int = 0
    licence: str = ""
    note: str = ""
    examples: tuple[str, ...] = ()

    @property
    def abilities(self) -> frozenset[str]:
        """Return what requests may ask for: its capabilities, `chat` if it has a template, and `translation`
        (into English) for a multilingual speech model.
        """
        translates = "transcription" in self.capabilities and self.languages != ("en",)
        more = {"chat": self.chat is not None, "translation": translates}
        return self.capabilities | {name for name, able in more.items() if able}

    @property
    def embeds_documents(self) -> bool:
        """Tell whether its vectors suit texts of any length; a model that embeds pictures, too, expects
        captions.
        """
        return "embedding" in self.capabilities and not self.embeds_pictures

    @property
    def embeds_pictures(self) -> bool:
        """Tell whether it embeds pictures and texts in one vector space."""
        return "picture_embedding" in self.capabilities


@dataclass(frozen=True)
class Deployment:
    """All instances, and the pools in MODEL_ID order; the first pool owns the plain /v2 paths.

    Attributes:
        gateways: addresses of the gateways
        resolver: name server that nginx asks for hosts whose address may change; empty if all are addresses
        inner_key: key that the gateway sends to nginx's internal listener where others could reach that port;
            empty for a socket
    """

    instances: tuple[Instance, ...]
    pools: tuple[Pool, ...]
    gateways: tuple[str, ...] = ()
    resolver: str = ""
    inner_key: str = ""

    def pool(self, model_id: str) -> Pool:
        """Find the pool of a model.

        Raises:
            KeyError: no instance serves it.
        """
        for pool in self.pools:
            if pool.model_id == model_id:
                return pool
        raise KeyError(model_id)

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        contract.save(self, path)

    @classmethod
    def load(cls, path: Path) -> Deployment:
        """Read the file.

        Raises:
            Malformed: see `contract.load`.
        """
        return contract.load(cls, path)
