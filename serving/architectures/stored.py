"""Store the shape of a network, or other facts about it, in a file of an engine folder."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from conch import contract


class Stored:
    """A dataclass that is stored in an engine folder, in `FILE`."""

    FILE: ClassVar[str] = "architecture.json"

    @classmethod
    def load(cls, engine: Path) -> Self:
        """Read it from an engine folder.

        Raises:
            Malformed: see `contract.load`.
        """
        return contract.load(cls, engine / cls.FILE)

    def save(self, engine: Path) -> None:
        """Write it into an engine folder."""
        contract.save(self, engine / self.FILE)
