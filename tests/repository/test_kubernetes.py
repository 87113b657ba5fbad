"""deploy/kubernetes: rendered by kustomize, valid for two releases, and the same as compose.yaml where both
speak of one thing.
"""

from __future__ import annotations

import copy
import re
import subprocess
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from build.catalog import ROOT

KUBECTL = ROOT / ".venv" / "build" / "bin" / "kubectl"
HERE = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (HERE / "overlays").iterdir())
RELEASES = (
    "1.28",
    "1.37",
)  # the oldest that docs/kubernetes.md names, and the newest whose schemas there are
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
# A service of compose.yaml, and what it is here.
SAME = {
    "builder": ("Job", "builder"),
    "triton-0": ("StatefulSet", "triton"),
    "gateway": ("Deployment", "gateway"),
    "nginx": ("Deployment", "nginx"),
}
# What is meant to differ: variables whose values are another, and those that only one side has.
OTHER_VALUES = {"CONCH_KSERVE_URL": "http://nginx-internal:8081"}  # nginx's service is for clients only
COMPOSE_ALONE = {
    # Every pod sees its own GPUs only: HOST_GPUS. Encoders of TensorRT-LLM are a deployment of their own.
    # Profiles and files of one host are Compose's.
    "builder": {f"TRITON_{i}_{what}" for i in range(4) for what in ("GPUS", "TARGET")}
    | {"COMPOSE_PROFILES", "HF_TOKEN_PATH", "CONCH_HF_CACHE"},
    "triton-0": set[str](),
    "gateway": set[str](),
    # A container is recreated when these change; a pod when the name of the mounted ConfigMap does.
    "nginx": {"RENDERED"},
}
KUBERNETES_ALONE = {"HOSTS", "HOST_GPUS", "INSTANCE_HOST", "GATEWAY_HOST", "RESOLVER"}
KUBERNETES_ALONE.add("CONCH_VERSION")  # compose.yaml has it in the images' tags; there the builder ends first
WAITING = ("triton", "gateway", "nginx")
BUILDERS = {"MAX_BODY", "RATE_LIMIT", "RATE_BURST", "ALLOWED_HOSTS", "ALLOWED_ORIGINS", "API_KEYS"}

Object = dict[str, Any]


