"""Measure the structure of the package: ``python -m tests.architecture.house`` prints the numbers.

A room is a module or a folder directly in the package, an arrow an import between two rooms, also one in a
function. A room stands one floor above the highest room that it imports.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

_NAME = "airflow_merge_provider"
PACKAGE = Path(__file__).parents[2] / _NAME
_UNTYPED = re.compile(r"\b(?:dict|Mapping)\[str, Any\]")
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_IMPORT = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Module:
    """A module of the package with its code."""

    path: Path

    @cached_property
    def text(self) -> str:
        """The code."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed code."""
        return ast.parse(self.text)

    @property
    def room(self) -> str:
        """The folder or the module directly in the package that this module belongs to."""
        return self.path.relative_to(PACKAGE).parts[0].removesuffix(".py")

    @property
    def line_count(self) -> int:
        """The number of lines."""
        return self.text.count("\n")

    def count_import_lines(self) -> int:
        """Return how many lines the import statements have."""
        return sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in ast.walk(self.tree)
            if isinstance(node, _IMPORT)
        )

    def measure_functions(self) -> Iterator[int]:
        """Yield the number of lines of each function."""
        for node in ast.walk(self.tree):
            if isinstance(node, _FUNCTION):
                yield (node.end_lineno or node.lineno) - node.lineno + 1

    def list_imported_rooms(self) -> Iterator[str]:
        """Yield the other rooms that the module imports."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module == _NAME:
                yield from (alias.name for alias in node.names if alias.name != self.room)
                continue
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for package, *parts in (name.split(".") for name in names):
                if package == _NAME and parts and parts[0] != self.room:
                    yield parts[0]


@dataclass(frozen=True)
class House:
    """The modules of the package that are not empty."""

    modules: tuple[Module, ...]

    @classmethod
    def read(cls) -> House:
        """Read the package."""
        modules = map(Module, sorted(PACKAGE.rglob("*.py")))
        return cls(tuple(module for module in modules if module.text.strip()))

    @cached_property
    def arrows(self) -> Mapping[str, frozenset[str]]:
        """The rooms that each room imports."""
        rooms = {module.room for module in self.modules} - {"__init__"}
        arrows = {room: frozenset[str]() for room in rooms}
        for module in self.modules:
            if module.room in rooms:
                arrows[module.room] |= {name for name in module.list_imported_rooms() if name in rooms}
        return arrows

    def count_floors(self) -> int:
        """Return the number of floors.

        :raises ValueError: if rooms import each other in a circle.
        """
        floors: dict[str, int] = {}
        while len(floors) < len(self.arrows):
            free_rooms = {
                room: 1 + max((floors[name] for name in names), default=0)
                for room, names in self.arrows.items()
                if room not in floors and names <= floors.keys()
            }
            if not free_rooms:
                raise ValueError(f"a circle of imports: {sorted(self.arrows.keys() - floors.keys())}")
            floors |= free_rooms
        return max(floors.values())

    def measure(self) -> dict[str, float]:
        """Return the numbers by what they measure."""
        lines = [module.line_count for module in self.modules]
        functions = sorted(length for module in self.modules for length in module.measure_functions())
        imports = sum(module.count_import_lines() for module in self.modules)
        untyped = sum(len(_UNTYPED.findall(module.text)) for module in self.modules)
        return {
            "lines": sum(lines),
            "modules": len(lines),
            "lines of a module, median": median(lines),
            "lines of a module, largest": max(lines),
            "rooms": len(self.arrows),
            "floors": self.count_floors(),
            "arrows": sum(map(len, self.arrows.values())),
            "import lines, %": round(100 * imports / sum(lines), 1),
            "untyped mappings per 1,000 lines": round(1000 * untyped / sum(lines), 1),
            "lines of a function, 95 %": functions[int(0.95 * len(functions))],
            "lines of a function, largest": functions[-1],
        }


if __name__ == "__main__":
    for name, number in House.read().measure().items():
        print(f"{name:>34}: {number:,}")
