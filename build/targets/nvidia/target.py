"""What targets share whose engines are built in one of NVIDIA's images."""

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
        """Return the image that this process runs in."""

    def identity(self, devices: str = "") -> Identity:
        """Return its stamp, with the first GPU of `devices`."""

    def tools(self) -> Mapping[str, str]:
        """Return the tools' paths by the names that steps use."""

    def environment(self, devices: str) -> dict[str, str]:
        """Return variables for steps."""


class InImage:
    """The part of a Target that depends on `image`; see Target for what each method means."""

    image: type[BuilderImage]

    def identity(self, devices: str = "") -> Identity:
        """Return the image's identity."""
        return self.image.from_environment().identity(devices)

    def tools(self) -> Mapping[str, str]:
        """Return the image's tools."""
        return self.image.from_environment().tools()

    def environment(self, devices: str) -> Mapping[str, str]:
        """Return the image's environment."""
        return self.image.from_environment().environment(devices)

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        """Return the GPUs from TRITON_i_GPUS, or assign them."""
        return assigned(count, environment)

    def build_devices(self, models: Sequence[Model], environment: Mapping[str, str]) -> list[str]:
        """Return the GPUs of the instances that serve the models."""
        return devices_of(models, environment)
