"""What targets share whose engines are built in one of NVIDIA's images."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from conch.gpus import assigned
from conch.nvidia_images import NvidiaImage
from conch.toolchain import Identity

from ...catalog import Model
from .. import Target
from .gpus import devices_of


class BuilderImage(NvidiaImage):
    """One of NVIDIA's images with the tools that builds use."""

    @abstractmethod
    def tools(self) -> Mapping[str, str]:
        """Return the tools' paths by the names that steps use."""


class InImage(Target):
    """The part of a Target that depends on `image`."""

    image: type[BuilderImage]

    def identity(self, devices: str = "") -> Identity:
        return self.image.from_environment().identity(devices)

    def tools(self) -> Mapping[str, str]:
        return self.image.from_environment().tools()

    def environment(self, devices: str) -> Mapping[str, str]:
        return self.image.from_environment().environment(devices)

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        """See Target: those from TRITON_i_GPUS, or assigned ones."""
        return assigned(count, environment)

    def build_devices(self, models: Sequence[Model], environment: Mapping[str, str]) -> list[str]:
        return devices_of(models, environment)
