"""`python -m scripts.models`: write the README's table of models from catalog.toml and the families."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from build import targets
from build.catalog import CATALOG, ROOT, Model, load_catalog
from build.families import family_data

README = ROOT / "README.md"
BEGIN, END = "<!-- models: python -m scripts.models -->\n", "<!-- end of models -->\n"
NAMES = {"openvino": "CPU", "torch": "PyTorch", "tensorrt": "TensorRT", "trtllm": "TensorRT-LLM"}


def _targets(family: str) -> set[str]:
    data = family_data(family)
    return {target for target in targets.names() if target in data}


def _cell(target: str, able: set[str]) -> str:
    """Return the cell of the target itself, or of its first companion that can build it."""
    if target in able:
        return "yes"
    return next((f"via {NAMES[name]}" for name in targets.COMPANIONS.get(target, ()) if name in able), "–")


def table(models: Iterable[Model]) -> str:
    """Return one row for each family and licence."""
    rows: dict[tuple[str, str], list[str]] = {}
    for model in models:
        if not model.source.startswith("random:"):  # benchmarks only
            # Models that differ only in their name share a row.
            key = model.family, model.licence.partition(";")[0]
            rows.setdefault(key, []).append(f"`{model.id}`")
    # tensorrt is a companion only
    columns = [name for name in targets.names() if name in _targets("whisper")]
    heads = [NAMES.get(target, target) for target in columns]
    lines = [
        f"| family | {' | '.join(heads)} | MODEL_ID | licence of the weights |",
        "|---" * (3 + len(heads)) + "|",
    ]
    for (family, licence), ids in sorted(rows.items()):
        able = " | ".join(_cell(target, _targets(family)) for target in columns)
        lines.append(f"| {family} | {able} | {', '.join(ids)} | {licence} |")
    return "\n".join(lines) + "\n"


def renewed(text: str) -> str:
    """Return the README with the current table."""
    made = table(load_catalog(CATALOG).values())
    return re.sub(f"(?s){re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: BEGIN + made + END, text)


def main(readme: Path = README) -> None:
    """Write the README."""
    readme.write_text(renewed(readme.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
