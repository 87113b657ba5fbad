"""Store the shape of a network, or other facts about it, in a file of an engine folder."""

from __future__ import annotations

from conch import contract


class Stored(contract.Stored):
    """A dataclass that is stored in an engine folder, in `FILE`."""

    FILE = "architecture.json"
