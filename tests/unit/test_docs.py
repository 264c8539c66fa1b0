"""Tests of the documentation: its code runs, its tables match the code, and its links resolve."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_core import PydanticUndefined

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.dtl.functions import FUNCTIONS, ITEM_FUNCTIONS
from airflow_merge_provider.get_provider_info import get_provider_info
from airflow_merge_provider.operators._spark_job import SparkJobOperator

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
MERGE_SOURCE = (ROOT / "docs/operators/merge_source.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
EXAMPLE = {"version": 2, "target": "merged", "datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"]]}
# The module of a planned operator.
PACKAGES = ("airflow_merge_provider.operators", "airflow_merge_provider.sensors")


def read_section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def read_rows(text: str) -> list[list[str]]:
    r"""Return the cells of every table row except headers; ``\|`` does not separate cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    borders = {number for number, line in enumerate(lines) if set(line) <= set("|- ")}
    titles = {number - 1 for number in borders}
    return [row for number, row in enumerate(cells) if number not in borders | titles]


def python_blocks() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            yield page.name, block


@pytest.mark.parametrize(("page", "block"), list(python_blocks()), ids=lambda text: text[:20])
def test_the_code_of_the_pages_runs(page: Any, block: Any) -> None:
    """Every Python block is a complete DAG of operators of this package with valid arguments."""
    names: dict[str, Any] = {}

    exec(compile(block, page, "exec"), names)  # noqa: S102 - code of this repository

    tasks = names["dag"].tasks
    assert tasks
    assert all(isinstance(task, SparkJobOperator) for task in tasks)


