"""`python -m scripts.house [FOLDER]`: compute the code measures of docs/architecture.md for a checkout.

Python files of `ROOMS` are parsed as syntax trees. For a checkout with longer lines, run `ruff format
--line-length 110` on a copy first.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from build.catalog import ROOT

from .duplicates import BLOCK, duplicates
from .syntax import parsed

PRODUCT = ("conch", "serving", "speech", "retrieval", "gateway", "build", "ops", "scripts", "model_repos")
LABORATORY = ("miniatures", "bench")
ROOMS = (*PRODUCT, *LABORATORY)
TARGETS = ("openvino", "torch", "tensorrt", "trtllm")
LONG_MODULE = 250  # lines
LONG_FUNCTION = 45


@dataclass(frozen=True)
class SourceFile:
    """One Python file of a checkout."""

    root: Path
    path: Path

    @property
    def room(self) -> str:
        """Return its top folder."""
        return self.path.relative_to(self.root).parts[0]

    @property
    def module(self) -> str:
        """Return the name by which it is imported."""
        parts = self.path.relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def tree(self) -> ast.Module:
        """Return its syntax tree."""
        return parsed(self.path)

    @property
    def package(self) -> list[str]:
        """Return the package that relative imports start from."""
        parts = self.module.split(".")
        return parts if self.path.name == "__init__.py" else parts[:-1]

    def imports(self, *, at_import: bool = False) -> Iterator[tuple[int, str, str]]:
        """Yield line, module and name (empty: the module itself) of each import.

        With `at_import` only those that run when the module is imported: not those in functions or for types.
        """
        for node in _at_import(self.tree) if at_import else ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name, ""
            elif isinstance(node, ast.ImportFrom):
                base = self.package[: len(self.package) - node.level + 1] if node.level else []
                origin = ".".join([*base, *([node.module] if node.module else [])])
                for alias in node.names:
                    yield node.lineno, origin, alias.name

    def functions(self) -> Iterator[tuple[str, int]]:
        """Yield name and lines (decorators and docstring included) of each function."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                yield node.name, (node.end_lineno or first) - first + 1

    def comparisons(self, names: tuple[str, ...] = TARGETS) -> Iterator[int]:
        """Yield lines that compare something with one of `names`: `==`, `!=`, `in`, `match`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
            elif isinstance(node, ast.MatchValue):
                sides = [node.value]
            else:
                continue
            parts = [part for side in sides for part in getattr(side, "elts", [side])]
            if any(isinstance(part, ast.Constant) and part.value in names for part in parts):
                yield sides[0].lineno


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _at_import(child)


def sources(root: Path = ROOT, rooms: tuple[str, ...] = ROOMS) -> list[SourceFile]:
    """Return the Python files of the rooms, scripts without a suffix included."""
    return [
        SourceFile(root, path)
        for room in rooms
        for path in sorted((root / room).rglob("*"))
        if path.suffix == ".py" or (path.is_file() and not path.suffix and _is_script(path))
    ]


def _is_script(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline()
    return first.startswith(b"#!") and b"python" in first


def arrows(found: list[SourceFile]) -> dict[tuple[str, str], list[str]]:
    """Return, for each pair of rooms, `file:line module` of every import of the second by the first."""
    rooms = {source.room for source in found}
    between: dict[tuple[str, str], list[str]] = {}
    for source in found:
        place = source.path.relative_to(source.root)
        for line, module, name in source.imports():
            room = module.partition(".")[0]
            if room in rooms and room != source.room:
                between.setdefault((source.room, room), []).append(
                    f"{place}:{line} {module}.{name}".rstrip(".")
                )
    return between


def module_graph(found: list[SourceFile]) -> dict[str, set[str]]:
    """Return, for each module, those that importing it imports."""
    known = {source.module for source in found}
    graph: dict[str, set[str]] = {}
    for source in found:
        wanted = {
            f"{module}.{name}" if f"{module}.{name}" in known else module
            for _, module, name in source.imports(at_import=True)
        }
        graph[source.module] = (wanted & known) - {source.module}
    return graph


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the nodes of one circle, the first one again at its end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def report(root: Path) -> Iterator[str]:
    """Return the measures, one per line."""
    found = list(sources(root))
    paths = [source.path for source in found]
    lines = {source.module: len(source.path.read_text("utf-8").splitlines()) for source in found}
    sizes = [size for source in found for _, size in source.functions()]
    graph = module_graph(found)
    between = arrows(found)
    rooms: dict[str, set[str]] = {}
    for left, right in between:
        rooms.setdefault(left, set()).add(right)
    for name, part in {
        "the product": PRODUCT,
        "bench and miniatures": LABORATORY,
        "tests": ("tests",),
    }.items():
        counted = [len(one.path.read_text("utf-8").splitlines()) for one in sources(root, part)]
        yield f"lines of Python, {name}: {sum(counted):,} in {len(counted)} files"
    names = Counter(
        node.name for source in found for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)
    )
    yield f"class names that are used more than once: {sum(count > 1 for count in names.values())}"
    ninety = statistics.quantiles(sizes, n=10)[-1]
    middle = statistics.median(sizes)
    yield f"functions: {len(sizes):,}; median {middle:.0f}, p90 {ninety:.0f}, max {max(sizes)}"
    yield f"functions over {LONG_FUNCTION} lines: {sum(size > LONG_FUNCTION for size in sizes)}"
    yield f"modules over {LONG_MODULE} lines: {sum(size > LONG_MODULE for size in lines.values())}"
    yield f"arrows between rooms: {len(between)}; a circle of rooms: {', '.join(circle(rooms)) or 'none'}"
    yield f"imports among modules: {sum(map(len, graph.values())):,}"
    yield f"a circle of modules: {', '.join(circle(graph)) or 'none'}"
    outside = [source for source in found if not source.module.startswith("build.targets")]
    yield f"comparisons with a target's name: {sum(len(list(source.comparisons())) for source in outside)}"
    yield f"blocks of {BLOCK} or more equal lines of code: {len(duplicates(root, paths))}"


def main() -> None:
    """Print the measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--details", action="store_true", help="list the places as well")
    options = parser.parse_args()
    print(*report(options.folder), sep="\n")
    if not options.details:
        return
    found = sources(options.folder)
    for source in found:
        if (size := len(source.path.read_text("utf-8").splitlines())) > LONG_MODULE:
            print(f"{source.module}: {size} lines")
        for name, size in source.functions():
            if size > LONG_FUNCTION:
                print(f"{source.module}.{name}: {size} lines")
        for line in source.comparisons():
            print(f"{source.path}:{line}: compares a target's name")
    for left, right, size in duplicates(options.folder, [source.path for source in found]):
        print(f"{left} ~ {right}: {size} equal lines")
    for pair, places in sorted(arrows(found).items()):
        print(*pair, len(places))


if __name__ == "__main__":
    main()
