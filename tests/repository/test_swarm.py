"""deploy/swarm says what compose.yaml says where both speak of one thing. That it runs: `make test-swarm`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from build.catalog import ROOT

from .test_kubernetes import CHANGES_OF_BOTH, Object, filled, size

HERE = ROOT / "deploy" / "swarm"
SERVICES = ("builder", "triton-0", "triton-1", "triton-2", "triton-3", "gateway", "nginx")
SAME = ("image", "user", "init", "read_only", "cap_drop", "stop_signal", "stop_grace_period", "networks")
# Swarm's secrets are where the deployment is, and nginx is on every entry host.
DEPLOYMENT = ("/engines/deployment/deployment.json", "/run/secrets/deployment.json")
OTHER_VALUES = {"CONCH_KSERVE_URL": "http://tasks.nginx:8081", "CONCH_DEPLOYMENT": DEPLOYMENT[1]}
SEVERAL = {
    "HOSTS": "several",
    "HOST_GPUS": "0",
    "INSTANCE_HOST": "tasks.triton-{i}",
    "GATEWAY_HOST": "tasks.gateway",
}
# The builder sees its own GPUs; encoders next to TensorRT-LLM are a stack of their own; a container is
# recreated for RENDERED, a task for a config's name. Profiles, and files of the one host, are Compose's.
COMPOSE_ALONE = {f"TRITON_{i}_{what}" for i in range(4) for what in ("GPUS", "TARGET")}
COMPOSE_ALONE |= {"RENDERED", "CUDA_VISIBLE_DEVICES", "COMPOSE_PROFILES", "HF_TOKEN_PATH", "CONCH_HF_CACHE"}
SWARM_ALONE = {*SEVERAL, "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}
INNER_KEY = {"deployment", "nginx"}  # files with a key in them


def swarm() -> Object:
    """Both files' services, networks, configs and secrets."""
    builder, stack = filled("deploy/swarm/builder.yaml"), filled("deploy/swarm/stack.yaml")
    return {
        **stack,
        "services": builder["services"] | stack["services"],
        "networks": builder["networks"] | stack["networks"],
    }


def environments_differ(wanted: Object, given: Object) -> list[str]:
    """Variables that are missing, have another value, or are too many."""
    names = (set(wanted) - COMPOSE_ALONE) | (set(given) - SWARM_ALONE)
    return sorted(
        name
        for name in names
        if name not in given or str(given[name]) != OTHER_VALUES.get(name, str(wanted.get(name)))
    )


def memory_file_systems(service: Object) -> dict[str, int]:
    """Folder and bytes, as Compose writes it (tmpfs, shm_size) or as Swarm does (volumes)."""
    found = {row.partition(":")[0]: size(row.partition("size=")[2]) for row in service.get("tmpfs", ())}
    if shm := service.get("shm_size"):
        found["/dev/shm"] = size(shm)
    rows = (row for row in service.get("volumes", ()) if isinstance(row, dict))
    return found | {row["target"]: row["tmpfs"]["size"] for row in rows if row["type"] == "tmpfs"}


def ports(service: Object) -> list[tuple[str, str]]:
    """(published, own)."""
    rows = service.get("ports", ())
    return [
        (str(row["published"]), str(row["target"])) if isinstance(row, dict) else tuple(row.split(":")[1:])
        for row in rows
    ]


