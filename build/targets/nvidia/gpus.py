"""Choose the GPUs that a model's engine is built on: those of the first instance that serves it, since an
engine runs only on the kind of card that it was built on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conch.gpus import Gpu, assigned, gpus

from ...catalog import CatalogError, Model


def devices_of(models: Sequence[Model], environment: Mapping[str, str]) -> list[str]:
    """Return for each model the value of CUDA_VISIBLE_DEVICES during its build.

    Raises:
        CatalogError: instances of one model have different cards, or GPUs that are not there.
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
