"""Rules, dashboards and configurations of docker/observe: valid, and about metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from build.catalog import ROOT
from scripts.metrics import declared

BIN = ROOT / ".venv" / "prometheus" / "usr" / "bin"
OBSERVE = ROOT / "docker" / "observe"
EXAMPLES = ROOT / "tests" / "observe" / "rules.yml"
DASHBOARDS = sorted((OBSERVE / "dashboards").glob("*.json"))
# What Prometheus and the exporters call theirs; the stack test asks a real one for each.
OTHERS = re.compile(
    r"up|probe_(?:success|ssl_earliest_cert_expiry)|node_\w+|DCGM_FI_DEV_(?:GPU_UTIL|FB_USED)"
    r"|nv_gpu_memory_(?:used|total)_bytes|nv_trt_llm_(?:kv_cache_block|request)_metrics"
)
OPERATORS = {"or", "and", "unless"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((OBSERVE / "rules" / "conch.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions(dashboard: Path) -> list[str]:
    panels = json.loads(dashboard.read_text("utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def samples() -> set[str]:
    """Every name that a query may ask for."""
    names = {str(rule["record"]) for rule in rules() if "record" in rule}
    for metrics in declared().values():
        for one in metrics:
            ends = ("_bucket", "_sum", "_count") if one.kind == "histogram" else ("",)
            names |= {one.name + end for end in ends}
    return names


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run([BIN / "promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def asked(expression: str) -> set[str]:
    """The metrics that a query names: words that are no function, label, range or text."""
    bare = re.sub(r'"[^"]*"|\'[^\']*\'', "", expression)
    bare = re.sub(r"\b(?:by|on|without)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    words = re.findall(r"(?<![\w:.$])[a-zA-Z_:][\w:]*(?!\s*\()(?![\w:])", bare)
    return set(words) - OPERATORS


def test_configurations_are_valid() -> None:
    promtool("check", "config", OBSERVE / "prometheus.yml")
    subprocess.run([BIN / "amtool", "check-config", OBSERVE / "alertmanager.yml"], check=True)
    done = subprocess.run(
        [BIN / "prometheus-blackbox-exporter", f"--config.file={OBSERVE}/blackbox.yml", "--config.check"],
        check=False,
    )
    assert done.returncode == 0


def test_every_alert_fires_in_an_example_and_is_silent_in_one() -> None:
    """promtool runs the examples; that there are both for each alert is looked up here."""
    promtool("test", "rules", EXAMPLES)
    examples = yaml.safe_load(EXAMPLES.read_text("utf-8"))["tests"]
    fired, silent = set(), set()
    for case in (case for example in examples for case in example.get("alert_rule_test", ())):
        (fired if case.get("exp_alerts") else silent).add(case["alertname"])
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert fired == alerts == silent


def test_every_alert_says_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("page", "ticket", "info")
            assert set(rule["annotations"]) == {"summary", "remedy"}, rule["alert"]


def test_rules_ask_for_metrics_that_exist() -> None:
    for rule in rules():
        unknown = {name for name in asked(rule["expr"]) - samples() if not OTHERS.fullmatch(name)}
        assert not unknown, rule


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_dashboards_ask_for_metrics_that_exist(dashboard: Path, tmp_path: Path) -> None:
    """And in PromQL: as recording rules promtool reads them all."""
    queries = expressions(dashboard)
    assert queries
    for query in queries:
        assert asked(query)
        unknown = {name for name in asked(query) - samples() if not OTHERS.fullmatch(name)}
        assert not unknown, query
    rows = [
        {"record": f"query:{i}", "expr": re.sub(r"\$__rate_interval", "1m", query)}
        for i, query in enumerate(queries)
    ]
    rules_file = tmp_path / "rules.yml"
    rules_file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rows}]}), "utf-8")
    promtool("check", "rules", rules_file)


def test_every_metric_is_on_a_dashboard_or_in_a_rule() -> None:
    """What nobody looks at need not be measured."""
    seen = {name for path in DASHBOARDS for query in expressions(path) for name in asked(query)}
    seen |= {name for rule in rules() for name in asked(rule["expr"])}
    families = {name.removesuffix("_bucket") for name in seen}
    assert {one.name for metrics in declared().values() for one in metrics} <= families


def test_dashboards_are_grafanas() -> None:
    """Unique ids, panels that do not overlap, and the data source that is provisioned."""
    sources = yaml.safe_load((OBSERVE / "grafana" / "datasources.yml").read_text("utf-8"))["datasources"]
    uids = [json.loads(path.read_text("utf-8"))["uid"] for path in DASHBOARDS]
    assert len(set(uids)) == len(uids) == 3
    for path in DASHBOARDS:
        panels = json.loads(path.read_text("utf-8"))["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        cells = [
            (x, y)
            for panel in panels
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(set(cells)) == len(cells)
        used = {panel["datasource"]["uid"] for panel in panels if "datasource" in panel}
        assert used <= {source["uid"] for source in sources}