def test_the_dag_of_the_readme_has_ten_lines() -> None:
    """The DAG in the README has ten lines, so that it can be read before anything is installed."""
    (block,) = [block for page, block in python_blocks() if page == "README.md"]

    assert len(block.splitlines()) == 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Any) -> None:
    """Every link to a file in the project leads to an existing file."""
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))

    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_that_pages_name_are_there(page: Any) -> None:
    """``make x`` in code formatting names a target of the Makefile with a help text."""
    commands = re.findall(r"(?:^|`)make ([a-z0-9 -]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    targets = dict(re.findall(r"^([a-z0-9-]+):[^#\n]*## (.+)$", MAKEFILE, re.MULTILINE))

    assert {target for command in commands for target in command.split()} - set(targets) == set()
    assert {"install", "demo", "ui", "test", "quick", "lint", "fix", "bench"} <= set(targets)


def test_a_bare_make_says_what_there_is() -> None:
    """A bare make lists every target with its text."""
    # Run without the variables of a surrounding make, which would print its folder too.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    output = subprocess.run(["make"], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout

    assert len(output.splitlines()) == len(re.findall(r"^[a-z0-9-]+:[^#\n]*## ", MAKEFILE, re.MULTILINE))


def test_the_readme_says_which_operators_work() -> None:
    """Working operators can be imported and are in the provider info; planned ones cannot be imported."""
    states = {
        re.search(r"`(\w+)`", row[0])[1]: row[2] for row in read_rows(read_section(README, "Operators"))
    }
    info = get_provider_info()
    modules = [
        name for kind in ("operators", "sensors") for entry in info[kind] for name in entry["python-modules"]
    ]

    working = {name for name, state in states.items() if state.startswith("works")}
    assert {_find_module(name) for name in working} == {module.rpartition(".")[2] for module in modules}
    for name in set(states) - working:
        assert states[name] == "planned"
        assert not any(_can_be_found(f"{package}.{_find_module(name)}") for package in PACKAGES)


def _find_module(name: str) -> str:
    parts = re.findall(r"[A-Z][a-z]*\d?", re.sub(r"(Operator|Sensor)$", "", name))
    return "_".join(parts).lower()


def _can_be_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def test_the_readme_names_the_versions_that_are_tested() -> None:
    """The versions in the README are those that constraints.txt installs."""
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    installed = dict(line.split("==") for line in constraints.split())
    versions = dict(read_rows(read_section(README, "Versions")))

    python, java = versions.pop("Python"), versions.pop("Java")
    assert (python, java) == ("3.11", "17")
    assert versions == {name: installed[name] for name in versions}


def test_the_options_are_the_fields_of_the_configuration() -> None:
    """The page lists all options with the names, defaults and texts of the configuration."""
    fields = {name: field for name, field in MergeSourceConfig.model_fields.items() if field.description}
    expected_rows = {
        name: [f"`{name}`", _format_default(field), field.description] for name, field in fields.items()
    }

    assert {
        row[0].strip("`"): row for row in read_rows(read_section(MERGE_SOURCE, "Options"))
    } == expected_rows
    internal_fields = set(MergeSourceConfig.model_fields) - set(fields)
    assert [
        name for name in internal_fields if f"`{name}`" not in read_section(MERGE_SOURCE, "Options")
    ] == []


def _format_default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return "" if field.default is None else f"`{json.dumps(field.default)}`"


def test_options_without_effect_are_named() -> None:
    """An option that only the configuration and the operator read is documented as having no effect yet."""
    package = ROOT / "airflow_merge_provider"
    rules = (
        package / f"core/{name}.py"
        for name in ("merge_source/equality", "merge_source/columns", "decisions/merge_source", "population")
    )
    readers = [*(package / "jobs").rglob("*.py"), *rules, package / "pipes.py"]
    code = "".join(path.read_text(encoding="utf-8") for path in readers)
    code = code.replace("most_merged", "max_merged").replace("dataset_ids", "datasets")
    options = {row[0].strip("`") for row in read_rows(read_section(MERGE_SOURCE, "Options"))}
    without = {name for name in options if not re.search(rf"\b{name}\b", code)}

    paragraphs = re.findall(r"\*\*Checked, but not acted upon yet:\*\*(.*?)\n\n", MERGE_SOURCE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", "".join(paragraphs))) == without


def test_the_functions_are_those_that_rules_may_use() -> None:
    """The page lists exactly the functions that match rules support."""
    (function_list,) = re.findall(r"functions over it:(.*?)\.\n", MERGE_SOURCE, re.DOTALL)

    assert re.findall(r"`([^`]+)`", function_list) == sorted([*FUNCTIONS, *ITEM_FUNCTIONS])


@pytest.mark.parametrize(
    ("argument", "message"),
    [row for row in read_rows(read_section(MERGE_SOURCE, "Errors")) if row[0].startswith("`{")],
    ids=lambda cell: cell[:40],
)
def test_an_error_of_the_page_is_the_one_that_is_raised(argument: Any, message: Any) -> None:
    """The argument in the first column raises the error in the second column."""
    with pytest.raises(ConfigError) as error:
        MergeSourceConfig.parse({**EXAMPLE, **json.loads(argument.strip("`"))})

    assert message.strip("`") in str(error.value)


def test_refusals_of_the_page_are_in_the_code() -> None:
    """The errors that depend on data have the same text in the code as on the page."""
    files = (ROOT / "airflow_merge_provider").rglob("*.py")
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    messages = [
        row[0] for row in read_rows(read_section(MERGE_SOURCE, "Errors")) if not row[0].startswith("`{")
    ]

    assert len(messages) > 3
    assert [text for text in messages if text.strip("`") not in code] == []


def test_pictures_are_small() -> None:
    """Every picture is smaller than 200 kB, so that a clone stays small."""
    pictures = list((ROOT / "docs/images").iterdir())

    assert pictures
    assert [picture.name for picture in pictures if picture.stat().st_size >= 200_000] == []


@pytest.mark.parametrize("name", [".airflow-registry.yaml", ".pre-commit-config.yaml"])
def test_small_files_can_be_read(name: Any) -> None:
    """Small files are valid YAML, and the names in the registry are those of the provider."""
    content = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))

    if name == ".airflow-registry.yaml":
        assert content["package-name"] == get_provider_info()["package-name"]
        modules = {entry["module"].rpartition(".")[0] for entry in content["operators"]}
        assert modules == {
            name for entry in get_provider_info()["operators"] for name in entry["python-modules"]
        }
    else:
        assert content["repos"]
