"""What turned weights into engines: its identity is stamped on every bundle, and the server that loads one
compares it with what is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Protocol

from .driver import Needs


class ToolchainError(Exception):
    """The toolchain cannot be asked; the message says why and what to do."""


@dataclass(frozen=True)
class Identity:
    """What a bundle is stamped with. `toolchain`: its name, or what a stand-in calls itself; `image` and
    `gpu` are empty where there is none.
    """

    toolchain: str
    versions: Mapping[str, str]
    image: Mapping[str, str]
    gpu: Mapping[str, str]

    def stamp(self) -> dict[str, Any]:
        """As the manifest holds it."""
        return asdict(self)


class Toolchain(Protocol):
    """The tools of one target, as far as a server has to know them."""

    @property
    def name(self) -> str:
        """The target's."""

    @property
    def deciding(self) -> tuple[str, ...]:
        """Packages whose versions must be the same where an engine is made and where it is served."""

    @property
    def driver(self) -> Needs | None:
        """What its image needs of NVIDIA's driver; None without a GPU."""

    @property
    def caution(self) -> str:
        """What to know before its first use; empty where it has run."""

    def identity(self, devices: str = "") -> Identity:
        """What is on this machine, with the first GPU of `devices`.

        Raises:
            ToolchainError: it cannot be asked.
        """

    def remedy(self, model_id: str) -> str:
        """The command that rebuilds a bundle."""


@dataclass(frozen=True)
class Packages:
    """A toolchain of Python packages on the machine's own processors. `making`: further packages that shape
    an engine, and that a server need not have.
    """

    name: str
    deciding: tuple[str, ...] = ()
    making: tuple[str, ...] = ()
    driver: Needs | None = None
    caution: str = ""

    def identity(self, devices: str = "") -> Identity:
        """Versions of those that are installed here."""
        return Identity(self.name, installed((*self.deciding, *self.making)), {}, {})

    def remedy(self, model_id: str) -> str:
        """The builder's own command."""
        return f"make engines MODEL_ID={model_id} TARGET={self.name} (in Docker: docker compose up -d)"


def installed(names: Sequence[str]) -> dict[str, str]:
    """Versions of those packages that are installed here."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def differences(made: Mapping[str, Any], here: Identity, deciding: Sequence[str]) -> list[str]:
    """Why an engine with stamp `made` does not belong to the toolchain that is here, one clause each.

    Of the packages only those that are `deciding` are compared: a serving environment has neither torch nor
    an exporter.
    """
    if made["toolchain"] != here.toolchain:
        return [f"it was made by the toolchain {made['toolchain']}, this server has {here.toolchain}"]
    pairs = [(name, made["versions"].get(name), here.versions.get(name)) for name in deciding]
    pairs += [
        (f"GPU {key.replace('_', ' ')}", value, here.gpu.get(key)) for key, value in made["gpu"].items()
    ]
    pairs += [("image build", made["image"].get("build"), here.image.get("build"))]
    return [
        f"it was made with {what} {old}, this server has {new or 'none'}"
        for what, old, new in pairs
        if old != new
    ]
