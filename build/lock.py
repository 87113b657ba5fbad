"""catalog.lock in the weights volume: the revisions and hashes that every later build requires."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from filelock import FileLock


class Lock:
    """catalog.lock: the revision and file hashes that each model's first fetch found, and that later fetches
    require.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, model_id: str) -> dict[str, Any] | None:
        """Return a model's entry."""
        entries = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        return cast("dict[str, Any] | None", entries.get(model_id))

    def put(self, model_id: str, entry: Mapping[str, Any]) -> None:
        """Record a model's entry. Safe with concurrent builders."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.guard"):
            entries = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
            entries[model_id] = dict(entry)
            partial = self.path.with_suffix(".partial")
            partial.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n", "utf-8")
            partial.replace(self.path)
