"""A real Prometheus, Alertmanager and exporters (Debian's) next to a running stack: what docker/observe
names is there, and an alert reaches its receiver.

Only addresses and times differ from docker/observe: the configurations are read from there.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.fakes.http_server import Handler, Recorder, answering, running
from tests.repository.test_observe import BIN, OBSERVE, expressions

from .clients import RECORDINGS, Load
from .conftest import TEXT_MODELS, Stack, certificate, until
from .processes import tritonserver

MODELS = TEXT_MODELS.split(",")
SPEAKERS = ("conch_gateway_diarization_seconds", "conch_gateway_recording_speakers")
ABSENT = ("DCGM", "nv_gpu_", "nv_trt_llm_", "conch_gateway_question_seconds_bucket", *SPEAKERS)
BART = MODELS.index("mini-bart")  # instance i serves the model number i


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Accepting(Handler):
    """Says 200 to everything."""

    def do_GET(self) -> None:  # noqa: N802
        self.send(200, "text/plain", "")

    def answer(self, body: bytes) -> None:
        self.do_GET()


@contextmanager
def https_server(home: Path) -> Iterator[int]:
    """The port of one with a certificate of two days."""
    certificate(home / "cert.pem", home / "key.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(home / "cert.pem", home / "key.pem")
    server = Recorder(Accepting)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with running(server):
        yield server.server_port


@contextmanager
def process(log: Path, *command: str | Path) -> Iterator[None]:
    with log.open("wb") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out, cwd=log.parent)
    try:
        yield
    finally:
        running.terminate()
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def scraping(stack: Stack, home: Path, ports: dict[str, int]) -> None:
    """The prometheus.yml of Docker for process mode: the same jobs at other addresses, and often."""
    found = yaml.safe_load((OBSERVE / "prometheus.yml").read_text("utf-8"))
    found["global"] = {"scrape_interval": "3s", "evaluation_interval": "1s"}
    here = stack.url.removeprefix("http://")
    found["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [f"127.0.0.1:{ports['alerts']}"]}]}]
    jobs = {job["job_name"]: job for job in found["scrape_configs"] if job["job_name"] != "dcgm"}
    found["scrape_configs"] = list(jobs.values())
    for job in jobs.values():
        job.pop("dns_sd_configs", None)
    jobs["gateway"] |= {"metrics_path": "/metrics", "static_configs": [{"targets": [here]}]}
    jobs["nginx"] |= {"metrics_path": "/metrics/nginx", "static_configs": [{"targets": [here]}]}
    del jobs["instance"]["relabel_configs"]
    jobs["instance"]["static_configs"] = [
        {
            "targets": [here],
            "labels": {"instance": f"triton-{i}", "__metrics_path__": f"/instances/{i}/metrics"},
        }
        for i in range(len(MODELS))
    ]
    jobs["node"]["static_configs"] = [{"targets": [f"127.0.0.1:{ports['node']}"]}]
    jobs["probe"] |= {"scrape_interval": "10s", "scrape_timeout": "10s"}
    jobs["probe"]["relabel_configs"][-1]["replacement"] = f"127.0.0.1:{ports['probe']}"
    probed = [f"{stack.url}/health/ready", f"https://127.0.0.1:{ports['tls']}/"]
    (home / "probes").mkdir()
    (home / "probes" / "http.yml").write_text(yaml.safe_dump([{"targets": probed}]), "utf-8")
    shutil.copytree(OBSERVE / "rules", home / "rules")
    (home / "prometheus.yml").write_text(yaml.safe_dump(found), "utf-8")


def telling(home: Path, port: int) -> None:
    """alertmanager.yml with somebody to tell, at once."""
    found = yaml.safe_load((OBSERVE / "alertmanager.yml").read_text("utf-8"))
    found["route"] |= {"group_wait": "0s", "group_interval": "1s"}
    found["receivers"][0]["webhook_configs"] = [{"url": f"http://127.0.0.1:{port}/"}]
    (home / "alertmanager.yml").write_text(yaml.safe_dump(found), "utf-8")


@dataclass
class Prometheus:
    """`told`: the receiver of Alertmanager's webhook."""

    url: str
    told: Recorder

    def firing(self, name: str) -> list[dict[str, str]]:
        """The labels of the alerts of this name that were sent."""
        alerts = [alert for _, _, body in list(self.told.asked) for alert in json.loads(body)["alerts"]]
        return [
            alert["labels"]
            for alert in alerts
            if alert["status"] == "firing" and alert["labels"]["alertname"] == name
        ]

    def ask(self, query: str) -> list[dict[str, Any]]:
        response = httpx.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=30)
        if response.status_code == 503:  # it is starting
            response.raise_for_status()
        answer = response.json()
        assert answer["status"] == "success", (query, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def values(self, query: str) -> list[float]:
        """The finite ones."""
        found = [float(row["value"][1]) for row in self.ask(query)]
        return [value for value in found if math.isfinite(value)]


@pytest.fixture(scope="module")
def prometheus(text_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    home = tmp_path_factory.mktemp("observe")
    ports = {name: free_port() for name in ("prometheus", "alerts", "node", "probe")}
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    with ExitStack() as stack:
        ports["tls"] = stack.enter_context(https_server(home))
        scraping(text_stack, home, ports)
        told = stack.enter_context(answering(Accepting))
        telling(home, told.server_port)
        for name, *command in (
            ("node", BIN / "prometheus-node-exporter", f"--web.listen-address={at['node']}"),
            (
                "probe",
                BIN / "prometheus-blackbox-exporter",
                f"--config.file={OBSERVE}/blackbox.yml",
                f"--web.listen-address={at['probe']}",
            ),
            (
                "alerts",
                BIN / "prometheus-alertmanager",
                "--config.file=alertmanager.yml",
                "--storage.path=alerts",
                "--cluster.listen-address=",
                f"--web.listen-address={at['alerts']}",
            ),
            (
                "prometheus",
                BIN / "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=metrics",
                f"--web.listen-address={at['prometheus']}",
            ),
        ):
            stack.enter_context(process(home / f"{name}.log", *command))
        yield Prometheus(f"http://{at['prometheus']}", told)


@contextmanager
def asked(stack: Stack) -> Iterator[None]:
    """Requests of every kind, again and again: speech and text, whole and streamed."""
    numbers = count()
    sound = (RECORDINGS / "order.wav").read_bytes()

    def call() -> None:
        number = next(numbers)
        stream = number % 4 < 2
        if number % 2:
            fields = {"stream": "true"} if stream else {}
            answer = stack.transcribe(sound, model="mini-whisper", **fields)
        else:
            body = {"model": "mini-t5", "prompt": "sort: lamp kitchen boat", "max_tokens": 20}
            url = f"{stack.url}/v1/completions"
            answer = httpx.post(url, json={**body, "stream": stream}, timeout=60)
        assert answer.status_code == 200, answer.text

    with Load(call, 2) as load:
        load.wait_for(4, 60)
        yield
    assert not load.failed


def silent(prometheus: Prometheus, dashboard: str) -> list[str]:
    """Queries of a dashboard that give no finite number for any model or instance. Aside: those for GPUs, and
    of models that this stack has not: for pictures and speakers.
    """
    chosen = {
        "conch-overview": [""],
        "conch-model": ["mini-t5", "mini-whisper"],
        "conch-instance": ["triton-0", f"triton-{MODELS.index('mini-whisper')}"],
    }[dashboard]
    variable = {"conch-model": "$model", "conch-instance": "$instance"}.get(dashboard, "$none")
    wanted = [
        query
        for query in expressions(OBSERVE / "dashboards" / f"{dashboard}.json")
        if not any(name in query for name in ABSENT)
    ]
    filled = {query: query.replace("$__rate_interval", "30s") for query in wanted}
    return [
        query
        for query in wanted
        if not any(prometheus.values(filled[query].replace(variable, choice)) for choice in chosen)
    ]


def test_every_query_of_every_dashboard_has_data(text_stack: Stack, prometheus: Prometheus) -> None:
    """While requests come in; and every target is scraped."""
    with asked(text_stack):
        for dashboard in ("conch-overview", "conch-model", "conch-instance"):
            try:
                until(dashboard, lambda name=dashboard: not silent(prometheus, name), 90, httpx.HTTPError)
            except AssertionError:
                assert silent(prometheus, dashboard) == []
    expected = 2 + len(MODELS) + 3  # gateways and nginx, instances, node and probes

    def up() -> list[str]:
        return [row["value"][1] for row in prometheus.ask("max_over_time(up[1m])")]  # a scrape may be late

    until(
        "every target is up", lambda: up() == ["1"] * expected, 60, httpx.HTTPError
    )  # first scrapes are spread over 10 s


def test_figures_are_those_of_the_requests(text_stack: Stack, prometheus: Prometheus) -> None:
    """One more recording and one more text are counted as such; guards and engines see probes as well."""
    asked_for = 'model="mini-gpt2",triton_model="tensorrt_llm_bls",status="200"'
    totals = {
        "sound": 'sum(conch_gateway_audio_seconds_total{model="mini-whisper"})',
        "written": 'sum(conch_gateway_tokens_total{model="mini-gpt2",kind="written"})',
        "engine": 'sum(conch_engine_tokens_total{model="mini-gpt2",kind="written"})',
        "guard": f"sum(conch_kserve_requests_total{{{asked_for}}}) or vector(0)",
        "first": 'sum(conch_engine_first_token_seconds_count{model="mini-gpt2"})',
    }

    def figures() -> dict[str, float]:
        return {name: prometheus.values(query)[0] for name, query in totals.items()}

    until("figures", lambda: all(prometheus.values(query) for query in totals.values()), 60, httpx.HTTPError)
    now = time.time()  # what was asked for before is in the figures once all of them are newer

    def newer() -> bool:
        names = (
            "conch_gateway_audio_seconds_total",
            "conch_gateway_tokens_total",
            "conch_engine_tokens_total",
        )
        return all(prometheus.values(f"min(timestamp({name}))")[0] > now for name in names)

    until("figures of now", newer, 60, httpx.HTTPError)
    before = figures()
    body = {"model": "mini-gpt2", "prompt": "the", "max_tokens": 7, "min_tokens": 7, "temperature": 0}
    usage = httpx.post(f"{text_stack.url}/v1/completions", json=body, timeout=60).json()["usage"]
    sound = (RECORDINGS / "order.wav").read_bytes()
    answer = text_stack.transcribe(sound, model="mini-whisper", response_format="verbose_json")
    seconds = float(answer.json()["duration"])

    def counted() -> bool:
        more = {name: value - before[name] for name, value in figures().items()}
        written = usage["completion_tokens"]
        exact = more["sound"] == pytest.approx(seconds, abs=0.01) and more["written"] == written
        return exact and more["engine"] >= written and more["guard"] >= 1 and more["first"] >= 1

    until("the new figures", counted, 60, httpx.HTTPError)


def test_alerts_reach_somebody(text_stack: Stack, prometheus: Prometheus) -> None:
    """A tritonserver that is killed is told of, by model and instance; so is a certificate of two days."""
    died = {"alertname": "ConchServerDied", "model": "mini-bart", "instance": f"triton-{BART}"}
    query = f'conch_triton_deaths_total{{instance="triton-{BART}",reason="from outside"}}'
    (before,) = until("a sample before", lambda: prometheus.values(query), 60, httpx.HTTPError)
    os.kill(tritonserver(text_stack, BART), signal.SIGKILL)
    serving = f'conch_triton_serving{{instance="triton-{BART}"}}'
    until("it is seen", lambda: prometheus.values(query) == [before + 1], 60, httpx.HTTPError)

    def told() -> bool:
        return any(died.items() <= one.items() for one in prometheus.firing("ConchServerDied"))

    until("the alert", told, 60)
    until("the certificate's", lambda: prometheus.firing("ConchCertificateEnding"), 60, httpx.HTTPError)
    until("the server is back", lambda: prometheus.values(serving) == [1.0], 90, httpx.HTTPError)
    ready = f"{text_stack.url}/health/ready"
    until("all models answer", lambda: httpx.get(ready, timeout=40).status_code == 200, 60, httpx.HTTPError)
