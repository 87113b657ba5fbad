"""The builder's work in Docker: build engines of MODEL_ID, then write deployment.json and nginx's
configuration into the engines volume.

Reads the environment that compose.yaml sets (.env.example explains the variables).
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from build.__main__ import main as build
from build.catalog import CatalogError, Model, known, load_catalog, select, target_of
from build.recipes import OVERRIDES, load_recipe
from build.targets import DEFAULT_IN_DOCKER
from conch import toolchains
from conch.gpus import apart
from conch.toolchain import ToolchainError

from .environment import ROOT
from .hardware import check_profiles, instances
from .nginx import AccessPolicy, NginxValues, tls_of, write_nginx
from .planning import IN_DOCKER, Addresses, check_images, described, front_processes, make_plan

OUTDATED = "conch: these images are of another version than this checkout; run docker compose build"
BUILT = tuple(name for name in OVERRIDES if name != "FACADE_INSTANCES")
SETTINGS = ("MODEL_ID", "TARGET", "INSTANCES", *BUILT)


def deploy(engines: Path) -> None:
    """Write engines/deployment, from which every other container starts.

    Raises:
        CatalogError, ValueError: fewer instances than models, more than there are services, or a limit that
        nginx would not understand.
    """
    get = os.environ.get
    target, count = get("TARGET") or DEFAULT_IN_DOCKER, instances(os.environ)
    models = select(load_catalog(), get("MODEL_ID", ""), target)
    found = known(target)
    bundles = [engines / model.id / target_of(model, target) for model in models]
    folder = engines / "deployment"
    plan = make_plan(
        models,
        count,
        bundles,
        sorted(os.sched_getaffinity(0)),
        addresses(os.environ),
        found.gpus(count, os.environ),
        apart=apart(os.environ),
    )
    plan = replace(described(plan), inner_key=inner_key(folder / "deployment.json"))
    access = AccessPolicy.of(os.environ, keys=bool(get("API_KEYS")), burst=int(get("RATE_BURST") or 20))
    write_nginx(folder, nginx_values(os.environ), access, plan)
    plan.save(folder / "deployment.json")


def nginx_values(environment: Mapping[str, str]) -> NginxValues:
    """Return the values for nginx's container; certificate and key are secrets of docker/compose.tls.yaml."""
    get = environment.get
    # On several hosts instances may be many, and have addresses of their own.
    http, grpc = (0, 0) if apart(environment) else (8010, 8020)
    return NginxValues(
        run="/tmp/conch",
        listen="0.0.0.0",
        port=8080,
        kserve=8000,
        grpc=8001,
        internal="0.0.0.0:8081",
        metrics="0.0.0.0:8082",
        max_body=get("MAX_BODY") or "110m",
        workers=front_processes(len(os.sched_getaffinity(0))),
        instance_http=http,
        instance_grpc=grpc,
        tls=tls_of(
            environment, "/run/secrets/tls_cert", "/run/secrets/tls_key", 8443, int(get("TLS_PORT") or 8443)
        ),
    )


def addresses(environment: Mapping[str, str]) -> Addresses:
    """Return compose.yaml's addresses, unless INSTANCE_HOST, GATEWAY_HOST or RESOLVER name others, as on
    several hosts.

    Raises:
        ValueError: INSTANCE_HOST does not say where the instance's number goes.
    """
    instance = environment.get("INSTANCE_HOST") or "triton-{i}"
    if "{i}" not in instance:
        raise ValueError(f"INSTANCE_HOST={instance!r} lacks {{i}}, the instance's number; write triton-{{i}}")
    return Addresses(
        f"{instance}:8000",
        f"{instance}:8001",
        (f"{environment.get('GATEWAY_HOST') or 'gateway'}:8090",),
        environment.get("RESOLVER") or IN_DOCKER.resolver,
    )


def inner_key(deployment: Path) -> str:
    """Return the inner key of the deployment to replace, which running containers know, or a new one."""
    old = json.loads(deployment.read_text("utf-8")).get("inner_key") if deployment.exists() else None
    return str(old or secrets.token_hex(16))


def check_gpus(models: Sequence[Model], target: str, count: int, environment: Mapping[str, str]) -> None:
    """Check that every instance has a GPU for each rank of its engine.

    Raises:
        CatalogError: one that has not; raised before anything is fetched or built.
    """
    found = known(target)
    for i, own in enumerate(found.gpus(count, environment)):
        model = models[i % len(models)]
        own_target = target_of(model, target)
        ranks = known(own_target).ranks(load_recipe(model, own_target, environment))
        if own and ranks > len(own.split(",")):
            pair = ",".join(str(ranks * i + rank) for rank in range(ranks))
            raise CatalogError(
                f"triton-{i} has GPU {own}, TP_SIZE × PP_SIZE is {ranks}; set for example "
                f"TRITON_{i}_GPUS={pair}"
            )


def chosen(environment: Mapping[str, str]) -> str:
    """Format the settings that decide what is built, since a shell may have one of them by chance."""
    named = [(name, environment.get(name, "")) for name in SETTINGS]
    return ", ".join(f"{name}={value}" for name, value in named if value not in ("", "none"))


def outdated(folder: Path) -> bool:
    """Tell whether the image in `folder` was built from another version than the checkout that started it,
    which Compose mounts below; not if it cannot be read, as where it was made under umask 077.
    """
    ours, theirs = folder / "CHANGELOG.md", folder / "checkout" / "CHANGELOG.md"
    try:
        return ours.read_bytes() != theirs.read_bytes()
    except OSError:
        return False


def main() -> int:
    """Run the command line and return exit status 0, or 1 with one sentence."""
    get = os.environ.get
    target = get("TARGET") or DEFAULT_IN_DOCKER
    try:
        print(f"conch: {chosen(os.environ)}", file=sys.stderr)
        if outdated(ROOT):
            print(OUTDATED, file=sys.stderr)
        check_profiles(os.environ)
        models = select(load_catalog(), get("MODEL_ID", ""), target)
        check_images(models, target, instances(os.environ), os.environ)
        check_gpus(models, target, instances(os.environ), os.environ)
        for maker in sorted({target_of(model, target) for model in models}):
            if caution := toolchains.find(maker).caution:
                print(f"conch: TARGET={maker}: {caution}", file=sys.stderr)
        if status := build(["engines"]):
            return status
        deploy(Path(get("ENGINES_DIR", "/engines")))
    except (CatalogError, ToolchainError, ValueError) as error:  # Malformed is one
        print(f"conch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
