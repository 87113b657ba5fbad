"""Plans and what follows from them."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from build.catalog import CatalogError, load_catalog
from conch.bundle import ENGINE, MANIFEST, PARAMETERS, EngineFacts, Manifest, Probe
from conch.contract import save
from conch.deployment import Chat, Deployment
from conch.gpus import assigned
from ops.deploy import addresses, chosen, outdated
from ops.hardware import instances
from ops.local import nginx_binary
from ops.nginx import OPEN, AccessPolicy, Tls, pools, write_nginx
from ops.planning import IN_DOCKER, Addresses, chat, described, front_processes, make_plan, precision, share
from tests.fakes.http_server import Handler, answering

from .running_nginx import running_nginx, values_in

ADDRESSES = Addresses(
    "unix:/run/x/triton-{i}.http",
    "unix:/run/x/triton-{i}.grpc",
    ("unix:/run/x/gateway-0", "unix:/run/x/gateway-1"),
)


def plan(count: int, *ids: str) -> Deployment:
    catalog = load_catalog()
    return make_plan([catalog[name] for name in ids], count, [Path("/x")] * len(ids), [0, 1], ADDRESSES)


def test_instances_take_turns(tmp_path: Path) -> None:
    """Instance i serves model i mod n; CPUs are disjoint; the file says the same."""
    made = plan(3, "mini-whisper", "random-base")
    assert [(pool.model_id, pool.instances) for pool in made.pools] == [
        ("mini-whisper", (0, 2)),
        ("random-base", (1,)),
    ]
    assert [instance.http for instance in made.instances] == [
        f"unix:/run/x/triton-{i}.http" for i in range(3)
    ]
    made.save(tmp_path / "deployment.json")
    assert Deployment.load(tmp_path / "deployment.json") == made


@pytest.mark.parametrize(
    ("count", "shares"),
    [
        (1, [(0, 1, 2, 3)]),
        (2, [(0, 1), (2, 3)]),
        (3, [(0,), (1,), (2, 3)]),
        (5, [(0,), (1,), (2,), (3,), (0,)]),
    ],
)
def test_cpus_are_shared_out(count: int, shares: list[tuple[int, ...]]) -> None:
    """Disjoint as long as there are enough."""
    assert share([0, 1, 2, 3], count) == shares


def test_too_few_instances() -> None:
    """Refused with the number that would do."""
    with pytest.raises(CatalogError, match="set INSTANCES=2 or more"):
        plan(1, "mini-whisper", "random-base")


def nginx_accepts(folder: Path, access: AccessPolicy, made: Deployment | None = None) -> str:
    """Render everything for a plan, by default of two pools, and run nginx -t on it; pools.conf."""
    (folder / "run").mkdir()
    values = replace(
        values_in(folder, 9001), instance_http=0 if made else 9010, instance_grpc=0 if made else 9020
    )
    main = write_nginx(folder, values, access, made or plan(3, "mini-whisper", "random-base"))
    assert not any("${" in path.read_text() for path in folder.glob("*.conf"))
    done = subprocess.run(
        [nginx_binary(), "-t", "-c", main, "-p", folder, "-e", "stderr"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (folder / "pools.conf").read_text()


def test_what_is_sent_once_more_has_a_fresh_connection(tmp_path: Path) -> None:
    """A kept one may lead to the server that was just lost, and would count as the second loss; nor is that
    server the first choice because it is idle. From 1.29.7 on nginx keeps connections unless it is told.
    """
    upstreams = dict(re.findall(r"upstream (\w+) \{\n(.*?)\n\}", nginx_accepts(tmp_path, OPEN), re.DOTALL))
    again = {name for name in upstreams if name.endswith("_again")}
    pools = {f"pool_{n}_{kind}_again" for n in (0, 1) for kind in ("http", "grpc")}
    assert again == {"gateway_again", *pools}
    for name in again:
        usual, more = (upstreams[one].splitlines() for one in (name.removesuffix("_again"), name))
        assert [line for line in usual if "server " in line] == [line for line in more if "server " in line]
        assert ("    least_conn;" in usual, "    least_conn;" in more) == (True, False)
        assert "    keepalive_requests 1;" in more
        assert ("    keepalive 64;" in usual) == ("grpc" not in name)
        assert ("    keepalive_requests 1;" in usual) == ("grpc" in name)


@pytest.mark.parametrize(
    "access",
    [
        OPEN,
        AccessPolicy(keys=True),
        AccessPolicy(rate="10r/s"),
        AccessPolicy(keys=True, rate="600r/m", burst=5),
    ],
)
def test_nginx_accepts_the_rendered_files(tmp_path: Path, access: AccessPolicy) -> None:
    """nginx -t, with two pools and two gateways, without keys and limits, with each of them and with both."""
    assert nginx_accepts(tmp_path, access).count("server unix:/run/x/gateway-") == 2 * 2


def test_instances_have_ports_of_their_own() -> None:
    """Where they are asked for: a line to listen at, and a route by port, for each."""
    values = replace(values_in(Path("/r"), 1), listen="0.0.0.0")
    assert set(values.instances(2).values()) == {""}
    found = replace(values, instance_http=8010, instance_grpc=8020).instances(2)
    assert found["KSERVE_PORTS"] == "listen 0.0.0.0:8010; listen 0.0.0.0:8011;"
    assert found["GRPC_PORTS"] == "listen 0.0.0.0:8020 http2; listen 0.0.0.0:8021 http2;"
    assert (
        found["PORT_ROUTES"] == '8010 "instance:0"; 8011 "instance:1"; 8020 "instance:0"; 8021 "instance:1";'
    )


class Name(Handler):
    """Answers with the port that it listens at."""

    def do_GET(self) -> None:  # noqa: N802
        self.send(200, "text/plain", str(self.server.server_port))


def test_nobody_behind_nginx_is_said_in_json(tmp_path: Path) -> None:
    """With nginx itself and no gateway and no guard: a 503 in each listener's own shape, with Retry-After."""
    with running_nginx(tmp_path, plan(2, "mini-whisper")) as values:
        client = httpx.Client(transport=httpx.HTTPTransport(retries=20), trust_env=False)
        for path in ("/v1/models", "/v1/audio/transcriptions", "/health/ready"):
            answer = client.post(f"http://127.0.0.1:{values.port}{path}", content=b"x")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "gateway_unavailable"), path
            assert answer.headers["retry-after"]
        for port in (values.port, values.kserve):
            answer = client.post(f"http://127.0.0.1:{port}/v2/models/whisper_bls/infer", content=b"{}")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
            assert "no instance of this model can be reached" in answer.json()["error"]


