"""compose.yaml as an object: what every combination of files and profiles would start."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from build import targets
from build.catalog import ROOT

BASE = ["compose.yaml"]
RETRIEVAL = [*BASE, "docker/compose.retrieval.yaml"]
PROFILES = ["", "instances-2", "instances-3", "instances-4"]
OBSERVE = [*BASE, "docker/compose.observe.yaml"]
PICTURES = [*BASE, "docker/compose.pictures.yaml"]
COMBINATIONS = [
    *((BASE, profile) for profile in PROFILES),
    (BASE, "instances-2,tensorrt"),
    (RETRIEVAL, ""),
    (OBSERVE, ""),
    (PICTURES, ""),
]
DATABASES = {"mongo", "milvus"}
OBSERVERS = {"prometheus", "alertmanager", "grafana", "node-exporter", "blackbox", "collector"}
REQUIRED = {  # what a file does not do without
    "docker/compose.observe.yaml": {"GRAFANA_PASSWORD_FILE": "/g"},
    "docker/compose.pictures.yaml": {"PICTURE_HOSTS": "pictures.example:8443"},
}
PASSWORDS = ("MONGO_PASSWORD_FILE", "MILVUS_PASSWORD_FILE")

Services = dict[str, dict[str, Any]]


def config(files: list[str], profile: str, **variables: str) -> dict[str, Any]:
    """`docker compose config` as JSON, untouched by the environment and .env of the test's user."""
    named = [part for file in files for part in ("-f", file)]
    command = ["docker", "compose", "--env-file", "/dev/null", *named, "config", "--format", "json"]
    required = REQUIRED.get(files[-1], {})
    environment = {"PATH": os.environ["PATH"], "COMPOSE_PROFILES": profile, **required, **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


@pytest.fixture(
    scope="module",
    params=COMBINATIONS,
    ids=lambda pair: f"{pair[0][-1].removesuffix('.yaml').rpartition('.')[2]}-{pair[1] or 'plain'}",
)
def services(request: pytest.FixtureRequest) -> Services:
    found: Services = config(*request.param)["services"]
    return found


def test_every_container_is_hardened(services: Services) -> None:
    """Nobody runs as root, writes to the image, keeps a capability or gains one; logs are bounded."""
    for name, service in services.items():
        if name != "milvus":  # whose image has no other user; it has no capability
            assert service["user"].split(":")[0] not in ("", "0", "root"), name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "cap_add" not in service, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service.get("privileged"), name
        assert service["tmpfs"], name
        assert service["logging"]["options"]["max-size"], name
        assert service["deploy"]["resources"]["limits"]["memory"], name


def test_only_nginx_is_reachable(services: Services) -> None:
    """Only nginx and Grafana publish ports, on the loopback address; what serves has no way out."""
    for name, service in services.items():
        if name not in ("nginx", "grafana"):
            assert "ports" not in service, name
            assert "outer" not in service["networks"], name
        assert {port["host_ip"] for port in service.get("ports", [])} <= {"127.0.0.1"}
    assert list(services["builder"]["networks"]) == ["egress"]
    assert config(BASE, "")["networks"]["inner"]["internal"] is True


def test_every_image_has_a_tag(services: Services) -> None:
    """Nothing floats."""
    for name, service in services.items():
        assert re.fullmatch(r"[\w./-]+:[\w.-]+", service["image"]), name
        assert not service["image"].endswith(":latest"), name
        if name not in DATABASES | OBSERVERS | {"nginx"}:
            assert service["image"].startswith("localhost/conch/"), "a name that nobody else can publish"
            assert service["pull_policy"] == "never", "no registry has it; what is missing is built"


def test_every_one_shot_is_adopted(services: Services) -> None:
    """`up --wait` accepts a container that has exited only if somebody waits for its success."""
    waited_for = {
        (other, rule["condition"])
        for service in services.values()
        for other, rule in service.get("depends_on", {}).items()
    }
    for name, service in services.items():
        if service["restart"] == "no":
            assert (name, "service_completed_successfully") in waited_for
        else:
            assert name == "collector" or service["healthcheck"]["test"], name  # nothing in it can ask
            assert service["stop_grace_period"] if name != "builder" else True


def test_only_a_gateway_that_may_fetch_pictures_has_a_way_out() -> None:
    """And only where somebody names the hosts."""
    for files, networks, hosts in (
        (BASE, {"inner"}, ""),
        (PICTURES, {"inner", "egress"}, "pictures.example:8443"),
    ):
        gateway = config(files, "")["services"]["gateway"]
        assert set(gateway["networks"]) == networks
        assert gateway["environment"]["CONCH_PICTURE_HOSTS"] == hosts
    with pytest.raises(AssertionError, match="name the hosts"):
        config(PICTURES, "", PICTURE_HOSTS="")


@pytest.mark.parametrize("profile", PROFILES)
def test_gpus_are_disjoint(profile: str) -> None:
    """Each instance sees GPUs of its own; pairs work as well."""
    count = int(profile[-1:] or 1)
    pairs = {f"TRITON_{i}_GPUS": f"{2 * i},{2 * i + 1}" for i in range(4)}
    for variables in ({}, pairs):
        found = config(BASE, profile, **variables)["services"]
        seen = [found[f"triton-{i}"]["environment"]["CUDA_VISIBLE_DEVICES"].split(",") for i in range(count)]
        assert f"triton-{count}" not in found
        assert len({gpu for own in seen for gpu in own}) == sum(map(len, seen))
        assert all(
            found[f"triton-{i}"]["deploy"]["resources"]["reservations"]["devices"] for i in range(count)
        )


@pytest.mark.parametrize("profile", PROFILES)
def test_a_cpu_needs_no_device(profile: str) -> None:
    """TARGET=openvino leaves no reservation or limit that a machine without GPUs would refuse; the services
    are the same.
    """
    gpu, cpu = (config(BASE, profile, TARGET=target)["services"] for target in ("torch", "openvino"))
    for service in cpu.values():
        assert not service["deploy"]["resources"].get("reservations", {}).get("devices")
        assert not service.get("ulimits")
    for service in (*gpu.values(), *cpu.values()):
        service["deploy"]["resources"].pop("reservations", None)
        service.pop("ulimits", None)
    text = json.dumps(gpu).replace("torch", "openvino").replace("builder-openvino", "builder-torch")
    assert json.loads(text) == cpu


@pytest.mark.parametrize("target", targets.names())
def test_every_target_with_an_image_says_what_it_gets(target: str) -> None:
    """TARGET decides; another name than these is refused by Compose itself, with the file that is missing."""
    assert config(BASE, "", TARGET=target)["services"]["triton-0"]["image"].endswith(f"-{target}")
    with pytest.raises(AssertionError, match="devices/tensort.yaml"):
        config(BASE, "", TARGET="tensort")


def test_a_shells_own_variables_decide_nothing() -> None:
    """BASE is a common name; the base image has another."""
    assert config(BASE, "", BASE="mine:1") == config(BASE, "")
    for service, row in config(BASE, "", CONCH_BASE="mine:1")["services"].items():
        assert "build" not in row or row["build"]["args"]["BASE"] == "mine:1", service


def test_gpus_have_the_limits_that_nvidia_asks_for() -> None:
    """Whatever loads an engine may pin memory, and has stacks of 64 MiB; HTTP and the gateway keep the Docker
    engine's own.
    """
    found = config(BASE, "instances-4")["services"]
    limited = {name for name, service in found.items() if service.get("ulimits")}
    assert limited == {"builder", "triton-0", "triton-1", "triton-2", "triton-3"}
    for name in limited:
        limits = {
            key: limit if isinstance(limit, int) else limit.get("single", limit.get("soft"))
            for key, limit in found[name]["ulimits"].items()
        }
        assert limits == {"memlock": -1, "stack": 64 << 20}, name


def test_databases_have_passwords_and_no_way_in() -> None:
    """Only the gateway can reach them, over the inner network; passwords are files; data are on volumes."""
    found = config(RETRIEVAL, "", MONGO_PASSWORD_FILE="/m", MILVUS_PASSWORD_FILE="/v")
    services = found["services"]
    assert set(services) - set(config(BASE, "")["services"]) == DATABASES
    for name in DATABASES:
        assert list(services[name]["networks"]) == ["inner"]
        assert [volume["type"] for volume in services[name]["volumes"]] == ["volume"]
        assert services["gateway"]["depends_on"][name]["condition"] == "service_healthy"
        assert f"{name}_password" in {one["source"] for one in services["gateway"]["secrets"]}
        assert len(services[name]["secrets"]) == 1
        assert not any("PASSWORD" in key and "FILE" not in key for key in services[name]["environment"])
    assert {name: found["secrets"][name]["file"] for name in ("mongo_password", "milvus_password")} == {
        "mongo_password": "/m",
        "milvus_password": "/v",
    }
    environment = services["gateway"]["environment"]
    assert environment["CONCH_DOCUMENTS_URL"] == "mongodb://conch@mongo:27017/conch?authSource=admin"
    assert environment["CONCH_VECTORS_URL"] == "http://milvus:19530"
    assert services["gateway"]["build"]["args"] == {"BASE": "debian:bookworm-slim", "RETRIEVAL": "yes"}
    assert services["gateway"]["image"] != config(BASE, "")["services"]["gateway"]["image"]


def test_observers_are_added_and_change_nothing() -> None:
    """Next to the stack, not in it; what they read of the repository is there, and cannot be written to."""
    plain, found = (config(files, "")["services"] for files in (BASE, OBSERVE))
    assert {name: service for name, service in found.items() if name in plain} == plain
    assert set(found) - set(plain) == OBSERVERS
    mounts = [mount for name in OBSERVERS for mount in found[name].get("volumes", ())]
    for mount in mounts:
        if mount["type"] == "bind":
            assert mount["read_only"]
            assert Path(mount["source"]).exists(), mount["source"]
    assert {name for name in OBSERVERS if "egress" in found[name]["networks"]} == {
        "alertmanager",
        "collector",
    }


def test_instances_have_ports_of_their_own_where_asked() -> None:
    """On the loopback address, by way of nginx; the plain file has none of them."""
    plain, own = (
        config([*BASE, *more], "")["services"]["nginx"]["ports"]
        for more in ([], ["docker/compose.instances.yaml"])
    )
    added = [port for port in own if port not in plain]
    assert sorted((port["target"], port["published"]) for port in added) == [
        (n, str(n)) for n in (*range(8010, 8014), *range(8020, 8024))
    ]
    assert {port["host_ip"] for port in added} == {"127.0.0.1"}


def test_encoders_beside_tensorrt_llm_run_another_image() -> None:
    """TRITON_i_TARGET names it, image and stage; the builder of plans comes first, with the same volumes and
    models, and only with its profile; TARGET=tensorrt alone needs nothing of that.
    """

    def images(profile: str, **variables: str) -> dict[str, tuple[str, str]]:
        found = config(BASE, profile, **variables)["services"]
        conchs = {name: row for name, row in found.items() if "server.Dockerfile" in str(row.get("build"))}
        return {
            name: (row["image"].rpartition("0.2.0-")[2], row["build"]["target"])
            for name, row in conchs.items()
        }

    assert images("") == {"builder": ("torch", "torch-builder"), "triton-0": ("torch", "torch")}
    plain = {"builder": ("trtllm", "trtllm-builder"), "triton-0": ("trtllm", "trtllm")}
    assert images("", TARGET="trtllm") == plain
    assert images("instances-2,tensorrt", TARGET="trtllm", TRITON_1_TARGET="tensorrt") == {
        **plain,
        "builder-tensorrt": ("tensorrt", "tensorrt-builder"),
        "triton-1": ("tensorrt", "tensorrt"),
    }
    assert images("instances-2,torch", TARGET="trtllm", TRITON_1_TARGET="torch") == {
        **plain,
        "builder-torch": ("torch", "torch-builder"),
        "triton-1": ("torch", "torch"),
    }
    alone = images("", TARGET="tensorrt")
    assert alone == {"builder": ("tensorrt", "tensorrt-builder"), "triton-0": ("tensorrt", "tensorrt")}
    mixed = config(BASE, "instances-2,tensorrt", TRITON_1_TARGET="tensorrt", MODEL_ID="base,mini-clip")[
        "services"
    ]
    first, second = mixed["builder-tensorrt"], mixed["builder"]
    for name in ("builder-tensorrt", "builder-torch"):
        assert config(BASE, "tensorrt,torch")["services"]["builder"]["depends_on"][name]["condition"] == (
            "service_completed_successfully"
        )
    assert first["volumes"] == second["volumes"]
    assert first["deploy"]["resources"] == second["deploy"]["resources"]
    for name in ("MODEL_ID", "TARGET", "TRITON_1_GPUS", "ENGINES_DIR"):
        assert first["environment"][name] == second["environment"][name]
    assert second["environment"]["TRITON_1_TARGET"] == "tensorrt"
    stages = (ROOT / "docker" / "server.Dockerfile").read_text("utf-8")
    assert "FROM ${NVIDIA_BASE} AS tensorrt\n" in stages
    assert "FROM tensorrt AS tensorrt-builder\n" in stages


def test_one_place_for_the_image_of_nvidia() -> None:
    """The pinned tag stands once in the repository's packaging."""
    files = [*ROOT.glob("docker/*"), ROOT / "compose.yaml", ROOT / ".env.example"]
    text = "".join(path.read_text("utf-8") for path in files if path.is_file())
    assert text.count("25.07-trtllm-python-py3") == 1


def test_every_variable_is_documented() -> None:
    """.env.example names exactly the variables of the compose files, with their defaults."""
    more = ("instances", "tls", "observe")
    files = (*RETRIEVAL, *(f"docker/compose.{name}.yaml" for name in more))
    text = "".join((ROOT / file).read_text("utf-8") for file in files)
    defaults = re.findall(r"\$\{([A-Z0-9_]+):-([^}]*)\}", text)
    used = {name: "" if default.startswith("${") else default for name, default in defaults}  # another's own
    for name in ("server", "gateway"):
        stages = (ROOT / "docker" / f"{name}.Dockerfile").read_text("utf-8")
        assert f"ARG BASE={used['CONCH_BASE']}\n" in stages
    del used["CONCH_BASE"]
    used |= {name: used.get(name, "") for name in re.findall(r"\$\{([A-Z0-9_]+):\+", text)}
    secrets = ("API_KEYS_FILE", "ADMIN_KEYS_FILE", "HF_TOKEN_FILE", "TLS_CERT_FILE", "TLS_KEY_FILE")
    for name in (*secrets, *PASSWORDS, "GRAFANA_PASSWORD_FILE", "HF_CACHE"):
        used[name] = ""  # their default is /dev/null, an empty file, or they have none
    rows = dict(
        line.split("=", 1)
        for line in (ROOT / ".env.example").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    )
    assert rows == used
