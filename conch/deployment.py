"""From MODEL_ID, INSTANCES and the machine to a list of instances; nginx's upstreams and deployment.json
follow from that list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from build.catalog import CatalogError, Model


@dataclass(frozen=True)
class Addresses:
    """Where guards and gateways listen: "host:port" or "unix:/path"; {i} stands for the instance's number."""

    http: str
    grpc: str
    gateways: tuple[str, ...]
    resolver: str = ""


# Each container has the same ports and the name of its service; Docker's own name server knows where it is.
IN_DOCKER = Addresses("triton-{i}:8000", "triton-{i}:8001", gateways=("gateway:8090",), resolver="127.0.0.11")


@dataclass(frozen=True)
class Instance:
    """One tritonserver: which model, on which CPUs and GPUs, where its guard listens, where its bundle lies.

    `gpus` as CUDA_VISIBLE_DEVICES says it; `kv_share`: the part of the engine's cache budget that it may
    take, less than 1 on a shared GPU.
    """

    index: int
    model_id: str
    family: str
    bundle: str
    cpus: tuple[int, ...]
    http: str
    grpc: str
    gpus: str = ""
    kv_share: float = 1.0

    @property
    def name(self) -> str:
        """Its name in logs, supervision and URLs."""
        return f"triton-{self.index}"


@dataclass(frozen=True)
class Plan:
    """All instances, and the pools in MODEL_ID order; the first pool owns the plain /v2 paths.

    `resolver` is the name server that nginx asks for hosts that may move, empty where all are addresses.
    `inner_key`: what the gateway says at nginx's inner listener, where that is a port that others could
    reach; empty where it is a socket.
    """

    instances: tuple[Instance, ...]
    pools: dict[str, tuple[int, ...]]
    gateways: tuple[str, ...]
    resolver: str = ""
    inner_key: str = ""

    def save(self, path: Path) -> None:
        """Write deployment.json, whole or not at all."""
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=2) + "\n", "utf-8")
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read deployment.json."""
        return cls.parse(path.read_text("utf-8"))

    @classmethod
    def parse(cls, text: str) -> Plan:
        """The content of deployment.json."""
        data = json.loads(text)
        instances = tuple(Instance(**{**row, "cpus": tuple(row["cpus"])}) for row in data.pop("instances"))
        return cls(
            instances,
            {model: tuple(indices) for model, indices in data.pop("pools").items()},
            tuple(data.pop("gateways")),
            **data,
        )


def share(cpus: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Disjoint shares of the CPUs; with more instances than CPUs, several share one."""
    if count > len(cpus):
        return [(cpus[i % len(cpus)],) for i in range(count)]
    return [tuple(cpus[i * len(cpus) // count : (i + 1) * len(cpus) // count]) for i in range(count)]


def gpus_of(target: str, count: int, environment: Mapping[str, str]) -> list[str]:
    """The GPUs of each instance: TRITON_0_GPUS and so on, instance i on GPU i if nothing is said; none on a
    CPU.
    """
    return (
        [environment.get(f"TRITON_{i}_GPUS") or str(i) for i in range(count)]
        if target == "trtllm"
        else [""] * count
    )


def kv_shares(gpus: Sequence[str]) -> list[float]:
    """Equal parts of the cache's budget for instances that sit on one GPU. A part of what is free when an
    instance starts never grows beyond what is left, whoever starts first.
    """
    sets = [{gpu.strip() for gpu in own.split(",") if gpu.strip()} for own in gpus]
    crowd = [max([sum(gpu in other for other in sets) for gpu in own] or [1]) for own in sets]
    return [1 / n for n in crowd]


def make_plan(
    models: Sequence[Model],
    count: int,
    bundles: Sequence[Path],
    cpus: Sequence[int],
    addresses: Addresses,
    gpus: Sequence[str] = (),
) -> Plan:
    """Instance i serves model i mod n, on `gpus`[i].

    Raises:
        CatalogError: fewer instances than models.
    """
    if count < len(models):
        names = ",".join(model.id for model in models)
        raise CatalogError(
            f"INSTANCES={count} cannot serve the {len(models)} models of MODEL_ID={names}; set "
            f"INSTANCES={len(models)} or more"
        )
    instances, devices = [], list(gpus) or [""] * count
    shares = kv_shares(devices)
    for i, own in enumerate(share(cpus, count)):
        model = models[i % len(models)]
        bundle = str(bundles[i % len(models)])
        doors = (addresses.http.format(i=i), addresses.grpc.format(i=i))
        instances.append(Instance(i, model.id, model.family, bundle, own, *doors, devices[i], shares[i]))
    pools = {
        model.id: tuple(i for i in range(count) if i % len(models) == n) for n, model in enumerate(models)
    }
    return Plan(tuple(instances), pools, addresses.gateways, addresses.resolver)
