"""Conch in Docker: `python -m ops.compose hardware | up | restart | down`.

Files and variables described here apply to plain `docker compose`, too; see compose.yaml and .env.example.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from python_on_whales import DockerClient
from python_on_whales.exceptions import DockerException

from build import targets
from build.catalog import CatalogError, load_catalog, select
from conch import toolchains
from conch.contract import parse
from conch.deployment import Deployment, Instance

from . import hardware
from .environment import ENV, ROOT, documented, overridden, settings
from .planning import check_images, of_other_targets
from .restart import NotBack, restart_all

METRICS = (
    "import sys, urllib.request as r; print(r.build_opener(r.ProxyHandler({})).open("
    "f'http://127.0.0.1:{sys.argv[1]}/metrics', timeout=5).read().decode())"
)


def models_of_other_targets(values: dict[str, str], count: int, *, check: bool = False) -> dict[int, str]:
    """Return the instances that run the image of another target than TARGET, and which; see
    `planning.of_other_targets`. Without MODEL_ID there are none: the default model is not an encoder.

    Raises:
        ValueError: MODEL_ID is not known; with `check`, an instance has another image than its
        model wants (the builder's own sentence, before images are fetched).
    """
    target = values.get("TARGET") or targets.DEFAULT_IN_DOCKER
    if not values.get("MODEL_ID"):
        return {}
    try:
        models = select(load_catalog(), values["MODEL_ID"], target)
        if check:
            check_images(models, target, count, values)
        return of_other_targets(models, target, count)
    except CatalogError as error:
        raise ValueError(str(error)) from error


def profiles_of(count: int, others: dict[int, str]) -> list[str]:
    """Return Compose's profiles: one for more than one instance, and the builders of other targets."""
    return [*hardware.profiles(count), *sorted(set(others.values()))]


def with_images(lines: list[hardware.Line], values: dict[str, str]) -> list[hardware.Line]:
    """Add the images of instances whose model another target builds to a proposal.

    Raises:
        ValueError: see `models_of_other_targets`, and `hardware.instances`.
    """
    proposed = {line.name: line.value for line in lines}
    count = hardware.instances({**proposed, **values})
    if not (others := models_of_other_targets({**proposed, **values}, count)):
        return lines
    chosen = {f"TRITON_{i}_TARGET": other for i, other in others.items()}
    return [
        *(line for line in lines if line.name != "COMPOSE_PROFILES"),
        hardware.Line("COMPOSE_PROFILES", ",".join(profiles_of(count, others)), "instances, and what builds"),
        *(hardware.Line(name, other, "the image of what it serves") for name, other in chosen.items()),
    ]


def client(*, every: bool = False, models: int = 0) -> DockerClient:
    """Return the Compose client of this folder's project, with the instances that INSTANCES asks for, at
    least one for each of `models`, and with `every` any that may still run.
    """
    values = settings()
    count = max(hardware.instances(values), models)
    if every:
        profiles = [
            f"instances-{hardware.MOST}",
            *(name for others in targets.COMPANIONS.values() for name in others),
        ]
    else:
        own = hardware.profiles(1, values.get("COMPOSE_PROFILES", ""))
        profiles = [*profiles_of(count, models_of_other_targets(values, count)), *own]
    os.environ["COMPOSE_PROFILES"] = ",".join(profiles)  # the builder compares it with INSTANCES
    files = values.get("COMPOSE_FILE", "compose.yaml").split(os.pathsep)
    return DockerClient(
        compose_files=[str(ROOT / name) for name in files],
        compose_profiles=profiles,
        compose_project_directory=str(ROOT),
    )


def write_env(lines: list[hardware.Line]) -> None:
    """Print the proposal, with the environment's values instead where set; write it if there is no .env, so
    that plain Compose does the same.
    """
    asked = {
        name: os.environ[name] for name in documented() if os.environ.get(name) and name != "HF_TOKEN"
    }  # a secret is neither shown nor kept
    if "INSTANCES" in asked and not any(line.name.endswith("_TARGET") for line in lines):
        asked.setdefault("COMPOSE_PROFILES", ",".join(hardware.profiles(hardware.instances(asked))))
    wanted = [
        *(line for line in lines if line.name not in asked),
        *(hardware.Line(name, value, "as asked for") for name, value in asked.items()),
    ]
    text = "\n".join(map(str, wanted))
    print(text)
    if ENV.exists():
        print(f"conch: {ENV} exists and stays as it is")
    else:
        ENV.write_text(text, "utf-8")
        print(f"conch: wrote {ENV}; .env.example explains every variable")


def checked_target() -> str:
    """Return TARGET if this machine can run its image, and print its caution.

    Raises:
        ValueError: it has no image, or the driver is too old for it; raised before gigabytes are pulled.
    """
    target = settings().get("TARGET", targets.DEFAULT_IN_DOCKER)
    if f" AS {target}-builder\n" not in (ROOT / "docker" / "server.Dockerfile").read_text("utf-8"):
        raise ValueError(f"TARGET={target} has no image; run it without Docker: make serve TARGET={target}")
    found = toolchains.find(target)
    needs = found.needs(settings())
    if needs and (wrong := hardware.obstacles(needs)):
        raise ValueError("; ".join(wrong))
    if found.caution:
        print(f"conch: TARGET={target}: {found.caution}")
    return target


def up(docker: DockerClient) -> None:
    """Build images, build engines, start, and wait until the public port answers."""
    checked_target()
    models_of_other_targets(settings(), hardware.instances(settings()), check=True)
    docker.compose.build()
    docker.compose.up(detach=True, wait=True)
    print(f"conch: ready on http://{settings().get('BIND', '127.0.0.1')}:{settings().get('PORT', '8080')}")


def engines(docker: DockerClient) -> None:
    """Build the bundles in the builder's container without serving."""
    wanted = ["--target", checked_target(), "--model-id", settings().get("MODEL_ID", "")]
    command = ["python3", "-m", "build", "engines", *wanted]
    docker.compose.build(["builder"], with_dependencies=True)
    ran = docker.compose.run("builder", command, remove=True, tty=False, stream=True)
    for _, line in cast("Iterable[tuple[str, bytes]]", ran):
        print(line.decode(errors="replace"), end="", flush=True)


@dataclass(frozen=True)
class Compose:
    """A Compose project, for the restart."""

    docker: DockerClient

    def _run(self, service: str, *command: str) -> str:
        return self.docker.compose.execute(service, list(command), tty=False) or ""

    def plan(self) -> Deployment:
        """Return the plan that nginx was started with."""
        text = self._run("nginx", "cat", "/engines/deployment/deployment.json")
        return parse(Deployment, text, "deployment.json")

    def restart(self, instance: Instance) -> None:
        """Signal the container's first process, which is the guard or forwards it."""
        try:
            self._run(instance.name, "sh", "-c", "kill -HUP 1")
        except DockerException:  # it does not run
            self.docker.compose.start([instance.name])

    def metrics(self, instance: Instance) -> str:
        """Read metrics inside the container, which needs neither ports nor keys."""
        try:
            return self._run(instance.name, "python3", "-c", METRICS, instance.http.rsplit(":", 1)[1])
        except DockerException:
            return ""


def act(command: str, tp_size: int) -> None:
    """Run one command of the command line."""
    if command in ("hardware", "up"):
        values = settings()
        write_env(with_images(hardware.this_machine(values.get("TARGET", ""), tp_size), values))
    if command == "up":
        for line in overridden():
            print(f"conch: {line}")
        up(client())
    elif command == "engines":
        engines(client(models=len(settings().get("MODEL_ID", "").split(","))))
    elif command == "restart":
        restart_all(Compose(client()))
    elif command == "down":
        client(every=True).compose.down()


def main() -> int:
    """Run the command line and return exit status 0, or 1 with one sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["hardware", "up", "engines", "restart", "down"])
    arguments = parser.parse_args()
    try:
        act(arguments.command, int(settings().get("TP_SIZE", "1")))
    except (DockerException, NotBack, ValueError, OSError) as error:
        print(f"conch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
