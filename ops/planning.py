"""Plan a deployment from MODEL_ID, INSTANCES and the machine: a list of instances and their pools, from which
nginx's upstreams follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from build.catalog import CatalogError, Model, target_of
from conch.bundle import ENGINE, EngineFacts, Manifest, load_parameters
from conch.deployment import Chat, Deployment, Instance, Pool
from conch.gpus import apart as several_hosts
from conch.whisper import languages_of

ROWS = ("max_rows", "engine_batch_size")  # parameters that say how many sequences an engine computes at once
REDUCED = ("weight_only", "quantization", "compress")  # parameters that make weights smaller
# What requests may name, too, and its range (gateway/text/schema.py).
SAMPLING = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (0, 2**31 - 1),
    "repetition_penalty": (0.01, 100),
}
SPECIALS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True)
class Addresses:
    """Where guards and gateways listen: "host:port" or "unix:/path"; {i} stands for the instance's number."""

    http: str
    grpc: str
    gateways: tuple[str, ...]
    resolver: str = ""


# Each container has the same ports and the name of its service; Docker's own name server knows where it is.
IN_DOCKER = Addresses("triton-{i}:8000", "triton-{i}:8001", gateways=("gateway:8090",), resolver="127.0.0.11")


def share(cpus: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return disjoint shares of the CPUs; with more instances than CPUs, several share one."""
    if count > len(cpus):
        return [(cpus[i % len(cpus)],) for i in range(count)]
    return [tuple(cpus[i * len(cpus) // count : (i + 1) * len(cpus) // count]) for i in range(count)]


def front_processes(cpus: int) -> int:
    """Return the number of nginx's workers, and of gateways where engines have GPUs: half of the CPUs, 2 to
    8.
    """
    return max(2, min(8, cpus // 2))


def kv_shares(gpus: Sequence[str]) -> list[float]:
    """Return equal parts of the cache budget for instances that share a GPU. Each is a part of what is free
    when an instance starts, and never more than is left, in any order of starts.
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
    *,
    apart: bool = False,
) -> Deployment:
    """Plan the deployment: instance i serves model i mod n, on `gpus`[i]. `described` adds what bundles say.
    `apart`: instances have their own CPUs and GPUs, use all CPUs that they see, and share no memory.

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
    shares = [1.0] * count if apart else kv_shares(devices)
    for i, own in enumerate([()] * count if apart else share(cpus, count)):
        model = models[i % len(models)]
        bundle = str(bundles[i % len(models)])
        listeners = (addresses.http.format(i=i), addresses.grpc.format(i=i))
        instances.append(Instance(i, model.id, model.family, bundle, own, *listeners, devices[i], shares[i]))
    pools = (
        Pool(
            model.id,
            model.family,
            tuple(range(n, count, len(models))),
            licence=model.licence,
            note=model.note,
            examples=model.examples,
        )
        for n, model in enumerate(models)
    )
    return Deployment(tuple(instances), tuple(pools), addresses.gateways, addresses.resolver)


def of_other_targets(models: Sequence[Model], target: str, count: int) -> dict[int, str]:
    """Return the instances whose model another target than TARGET builds, with that target: they run its
    image.
    """
    found = {i: target_of(models[i % len(models)], target) for i in range(count)}
    return {i: other for i, other in found.items() if other != target}


def check_images(models: Sequence[Model], target: str, count: int, environment: Mapping[str, str]) -> None:
    """Check that in Docker every instance runs the image of the target that builds its model, as
    TRITON_i_TARGET says.

    Raises:
        CatalogError: one that does not; raised before anything is fetched or built.
    """
    others = of_other_targets(models, target, count)
    for i, model in ((i, models[i % len(models)]) for i in range(count)):
        wanted, given = others.get(i, target), environment.get(f"TRITON_{i}_TARGET") or target
        if wanted == given:
            continue
        if several_hosts(environment):
            raise CatalogError(
                f"{model.id} is built for TARGET={wanted}, whose image is another than that of "
                f"TARGET={target}; on several hosts deploy it apart, with TARGET={wanted}"
            )
        raise CatalogError(
            f"triton-{i} serves {model.id}, which wants the image of TARGET={wanted}, not of {given}; set "
            f"TRITON_{i}_TARGET={others.get(i, '')}"
        )


def described(deployment: Deployment) -> Deployment:
    """Add to each pool what its bundle says about itself.

    Raises:
        Malformed: a bundle that another version made.
    """
    return replace(deployment, pools=tuple(_described(deployment, pool) for pool in deployment.pools))


def _described(deployment: Deployment, pool: Pool) -> Pool:
    bundle = Path(deployment.instances[pool.instances[0]].bundle)
    manifest, facts = Manifest.load(bundle), EngineFacts.load(bundle / ENGINE)
    parameters = load_parameters(bundle)
    tokenizer = bundle / ENGINE / "tokenizer.json"
    speech = "transcription" in manifest.capabilities and tokenizer.exists()
    return replace(
        pool,
        probe={"model": manifest.probe.model, "inputs": manifest.probe.inputs},
        capabilities=frozenset(manifest.capabilities),
        positions=facts.positions,
        encoder_positions=facts.encoder_positions,
        dimensions=facts.dimensions,
        chat=chat(bundle / ENGINE),
        target=manifest.target,
        precision=precision(parameters),
        beams=parameters.get("beams", 1),
        rows=next((int(parameters[name]) for name in ROWS if parameters.get(name)), pool.rows),
        languages=languages_of(json.loads(tokenizer.read_text("utf-8"))) if speech else (),
        size=sum(file.stat().st_size for file in (bundle / ENGINE).rglob("*") if file.is_file()),
        built=round(datetime.fromisoformat(manifest.built).timestamp()),
    )


def precision(parameters: Mapping[str, Any]) -> str:
    """Return a bundle's precision from its parameters, such as "float16, weights int8"; empty where they have
    none.
    """
    weights = next((str(found) for name in REDUCED if (found := parameters.get(name, "none")) != "none"), "")
    parts = [str(parameters.get("precision", "")), f"weights {weights}" if weights else ""]
    return ", ".join(part for part in parts if part)


def chat(tokenizer: Path) -> Chat | None:
    """Read the chat template of a tokenizer's folder, from a file of its own or from tokenizer_config.json
    (https://huggingface.co/docs/transformers/chat_templating), and generation_config.json's recommendation.
    """
    config, file = tokenizer / "tokenizer_config.json", tokenizer / "chat_template.jinja"
    known = json.loads(config.read_text("utf-8")) if config.exists() else {}
    text = file.read_text("utf-8") if file.exists() else known.get("chat_template")
    if not isinstance(text, str):
        return None
    specials = {name: known[name] for name in SPECIALS if isinstance(known.get(name), str)}
    generation = tokenizer / "generation_config.json"
    recommended = json.loads(generation.read_text("utf-8")) if generation.exists() else {}
    added = json.loads((tokenizer / "tokenizer.json").read_text("utf-8")).get("added_tokens", ())
    control = tuple(token["content"] for token in added if token["special"])
    return Chat(text, specials, dict(_sampling(recommended)), control)


def _sampling(recommended: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, (low, high) in SAMPLING.items():
        value = recommended.get(name)
        if isinstance(value, int | float) and low <= value <= high:
            yield name, float(value)
