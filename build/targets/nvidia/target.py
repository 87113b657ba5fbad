"""What targets share whose engines are built in one of NVIDIA's images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conch.gpus import Gpu, assigned, gpus
from conch.nvidia_images import NvidiaImage

from ...catalog import CatalogError, Model
from .. import Target


class InImage(Target):
    """The part of a Target that depends on `image`."""

    image: type[NvidiaImage]

    def environment(self, devices: str) -> Mapping[str, str]:
        return self.image.from_environment().environment(devices)

    def gpus(self, count: int, environment: Mapping[str, str]) -> list[str]:
        """See Target: those from TRITON_i_GPUS, or assigned ones."""
        return assigned(count, environment)

    def build_devices(self, models: Sequence[Model], environment: Mapping[str, str]) -> list[str]:
        """See Target: those of the first instance that serves a model, since an engine runs only on the kind
        of card that it was built on.
        """
        count = max(int(environment.get("INSTANCES") or 1), len(models))
        own = assigned(count, environment)
        if gpus():
            for n, model in enumerate(models):
                _check_alike(model, {i: own[i] for i in range(n, count, len(models))})
        return own[: len(models)]


def _check_alike(model: Model, instances: Mapping[int, str]) -> None:
    cards = [(i, gpu) for i, devices in instances.items() for gpu in _cards(model, i, devices)]
    if len({(gpu.name, gpu.compute_capability) for _, gpu in cards}) > 1:
        each = ", ".join(dict.fromkeys(f"triton-{i} has {gpu.name}" for i, gpu in cards))
        raise CatalogError(
            f"{model.id}: one engine runs on one kind of card, but {each}; give its instances equal GPUs "
            "with TRITON_i_GPUS"
        )


def _cards(model: Model, i: int, devices: str) -> list[Gpu]:
    if found := gpus(devices):
        return found
    raise CatalogError(
        f"{model.id}: triton-{i} has GPU {devices}, which nvidia-smi does not show; set TRITON_{i}_GPUS to "
        "one that is there"
    )
