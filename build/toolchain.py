"""What turned weights into engines: its identity is stamped on every bundle, and whoever serves one compares
it with what is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any


class ToolchainError(Exception):
    """The toolchain cannot be asked; the message says why and what to do."""


class TemplateError(Exception):
    """The template does not fit this version of Conch; the message names placeholder and remedy."""


class Unfit(Exception):
    """Toolchain or machine are not what the recipe was written for; one sentence for each finding."""


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