def differences(compose: Object, stack: Object) -> list[str]:
    """Where Swarm says something else than compose.yaml."""
    wrong = []
    for name in SERVICES:
        wanted, given = compose["services"][name], stack["services"][name]
        command = [DEPLOYMENT[1] if word == DEPLOYMENT[0] else word for word in wanted.get("command", ())]
        limits = [one["deploy"]["resources"]["limits"]["memory"] for one in (wanted, given)]
        options = [
            one["logging"]["options"] | {"driver": one["logging"]["driver"]} for one in (wanted, given)
        ]
        checks = {
            **{key: wanted.get(key) == given.get(key) for key in SAME},
            "command": command == given.get("command", []),
            "memory": limits[0] == limits[1],
            "memory file systems": memory_file_systems(wanted) == memory_file_systems(given),
            "ports": ports(wanted) == ports(given),
            "logging": options[0] == options[1],
        }
        wrong += [f"{name}: {check}" for check, same in checks.items() if not same]
        wrong += [
            f"{name}: {variable}"
            for variable in environments_differ(wanted["environment"], given.get("environment", {}))
            if name != "nginx"  # it reads none
        ]
    if compose["services"]["gateway"]["deploy"]["replicas"] != str(
        stack["services"]["gateway"]["deploy"]["replicas"]
    ):
        wrong.append("gateway: replicas")
    return wrong


def test_swarm_is_compose() -> None:
    assert differences(filled("compose.yaml"), swarm()) == []


CHANGES: dict[str, Callable[[Object], Any]] = CHANGES_OF_BOTH | {
    "triton-3: NEW": lambda s: s["triton-3"]["environment"].update(NEW="1"),
    "triton-1: command": lambda s: s["triton-1"]["command"].append("--more"),
    "nginx: stop_signal": lambda s: s["nginx"].update(stop_signal="SIGTERM"),
    "triton-2: memory": lambda s: s["triton-2"]["deploy"]["resources"]["limits"].update(memory="16g"),
    "gateway: memory file systems": lambda s: s["gateway"].update(tmpfs=["/tmp:mode=1777,size=1g"]),
    "builder: memory file systems": lambda s: s["builder"].update(shm_size="2gb"),
}


@pytest.mark.parametrize("difference", CHANGES)
def test_a_change_of_compose_alone_is_noticed(difference: str) -> None:
    """Each of them, and it alone."""
    changed = json.loads(json.dumps(filled("compose.yaml")))  # without YAML's aliases
    CHANGES[difference](changed["services"])
    assert differences(changed, swarm()) == [difference]


def test_networks_are_composes() -> None:
    """Across hosts; the inner one has no way out."""
    wanted, given = filled("compose.yaml")["networks"], swarm()["networks"]
    assert given == {
        name: {"driver": "overlay", **({"internal": True} if options.get("internal") else {})}
        for name, options in wanted.items()
    }


def test_names_are_those_of_the_services() -> None:
    """What the builder writes into deployment.json, Swarm's DNS resolves; none is a virtual address."""
    services = swarm()["services"]
    environment = services["builder"]["environment"]
    assert {name: environment[name] for name in SEVERAL} == SEVERAL
    for name in SERVICES[1:]:
        assert services[name]["deploy"]["endpoint_mode"] == "dnsrr"
    assert "nginx" in services  # CONCH_KSERVE_URL


def test_each_tritonserver_has_its_own_label_and_gpus() -> None:
    services = swarm()["services"]
    for i in range(4):
        (constraint,) = services[f"triton-{i}"]["deploy"]["placement"]["constraints"]
        assert constraint == f"node.labels.conch.triton-{i} == true"
        text = (HERE / "stack.yaml").read_text("utf-8")
        assert f'NVIDIA_VISIBLE_DEVICES: "${{TRITON_{i}_GPUS:-0}}"' in text
        (bundles,) = [v for v in services[f"triton-{i}"]["volumes"] if v["type"] == "bind"]
        assert (bundles["target"], bundles["read_only"]) == ("/engines", True)


def test_files_with_a_key_are_secrets() -> None:
    """And every config and secret has a name that follows its content."""
    stack = swarm()
    assert set(stack["secrets"]) >= INNER_KEY
    assert not INNER_KEY & set(stack["configs"])
    text = (HERE / "stack.yaml").read_text("utf-8")
    for name in (*stack["configs"], *stack["secrets"]):
        assert re.search(rf"^  {name}: {{ name: \"\$\{{STACK:-conch}}-[a-z-]+-\$\{{\w+_ID:-0}}\"", text, re.M)
