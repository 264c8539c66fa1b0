"""Test that the map in CONTRIBUTING shows the folders as the import contracts order them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAP = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("```text\n")[1].split("\n```")[0]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
    "contracts"
]
# A name, of a folder with a slash, and what separates it from the next one or from its description.
NAME = re.compile(r"(?P<name>[a-z_]+)/?(?P<end>, |,?$|  )")


def read_floors(folder: str) -> list[set[str]]:
    """Return the names on each line of the map below a folder, from the top."""
    lines = MAP.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.split()[:1] == [f"{folder}/"])
    indent = len(lines[start]) - len(lines[start].lstrip()) + 2
    floors: list[set[str]] = []
    is_open = False
    for line in lines[start + 1 :]:
        depth = len(line) - len(line.lstrip())
        if depth < indent:
            break
        if depth > indent:
            continue
        names, is_next_open = read_names(line.strip())
        if is_open:
            floors[-1] |= names
        elif names:
            floors.append(names)
        is_open = is_next_open
    return floors


def read_names(line: str) -> tuple[set[str], bool]:
    """Return the names that a line begins with, and whether the next line continues them."""
    names, position = set(), 0
    while match := NAME.match(line, position):
        names.add(match["name"])
        position = match.end()
        if match["end"] != ", ":
            return names, match["end"] == ","
    return names, False


def read_layers(container: str) -> list[set[str]]:
    """Return the modules of each layer of a container, from the top."""
    (contract,) = (item for item in CONTRACTS if item.get("containers") == [container])
    return [{name.strip(" ()") for name in re.split(r"[|:]", layer)} for layer in contract["layers"]]


@pytest.mark.parametrize("folder", ["core", "jobs"])
def test_the_map_shows_the_layers_of_a_folder(folder: str) -> None:
    """Each line of the map is a layer of the import contract, in the same order."""
    assert read_floors(folder) == read_layers(f"airflow_merge_provider.{folder}")


def test_the_map_shows_the_layers_of_the_package() -> None:
    """Each line of the map is a layer of the import contract; jobs stand beside the Airflow side."""
    *floors, jobs = read_floors("airflow_merge_provider")
    layers = read_layers("airflow_merge_provider")
    assert jobs == {"jobs"}
    assert floors == [layer - {"__main__", "listeners"} for layer in layers]


def test_the_folders_and_modules_of_the_page_exist() -> None:
    """Where a function or a concept lives is a path of the package, or of the checkout."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`([\w/*.-]+/[\w*.-]*)`", text)
    package = ROOT / "airflow_merge_provider"

    missing = [path for path in paths if not any([*package.glob(path), *ROOT.glob(path)])]

    assert [path for path in missing if not any(package.rglob(path))] == []