def test_a_port_leads_to_its_instance(tmp_path: Path) -> None:
    """With nginx itself: the shared listener takes turns, each own port has its instance always."""
    made = plan(2, "mini-whisper")
    with answering(Name) as one, answering(Name) as two:
        names = [str(server.server_port) for server in (one, two)]
        own = tuple(
            replace(instance, http=f"127.0.0.1:{name}")
            for instance, name in zip(made.instances, names, strict=True)
        )
        with running_nginx(tmp_path, replace(made, instances=own), instances=True) as values:
            client = httpx.Client(transport=httpx.HTTPTransport(retries=20), trust_env=False)

            def answer(port: int) -> str:
                return client.get(f"http://127.0.0.1:{port}/v2/health/ready").text

            for i in (0, 1, 0, 1):
                assert answer(values.instance_http + i) == names[i]
            assert {answer(values.kserve) for _ in range(8)} == set(names)


@pytest.mark.parametrize(
    ("access", "said"),
    [(AccessPolicy(rate="ten"), "10r/s or 600r/m"), (AccessPolicy(hosts="a b"), "ALLOWED_HOSTS has 'a b'")],
)
def test_what_nginx_would_not_understand(access: AccessPolicy, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        access.values()


def test_the_time_to_wait_is_the_time_for_one_request() -> None:
    assert AccessPolicy(rate="6r/m").values()["RETRY_AFTER"] == "10"


def test_names_that_move_are_resolved_again() -> None:
    """In Docker every upstream asks Docker's name server; a zone is what nginx needs for that."""
    catalog = load_catalog()
    made = make_plan([catalog["mini-whisper"]], 2, [Path("/x")], [0, 1], IN_DOCKER)
    text = pools(made)
    assert "server triton-0:8000 max_fails=0 resolve;" in text
    assert text.startswith("resolver 127.0.0.11 ")
    assert text.count("    zone ") == text.count("upstream ")


@pytest.mark.parametrize(
    ("hosts", "says"),
    [("", "0"), ("a.example, B.example", "0;\n        a.example 1;\n        b.example 1"), ("*", "1")],
)
def test_hosts_of_a_stack_without_keys(hosts: str, says: str) -> None:
    """nginx's map; with keys every name will do."""
    assert AccessPolicy(hosts=hosts).values()["HOSTS"] == says
    assert AccessPolicy(keys=True, hosts=hosts).values()["HOSTS"] == "1"


def test_the_inner_listener_asks_for_its_key(tmp_path: Path) -> None:
    """Where it is a port, which others could reach."""
    for key in ("", "abc"):
        write_nginx(tmp_path, values_in(tmp_path, 1), OPEN, replace(plan(1, "mini-whisper"), inner_key=key))
        assert (
            'if ($http_x_conch_inner != "abc") { return 403; }' in (tmp_path / "nginx.conf").read_text()
        ) is bool(key)


@pytest.mark.parametrize(("said", "beams"), [({"beams": 3}, 3), ({}, 1)])
def test_a_pool_has_what_its_bundle_says(tmp_path: Path, said: dict[str, int], beams: int) -> None:
    """How many beams a request gets that names no number, what the engine can do, and its sizes."""
    manifest = Manifest(
        "mini-whisper",
        "whisper",
        "openvino",
        engine={},
        repository={},
        content="0",
        built="2026-01-02T03:04:05Z",
        capabilities=("transcription",),
        probe=Probe("whisper_bls", {}),
    )
    (tmp_path / ENGINE).mkdir()
    save(manifest, tmp_path / MANIFEST)
    EngineFacts("whisper", 448, 51865, 50257).save(tmp_path / ENGINE)
    (tmp_path / PARAMETERS).write_text(json.dumps(said), "utf-8")
    made = plan(1, "mini-t5")
    here = replace(made, instances=(replace(made.instances[0], bundle=str(tmp_path)),))
    pool = described(here).pool("mini-t5")
    assert (pool.licence, pool.examples[0][:5]) == ("Apache-2.0 (Conch)", "sort:")
    assert pool.size == (tmp_path / ENGINE / "engine.json").stat().st_size
    assert (pool.beams, pool.capabilities, pool.positions) == (beams, {"transcription"}, 448)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"precision": "float16", "weight_only": "int8"}, "float16, weights int8"),
        ({"precision": "bfloat16", "weight_only": "none", "quantization": "none"}, "bfloat16"),
        ({"compress": "none"}, ""),
        ({"compress": "int8"}, "weights int8"),
    ],
)
def test_precision_is_what_the_bundle_says(parameters: dict[str, str], said: str) -> None:
    """Empty where the engine chooses when it is loaded."""
    assert precision(parameters) == said


