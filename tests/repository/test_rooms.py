"""The plan of the house: which room imports which, and who knows a target's name.

Read from the syntax of the files (`scripts/house.py`), so that an import in a function counts too.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from build.targets import names
from scripts.house import TARGETS, SourceFile, arrows, circle, module_graph, sources

# Who may import whom: the plan of docs/architecture.md.
ARROWS = {
    "conch": (),
    "serving": ("conch",),
    "speech": ("conch",),
    "retrieval": ("conch",),
    "gateway": ("conch", "speech", "retrieval"),
    "build": ("conch",),
    "ops": ("conch", "build", "gateway"),
    "scripts": ("conch", "build", "speech", "gateway", "serving", "ops"),
    "model_repos": ("conch", "serving"),
    "miniatures": ("conch", "build", "serving"),
    "bench": ("conch", "build", "gateway", "retrieval", "speech", "serving", "ops", "scripts"),
}
# Imports beyond them: by what, of what, and why.
EXCEPTIONS = {
    ("build", "serving.architectures"): "exporters trace the torch modules that the torch engine runs",
    ("build.targets.tensorrt", "serving.vision"): "INT8 is calibrated on pixels as the façade makes them",
    ("build.targets.tensorrt", "serving.errors"): "and a picture that it refuses is named",
    ("build.targets.torch", "serving.engine.torch"): "the names of the files that the torch engine reads",
}
# Parts of a room that may import less than the room.
NARROWER = {
    "scripts.clients": ("conch", "speech", "scripts"),
    "ops.guard": ("conch", "ops.guard", "ops.ranks", "ops.child"),  # all that a server's image has
    "ops.guard.checks": ("conch", "ops.guard.checks"),
    "ops.guard.proxy.service": ("conch", "ops.guard.checks", "ops.guard.life", "ops.guard.proxy"),
    "ops.guard.proxy.grpc_front": (
        "conch",
        "ops.guard.checks",
        "ops.guard.life",
        "ops.guard.proxy.contracts",
        "ops.guard.proxy.relay",
        "ops.guard.proxy.service",
    ),
    "ops.ranks": ("conch",),
}

SOURCES = sources()


def within(module: str, *parents: str) -> bool:
    return any(f"{module}.".startswith(f"{parent}.") for parent in parents)


def forbidden(found: list[SourceFile]) -> list[str]:
    """`file:line module` of each import of a room that neither table allows."""
    rooms = tuple(ARROWS)
    return [
        f"{source.path.relative_to(source.root)}:{line} {module}"
        for source in found
        for line, module, _ in source.imports()
        if within(module, *rooms)
        and not within(module, source.room, *ARROWS[source.room])
        and not any(within(source.module, by) and within(module, of) for by, of in EXCEPTIONS)
    ]


def test_rooms_import_as_drawn() -> None:
    assert not forbidden(SOURCES)


def test_every_exception_is_needed() -> None:
    imports = {(source.module, module) for source in SOURCES for _, module, _ in source.imports()}
    for by, of in EXCEPTIONS:
        assert any(within(left, by) and within(right, of) for left, right in imports), (by, of)


def test_parts_that_know_less_than_their_room() -> None:
    rooms = tuple(ARROWS)
    assert not [
        f"{source.module}:{line} {module}"
        for source in SOURCES
        for part, allowed in NARROWER.items()
        if within(source.module, part)
        for line, module, _ in source.imports()
        if within(module, *rooms) and not within(module, *allowed)
    ]


def test_the_ground_floor_needs_the_standard_library_only() -> None:
    """But the HTTP client of gateways and guards, which nothing else imports."""
    allowed = {*sys.stdlib_module_names, "conch"}
    assert [
        f"{source.module} {module}"
        for source in SOURCES
        if source.room == "conch"
        for _, module, _ in source.imports()
        if module.partition(".")[0] not in allowed
    ] == ["conch.http_client httptools"]


def test_there_is_no_circle() -> None:
    assert not circle(module_graph(SOURCES))
    rooms: dict[str, set[str]] = {}
    for left, right in arrows(SOURCES):
        rooms.setdefault(left, set()).add(right)
    assert not circle(rooms)


def test_only_targets_know_their_names() -> None:
    assert set(TARGETS) == set(names())
    assert not [
        f"{source.path.relative_to(source.root)}:{line}"
        for source in SOURCES
        if not within(source.module, "build.targets")
        for line in source.comparisons()
    ]


@pytest.mark.parametrize(
    ("room", "line", "fault"),
    [
        ("conch", "import serving.arrays", "forbidden"),
        ("gateway", "def late() -> None:\n    from build.catalog import ROOT", "forbidden"),
        ("serving", "from ops import guard", "forbidden"),
        ("ops", 'def of(target: str) -> bool:\n    return target == "torch"', "comparison"),
        ("ops", 'def of(target: str) -> bool:\n    return target in ("openvino", "torch")', "comparison"),
    ],
)
def test_a_fault_is_found(tmp_path: Path, room: str, line: str, fault: str) -> None:
    path = tmp_path / room / "module.py"
    path.parent.mkdir()
    path.write_text(line, "utf-8")
    (source,) = sources(tmp_path, (room,))
    assert bool(forbidden([source])) == (fault == "forbidden")
    assert bool(list(source.comparisons())) == (fault == "comparison")


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})) == {"b", "c"}
