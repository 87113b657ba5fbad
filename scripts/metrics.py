"""`python -m scripts.metrics`: write the tables of docs/metrics.md from the code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from build.catalog import ROOT
from gateway import metrics as gateway
from ops.guard import metrics as guard
from serving.engine import metrics as engine

PAGE = ROOT / "docs" / "metrics.md"
NGINX = ROOT / "docker" / "nginx" / "nginx.conf.template"
BEGIN, END = "<!-- {}: python -m scripts.metrics -->\n", "<!-- end of {} -->\n"


@dataclass(frozen=True)
class Declared:
    """One metric: its name in Prometheus (a histogram's without _bucket), type, labels, and help."""

    name: str
    kind: str
    labels: tuple[str, ...]
    says: str


def _of(holder: object, *more: str) -> Iterable[Declared]:
    """Return the metrics that an object has as attributes, with labels that are added to all of them."""
    for one in vars(holder).values():
        if isinstance(one, MetricWrapperBase) and not one._labelvalues:
            (family,) = one.describe()
            name = f"{family.name}_total" if family.type == "counter" else family.name
            yield Declared(name, family.type, (*more, *one._labelnames), family.documentation)


def _triton() -> Iterable[Declared]:
    for name, says, label, _ in guard.TRITON:
        labels = ("model", "triton_model", *filter(None, [label]))
        yield Declared(f"{name}_total", "counter", labels, says)


def nginx_page() -> str:
    """Return what nginx answers at /metrics, with zeros for its variables."""
    (found,) = re.findall(r"return 200 '(# HELP conch_nginx[^']*)'", NGINX.read_text("utf-8"))
    return re.sub(r"\$\w+", "0", found)


def _nginx() -> Iterable[Declared]:
    for family in text_string_to_metric_families(nginx_page()):
        yield Declared(family.name, family.type, tuple(family.samples[0].labels), family.documentation)


def declared() -> dict[str, list[Declared]]:
    """Return every metric by component."""
    return {
        "gateway": list(_of(gateway.GatewayMetrics())),
        "guard": [*_of(guard.GuardMetrics(), "model"), *_triton()],
        "engine": list(_of(engine.EngineMetrics(), "model")),
        "nginx": list(_nginx()),
    }


def table(metrics: Iterable[Declared]) -> str:
    """Return one row for each."""
    lines = ["| metric | type | labels | what it says |", "|---|---|---|---|"]
    for one in metrics:
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.says} |")
    return "\n".join(lines) + "\n"


def renewed(text: str) -> str:
    """Return the page with current tables."""
    for part, metrics in declared().items():
        begin, end = BEGIN.format(part), END.format(part)
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = head + begin + table(metrics) + end + tail
    return text


def main(page: Path = PAGE) -> None:
    """Write the page."""
    page.write_text(renewed(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
