"""`python -m build engines`: make the bundles of MODEL_ID for TARGET."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .bundle import BuildError, Built, Places, build
from .catalog import CatalogError, load_catalog, select
from .sources import FetchError


def table(rows: list[Built]) -> str:
    """What was built, one line each."""
    lines = [f"{'id':24} {'target':9} {'MB':>8} {'seconds':>8}  state"]
    lines += [f"{row.model_id:24} {row.target:9} {row.bytes / 1e6:8.1f} {row.seconds:8.1f}  {'unchanged' if row.unchanged else 'built'}" for row in rows]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 with one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m build", description=__doc__)
    parser.add_argument("command", choices=["engines"])
    parser.add_argument("--model-id", default=os.environ.get("MODEL_ID", ""), help="ids of catalog.toml, comma-separated (default: the miniatures)")
    parser.add_argument("--target", default=os.environ.get("TARGET", "trtllm"))
    parser.add_argument("--weights", type=Path, default=Path(os.environ.get("WEIGHTS_DIR", "weights")))
    parser.add_argument("--engines", type=Path, default=Path(os.environ.get("ENGINES_DIR", "engines")))
    arguments = parser.parse_args(argv)
    places = Places(arguments.weights.resolve(), arguments.engines.resolve())
    try:
        print(table([build(model, arguments.target, places) for model in select(load_catalog(), arguments.model_id)]))
    except (BuildError, CatalogError, FetchError) as error:
        print(f"conch: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
