"""The command line of what exports encoders alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def command_line(description: str | None, export: Callable[[Path, Path, str, int], None]) -> None:
    """Call `export(weights, output, compress, longest)` as the command line says."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--compress", choices=["none", "int8"], default="none")
    parser.add_argument("--max-input-len", type=int, default=0, help="tokens; 0: as the model was trained")
    given = parser.parse_args()
    export(given.weights, given.output, given.compress, given.max_input_len)
