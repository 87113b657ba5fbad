"""What targets share whose engines are made in one of NVIDIA's images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conch.gpus import assigned

from ...catalog import Model
from ...toolchain import Identity
from .gpus import devices_of
from .image import NvidiaImage


class InImage:
    """The part of a Target that follows from `image`; see Target for what each method means."""

    image: type[NvidiaImage]

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

    def remedy(self, model_id: str) -> str:
        """Compose's builders, whose images hold the tools."""
        return "docker compose up -d (its builders remake what does not fit)"
