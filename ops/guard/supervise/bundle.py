"""What to serve: the instance of the plan, its bundle, and its health probe."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from conch import toolchains
from conch.bundle import ENGINE as ENGINE_FOLDER
from conch.bundle import MANIFEST, EngineFacts, Manifest, Probe
from conch.contract import Malformed
from conch.deployment import Deployment, Instance
from conch.toolchain import ToolchainError, differences


class BundleRefused(Exception):
    """The bundle must not be served; the message gives the reason and how to rebuild it."""


def check_bundle(bundle: Path, model_id: str, gpus: str = "") -> Manifest:
    """Return the manifest of a bundle if it fits this machine. `gpus` are those it will run on, as in
    CUDA_VISIBLE_DEVICES; empty if not known yet.

    Raises:
        BundleRefused: a target that is not known, no finished bundle, one made by another toolchain or for
            another GPU, or one that wants more GPUs than it gets.
    """
    try:
        toolchain = toolchains.find(bundle.name)
    except ToolchainError as error:
        raise BundleRefused(str(error)) from error
    rebuild = f"rebuild it with: {toolchain.remedy(model_id)}"
    if not (bundle / MANIFEST).exists():
        raise BundleRefused(f"{bundle} does not contain a finished bundle; {rebuild}")
    try:
        manifest = Manifest.load(bundle)
        EngineFacts.load(bundle / ENGINE_FOLDER)
        wrong = differences(manifest.engine, toolchain.identity(gpus), toolchain.deciding)
    except (Malformed, KeyError):
        raise BundleRefused(
            f"the bundle of {model_id} was made by another version of Conch; {rebuild}"
        ) from None
    except ToolchainError as error:
        raise BundleRefused(f"the bundle of {model_id} cannot be served here: {error}") from error
    if wrong:
        raise BundleRefused(f"the bundle of {model_id} cannot be served here: {'; '.join(wrong)}; {rebuild}")
    ranks = manifest.serving.world_size
    if gpus and ranks > len(gpus.split(",")):
        raise BundleRefused(
            f"the bundle of {model_id} spans {ranks} GPUs, this instance has {gpus}; give it more with "
            f"TRITON_i_GPUS, or set TP_SIZE=1 and {rebuild}"
        )
    return manifest


def planned(plan: Deployment, index: int) -> Instance:
    """Return an instance of the plan.

    Raises:
        BundleRefused: the plan has fewer.
    """
    if index >= len(plan.instances):
        raise BundleRefused(
            f"triton-{index} is not planned: INSTANCES={len(plan.instances)}; raise it, or use "
            f"COMPOSE_PROFILES=instances-{len(plan.instances)}"
        )
    return plan.instances[index]


def probe_body(probe: Probe) -> dict[str, Any]:
    """Make a KServe JSON request from a family's probe table."""
    rows = probe.inputs.items()
    return {
        "inputs": [
            {
                "name": name,
                "datatype": t["datatype"],
                "shape": t["shape"],
                "data": [t["fill"]] * prod(t["shape"]),
            }
            for name, t in rows
        ]
    }