@pytest.mark.parametrize(("public", "where"), [(443, "https://$host"), (9443, "https://$host:9443")])
def test_plain_requests_go_to_the_public_port(public: int, where: str) -> None:
    """Which in Docker is another one than nginx's own; HTTPS's usual port needs no number."""
    made = Tls("/c", "/k", 8443, public, 60).values("0.0.0.0")
    assert "listen 0.0.0.0:8443 ssl;" in made["TLS"]
    assert f"return 308 {where}$request_uri;" in made["TLS"]
    assert made["HSTS"] == 'add_header Strict-Transport-Security "max-age=60";'
    assert Tls("/c", "/k", 8443, public).values("0.0.0.0")["HSTS"] == ""


def test_instances_on_hosts_of_their_own_share_nothing() -> None:
    """HOSTS=several: all CPUs, the same numbers of GPUs, whole budgets, more than four of them."""
    environment = {"HOSTS": "several", "HOST_GPUS": "0,1", "INSTANCES": "6", "TRITON_1_GPUS": "7"}
    assert instances(environment) == 6
    gpus = assigned(6, environment)
    model = load_catalog()["mini-whisper"]
    made = make_plan([model], 6, [Path("/x")], [0, 1], addresses(environment), gpus, apart=True)
    assert {(own.cpus, own.gpus, own.kv_share) for own in made.instances} == {((), "0,1", 1.0)}
    with pytest.raises(ValueError, match="INSTANCES='no' is not a number"):
        instances({**environment, "INSTANCES": "no"})


