"""What targets share whose engines are made in one of NVIDIA's images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from conch.gpus import assigned
from conch.toolchain import Identity

from ...catalog import Model
from .gpus import devices_of


class BuilderImage(Protocol):
    """One of NVIDIA's images (`conch.nvidia_images`) with the tools that builds use."""

    @classmethod
    def from_environment(cls) -> Self:
        """The one that this runs in."""

    def identity(self, devices: str = "") -> Identity:
        """Its stamp, with the first GPU of `devices`."""

    def tools(self) -> Mapping[str, str]:
        """Paths by the names that steps use."""

    def environment(self, devices: str) -> dict[str, str]:
        """For steps."""


class InImage:
    """The part of a Target that follows from `image`; see Target for what each method means."""

    image: type[BuilderImage]

    def identity(self, devices: str = "") -> Identity:
        """The image's."""
        return self.image.from_environment().identity(devices)

    def tools(self) -> Mapping[str, str]:
        """The image's."""
        return self.image.from_environment().tools()

    def environment(self, devices: str) -> Mapping[str, str]:
        """The image's."""
        return self.image.from_environment().environment(devices)

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        """As TRITON_i_GPUS says, or shared out."""
        return assigned(count, environment)

    def build_devices(self, models: Sequence[Model], environment: Mapping[str, str]) -> list[str]:
        """Those of the instances that serve them."""
        return devices_of(models, environment)