@cache
def rendered(folder: str) -> str:
    done = subprocess.run([KUBECTL, "kustomize", HERE / folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def objects(folder: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(rendered(folder)) if one]


def one(found: list[Object], kind: str, name: str) -> Object:
    (only,) = [
        o for o in found if o["kind"] == kind and re.sub(r"-\w{10}$", "", o["metadata"]["name"]) == name
    ]
    return only


@cache
def at_defaults(path: str) -> str:
    """A file with every variable at its default, which may be another variable."""
    inner, before = re.compile(r"\$\{\w+(?::-([^${}]*)|:\+[^${}]*)?\}"), ""
    text = (ROOT / path).read_text("utf-8")
    while text != before:
        before, text = text, inner.sub(lambda found: found[1] or "", text)
    return text


def filled(path: str) -> Object:
    """The same as an object, as `docker compose` and `docker stack` fill it."""
    found: Object = yaml.safe_load(at_defaults(path))
    return found


def size(written: str) -> int:
    """Bytes of 32g, 1gb or 64Mi."""
    number, unit = re.fullmatch(r"(\d+)([kmgKMG]i?)b?", written).groups()  # type: ignore[union-attr]
    return int(number) * UNITS[unit]


def containers(workload: Object) -> list[Object]:
    """The pod's containers; the first serves."""
    spec = workload["spec"]["template"]["spec"]
    return [*spec["containers"], *spec.get("initContainers", ())]


def environment(found: list[Object], container: Object) -> dict[str, str]:
    """Variables of a container, ConfigMaps resolved; those that the cluster fills in are empty."""
    values: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        name = source["configMapRef"]["name"]
        values |= next(o["data"] for o in found if o["kind"] == "ConfigMap" and o["metadata"]["name"] == name)
    return values | {row["name"]: row.get("value", "") for row in container.get("env", ())}


def environments_differ(service: str, wanted: Object, found: list[Object], container: Object) -> list[str]:
    if service == "nginx":  # it reads none: see COMPOSE_ALONE
        return [] if set(wanted) >= COMPOSE_ALONE[service] else ["RENDERED"]
    given, missing = environment(found, container), object()
    allowed = COMPOSE_ALONE[service] | {"ALLOWED_HOSTS", "CONCH_INSTANCE"}
    wrong = [
        name
        for name, value in wanted.items()
        if name not in allowed and given.get(name, missing) != OTHER_VALUES.get(name, str(value))
    ]
    more = set(given) - set(wanted) - KUBERNETES_ALONE - BUILDERS
    return [*wrong, *more]


def mounts(container: Object, volumes: Object) -> dict[str, tuple[str, bool]]:
    """Where a container sees which volume, and whether it may write to it."""
    return {
        row["mountPath"]: (row["name"], not row.get("readOnly", False))
        for row in container["volumeMounts"]
        if "persistentVolumeClaim" in volumes[row["name"]]
    }


def differences(stack: Object, found: list[Object]) -> list[str]:
    """Where Kubernetes says something else than compose.yaml."""
    wrong = []
    for service, (kind, name) in SAME.items():
        wanted, workload = stack["services"][service], one(found, kind, name)
        pod, (container, *_) = workload["spec"]["template"]["spec"], containers(workload)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        user, group = map(int, wanted["user"].split(":"))
        networks = {
            label.partition("/")[2]
            for label, value in workload["spec"]["template"]["metadata"]["labels"].items()
            if label.startswith("conch.network/") and value == "true"
        }
        tmp = wanted["tmpfs"][0].partition("size=")[2]
        kept = {
            path: (name, mode != "ro")
            for name, path, mode in ((*row.split(":"), "rw")[:3] for row in wanted["volumes"])
            if not name.startswith((".", "/"))  # catalog.toml: it is in the image; a cache of this host
        }
        command = " ".join(wanted.get("command", [])), " ".join(container.get("command", []))
        seconds = re.sub(r"s$", "", wanted.get("stop_grace_period", "30s"))
        asked = {str(row).split(":")[-1] for row in wanted.get("ports", ())}
        opened = {str(row["containerPort"]) for row in container.get("ports", ())}
        checks = {
            "image": wanted["image"] == container["image"],
            "command": command[0] in command[1] if service == "builder" else command[0] == command[1],
            "user": (user, group)
            == (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]),
            "read_only": wanted["read_only"] == container["securityContext"]["readOnlyRootFilesystem"],
            "cap_drop": wanted["cap_drop"] == container["securityContext"]["capabilities"]["drop"],
            "init": wanted["init"] == pod["shareProcessNamespace"],
            "memory": size(wanted["deploy"]["resources"]["limits"]["memory"])
            == size(container["resources"]["limits"]["memory"]),
            "tmpfs": size(tmp) == size(volumes["tmp"]["emptyDir"]["sizeLimit"]),
            "shm_size": "shm_size" not in wanted
            or size(wanted["shm_size"]) == size(volumes["shm"]["emptyDir"]["sizeLimit"]),
            "stop_grace_period": int(seconds) == pod.get("terminationGracePeriodSeconds", 30),
            "networks": set(wanted["networks"]) == networks,
            "volumes": kept == mounts(container, volumes),
            "ports": asked <= opened,
        }
        wrong += [f"{service}: {name}" for name, same in checks.items() if not same]
        wrong += [
            f"{service}: {name}"
            for name in environments_differ(service, wanted["environment"], found, container)
        ]
    gateways = one(found, "HorizontalPodAutoscaler", "gateway")["spec"]["minReplicas"]
    if int(stack["services"]["gateway"]["deploy"]["replicas"]) != gateways:
        wrong.append("gateway: replicas")
    return wrong


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> list[Object]:
    return objects(f"overlays/{request.param}")


def test_base_is_compose() -> None:
    assert differences(filled("compose.yaml"), objects("base")) == []


# Changes of compose.yaml by the difference that they make: for Swarm as well, and for Kubernetes alone.
CHANGES_OF_BOTH: dict[str, Callable[[Object], Any]] = {
    "gateway: CONCH_REQUEST_SECONDS": lambda s: s["gateway"]["environment"].update(CONCH_REQUEST_SECONDS="9"),
    "builder: HF_HOME": lambda s: s["builder"]["environment"].pop("HF_HOME"),
    "gateway: image": lambda s: s["gateway"].update(image="localhost/conch/gateway:9.9.9"),
    "nginx: user": lambda s: s["nginx"].update(user="102:102"),
    "gateway: read_only": lambda s: s["gateway"].update(read_only=False),
    "nginx: cap_drop": lambda s: s["nginx"].update(cap_drop=[]),
    "triton-0: init": lambda s: s["triton-0"].update(init=False),
    "gateway: stop_grace_period": lambda s: s["gateway"].update(stop_grace_period="90s"),
    "builder: networks": lambda s: s["builder"].update(networks=["inner"]),
    "nginx: ports": lambda s: s["nginx"]["ports"].append("127.0.0.1:9000:9000"),
    "gateway: replicas": lambda s: s["gateway"]["deploy"].update(replicas="3"),
}
CHANGES: dict[str, Callable[[Object], Any]] = CHANGES_OF_BOTH | {
    "triton-0: NEW": lambda s: s["triton-0"]["environment"].update(NEW="1"),
    "triton-0: command": lambda s: s["triton-0"]["command"].append("--more"),
    "builder: command": lambda s: s["builder"].update(command=["python3", "-m", "ops.other"]),
    "triton-0: memory": lambda s: s["triton-0"]["deploy"]["resources"]["limits"].update(memory="16g"),
    "gateway: tmpfs": lambda s: s["gateway"].update(tmpfs=["/tmp:mode=1777,size=1g"]),
    "triton-0: shm_size": lambda s: s["triton-0"].update(shm_size="2gb"),
    "nginx: volumes": lambda s: s["nginx"].update(volumes=["engines:/engines"]),
}


@pytest.mark.parametrize("difference", CHANGES)
def test_a_change_of_compose_alone_is_noticed(difference: str) -> None:
    """Each of them, and it alone."""
    changed = copy.deepcopy(filled("compose.yaml"))
    CHANGES[difference](changed["services"])
    assert differences(changed, objects("base")) == [difference]


def test_the_networks_are_composes() -> None:
    """A policy for each; inner has no way out, and nothing that is not allowed is open."""
    found, wanted = objects("base"), filled("compose.yaml")["networks"]
    policies = {o["metadata"]["name"]: o["spec"] for o in found if o["kind"] == "NetworkPolicy"}
    assert set(policies) == set(wanted) | {"nothing-else"}
    assert policies["nothing-else"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name in wanted:
        assert policies[name]["podSelector"]["matchLabels"] == {f"conch.network/{name}": "true"}
    assert wanted["inner"]["internal"] is True
    assert all(rule.get("to") for rule in policies["inner"]["egress"])
    asked = {str(row).split(":")[-1] for row in filled("compose.yaml")["services"]["nginx"]["ports"]}
    assert {str(row["port"]) for row in policies["outer"]["ingress"][0]["ports"]} == asked


@pytest.mark.parametrize("release", RELEASES)
def test_every_object_is_valid(overlay: list[Object], release: str) -> None:
    """Against the schemas of that release; no field that it does not know."""
    for found in overlay:
        kubernetes_validate.validate(found, release, strict=True)


def test_the_check_by_schema_can_fail() -> None:
    found = one(objects("base"), "Deployment", "nginx")
    found["spec"]["template"]["spec"]["containers"][0]["memry"] = "1Gi"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(found, RELEASES[0], strict=True)


def test_examples_are_valid() -> None:
    """The Ingress by schema; routes of the Gateway API have none here, only their services are looked up."""
    services = {o["metadata"]["name"]: o["spec"]["ports"] for o in objects("base") if o["kind"] == "Service"}
    for path in sorted((HERE / "examples").glob("*.yaml")):
        for found in yaml.safe_load_all(path.read_text("utf-8")):
            if found["kind"] == "Ingress":
                for release in RELEASES:
                    kubernetes_validate.validate(found, release, strict=True)
                continue
            for backend in (b for rule in found["spec"]["rules"] for b in rule["backendRefs"]):
                assert backend["port"] in {port["port"] for port in services[backend["name"]]}


def test_pods_are_restricted(overlay: list[Object]) -> None:
    """As the Pod Security Standard of that name wants it, every container, also those that wait
    (https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted).
    """
    workloads = [o for o in overlay if o["kind"] in ("Job", "StatefulSet", "Deployment")]
    assert len(workloads) == len(SAME)
    for workload in workloads:
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC"))
        assert pod["automountServiceAccountToken"] is False
        kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
        for container in containers(workload):
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert not any(port.get("hostPort") for port in container.get("ports", ()))


def test_as_many_pods_as_instances_with_their_gpus(overlay: list[Object]) -> None:
    """And everybody who waits for the builder, and the builder itself, has the same configuration."""
    triton, builder = one(overlay, "StatefulSet", "triton"), one(overlay, "Job", "builder")
    container = containers(triton)[0]
    values = environment(overlay, container)
    assert triton["spec"]["replicas"] == int(values["INSTANCES"])
    ranks = int(values["TP_SIZE"]) * int(values["PP_SIZE"])
    assert "nvidia.com/gpu" not in containers(builder)[0]["resources"]["limits"]
    wanted = str(ranks) if values["TARGET"] == "torch" else None
    assert container["resources"]["limits"].get("nvidia.com/gpu") == wanted
    if wanted:
        assert values["CUDA_VISIBLE_DEVICES"] == values["HOST_GPUS"]
        assert len(values["HOST_GPUS"].split(",")) == ranks
    assert values["TARGET"] == container["image"].rpartition("-")[2]
    names = {
        volume["configMap"]["name"]
        for kind, name in SAME.values()
        for volume in one(overlay, kind, name)["spec"]["template"]["spec"]["volumes"]
        if "configMap" in volume
    }
    assert len(names) == 1
    assert re.fullmatch(r"deployment-\w{10}", names.pop())


def test_addresses_are_those_of_the_services() -> None:
    """What the builder writes into deployment.json are names that the cluster resolves."""
    found = objects("base")
    values = environment(found, containers(one(found, "Job", "builder"))[0])
    triton, gateway = one(found, "StatefulSet", "triton"), one(found, "Service", "gateway")
    where = f"{gateway['metadata']['namespace']}.svc.cluster.local"
    assert (
        values["INSTANCE_HOST"]
        == f"{triton['metadata']['name']}-{{i}}.{triton['spec']['serviceName']}.{where}"
    )
    assert values["GATEWAY_HOST"] == f"gateway.{where}"
    for name in ("triton", "gateway"):
        assert one(found, "Service", name)["spec"]["clusterIP"] == "None"


def kinds() -> dict[str, str]:
    """Workloads by name."""
    return {name: kind for kind, name in SAME.values()}


def test_one_version(overlay: list[Object]) -> None:
    """The project's own is the tag of every image of Conch, and in the configuration that pods compare."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    for name, kind in kinds().items():
        for container in containers(one(overlay, kind, name)):
            image, _, tag = container["image"].partition(":")
            assert not image.startswith("localhost/conch/") or tag.partition("-")[0] == version
    config = next(o for o in overlay if o["kind"] == "ConfigMap" and "MODEL_ID" in o["data"])
    assert config["data"]["CONCH_VERSION"] == version


def ends(script: str, folder: Path, seconds: float) -> bool:
    """Whether a container's command ends well in that time, with its volumes in `folder`."""
    script = script.replace("/config/*", f"{folder}/config/*").replace("/engines/", f"{folder}/engines/")
    try:
        return subprocess.run(["sh", "-c", script], timeout=seconds, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.parametrize("name", WAITING)
def test_pods_wait_for_the_builder_of_their_own_version(
    overlay: list[Object], name: str, tmp_path: Path
) -> None:
    """Run as it stands there: what the last builder has left is compared with the pod's own configuration."""
    spec = one(overlay, kinds()[name], name)["spec"]["template"]["spec"]
    (built,) = spec["initContainers"]
    assert {row["mountPath"]: row["name"] for row in built["volumeMounts"]} == {
        "/engines": "engines",
        "/config": "config",
    }
    mounted = {volume["name"]: volume for volume in spec["volumes"]}["config"]["configMap"]["name"]
    data = next(o["data"] for o in overlay if o["kind"] == "ConfigMap" and o["metadata"]["name"] == mounted)
    (tmp_path / "engines/deployment").mkdir(parents=True)
    (tmp_path / "config").mkdir()
    for key, value in data.items():
        (tmp_path / "config" / key).write_text(value)
    wait, version = built["command"][2], tmp_path / "config/CONCH_VERSION"
    assert not ends(wait, tmp_path, 1), "nothing is built yet"
    leave = containers(one(overlay, "Job", "builder"))[0]["command"][2].partition("ops.deploy && ")[2]
    version.write_text("0.0.9")
    assert ends(leave, tmp_path, 20)
    version.write_text(data["CONCH_VERSION"])
    assert not ends(wait, tmp_path, 1), "the builder of another version was the last"
    assert ends(leave, tmp_path, 20)
    assert ends(wait, tmp_path, 20)