def test_addresses_are_composes_unless_others_are_named() -> None:
    assert addresses({}) == IN_DOCKER
    named = {"INSTANCE_HOST": "t-{i}.x", "GATEWAY_HOST": "g.x", "RESOLVER": "10.0.0.10"}
    assert addresses(named) == Addresses("t-{i}.x:8000", "t-{i}.x:8001", ("g.x:8090",), "10.0.0.10")
    with pytest.raises(ValueError, match="INSTANCE_HOST='t' lacks {i}"):
        addresses({"INSTANCE_HOST": "t"})


def test_nginx_takes_hundreds_of_instances(tmp_path: Path) -> None:
    """Its shared zones are large enough for all servers of a pool."""
    addresses = Addresses("127.0.0.1:{i}", "127.0.0.2:{i}", ("127.0.0.3:1",))
    made = make_plan([load_catalog()["mini-whisper"]], 300, [Path("/x")], [0], addresses, apart=True)
    own = tuple(
        replace(i, http=f"127.0.0.1:{i.index + 1}", grpc=f"127.0.0.2:{i.index + 1}") for i in made.instances
    )
    nginx_accepts(tmp_path, OPEN, replace(made, instances=own))


def test_doors_grow_with_the_machine() -> None:
    """Gateways and nginx's workers in front of GPUs."""
    assert [front_processes(cpus) for cpus in (1, 2, 8, 16, 64)] == [2, 2, 4, 8, 8]


def test_chat_of_a_tokenizer(tmp_path: Path) -> None:
    """The template, its special tokens, and the sampling that the checkpoint recommends."""
    assert chat(tmp_path) is None
    config = {"chat_template": "{{ messages }}", "eos_token": "</s>", "bos_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    added = [{"content": "</s>", "special": True}, {"content": "<think>", "special": False}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    found = chat(tmp_path)
    assert found == Chat("{{ messages }}", {"eos_token": "</s>"}, {}, ("</s>",))
    generation = {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": None,
        "eos_token_id": 2,
        "repetition_penalty": "1",
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    found = chat(tmp_path)
    assert found
    assert found.sampling == {"temperature": 0.7, "top_k": 20.0}


def test_the_builder_lists_what_decides(tmp_path: Path) -> None:
    """Settings that are not the default, whatever shell they come from; and images of another version."""
    given = {"MODEL_ID": "base", "TARGET": "torch", "PRECISION": "float32", "KV_CACHE": "none", "PORT": "1"}
    assert chosen(given) == "MODEL_ID=base, TARGET=torch, PRECISION=float32"
    assert not outdated(tmp_path), "not mounted, as on several hosts"
    (tmp_path / "checkout").mkdir()
    for place, text, other in (("checkout", "2", False), (".", "1", True), (".", "2", False)):
        (tmp_path / place / "CHANGELOG.md").write_text(text)
        assert outdated(tmp_path) is other
    (tmp_path / "checkout" / "CHANGELOG.md").unlink()
    (tmp_path / "checkout" / "CHANGELOG.md").mkdir()  # what cannot be read, as a file of umask 077
    assert not outdated(tmp_path)
