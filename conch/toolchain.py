"""Identify the toolchain that built an engine. Its identity is stamped on every bundle, and a server compares
the stamp with what is installed before it loads one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar

from .driver import Needs


class ToolchainError(Exception):
    """The toolchain cannot be identified; the message gives reason and remedy."""


@dataclass(frozen=True)
class Identity:
    """What a bundle is stamped with. `toolchain` is its name, or a stand-in's; `image` and `gpu` are empty
    where there is none.
    """

    toolchain: str
    versions: Mapping[str, str]
    image: Mapping[str, str]
    gpu: Mapping[str, str]


@dataclass(frozen=True)
class Toolchain:
    """The tools of one target, as far as a server needs to know them: by default Python packages.

    Attributes:
        name: the target's
        deciding: packages whose versions must be equal where an engine is built and served
        making: further packages that determine an engine and that a server does not need
        driver: what its image needs of NVIDIA's driver; None without a GPU
        caution: what a user should know before its first use; empty if it has been run
    """

    name: str
    deciding: tuple[str, ...] = ()
    making: tuple[str, ...] = ()
    driver: Needs | None = None
    caution: ClassVar[str] = ""

    def needs(self, settings: Mapping[str, str]) -> Needs | None:
        """Return what its image needs of NVIDIA's driver, by the variables of a deployment."""
        return self.driver

    def identity(self, devices: str = "") -> Identity:
        """Identify what is installed on this machine, with the first GPU of `devices`.

        Raises:
            ToolchainError: it cannot be asked.
        """
        return Identity(self.name, installed((*self.deciding, *self.making)), {}, {})

    def remedy(self, model_id: str) -> str:
        """Return the command that rebuilds a bundle."""
        return f"make engines MODEL_ID={model_id} TARGET={self.name} (in Docker: docker compose up -d)"


def installed(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed here."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def differences(made: Mapping[str, Any], here: Identity, deciding: Sequence[str]) -> list[str]:
    """Return why an engine with stamp `made` does not match the toolchain that is installed, one clause each.

    Only packages that are `deciding` are compared, because a serving environment has neither torch nor an
    exporter.
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
