"""Tests of the documentation: its code runs, its tables match the code, and its links resolve."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.sdk import DAG
from pydantic_core import PydanticUndefined

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.dtl.functions import DTL_FUNCTIONS, ITEM_FUNCTIONS
from airflow_merge_provider.get_provider_info import get_provider_info
from airflow_merge_provider.operators._spark_job import SparkJobOperator
from airflow_merge_provider.sensors.dataset_populated import DatasetPopulatedSensor

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MERGE_SOURCE = (ROOT / "docs/operators/merge_source.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
EXAMPLE = {"version": 2, "target": "merged", "datasets": ["A a", "B b"], "equality": [["eq", "a.x", "b.x"]]}
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_OF_THE_PACKAGE = (SparkJobOperator, DatasetPopulatedSensor)


def read_section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def read_rows(text: str) -> list[list[str]]:
    r"""Return the cells of every table row except headers; ``\|`` does not separate cells."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    borders = {number for number, line in enumerate(lines) if set(line) <= set("|- ")}
    titles = {number - 1 for number in borders}
    return [row for number, row in enumerate(cells) if number not in borders | titles]


@dataclass(frozen=True)
class Block:
    """A code block of a page: its language, the file that it is (or nothing), and its text."""

    page: Path
    language: str
    title: str
    text: str


def list_blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page that name a language, in order."""
    parts = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [Block(page, language, title, text) for language, title, text in parts]


def select_blocks(*languages: str) -> pytest.MarkDecorator:
    """Return a parametrization with the blocks of some languages of all pages.

    ``python`` blocks are complete DAGs, and ``py`` blocks are parts of a file. Blocks with a title are files
    of a page that tests run as a whole (tests/e2e/test_tutorial.py).
    """
    blocks = [
        pytest.param(block, id=f"{page.stem}-{number}")
        for page in PAGES
        for number, block in enumerate(list_blocks(page))
        if block.language in languages and not (block.language == "python" and block.title)
    ]
    return pytest.mark.parametrize("block", blocks)


@select_blocks("python")
def test_the_code_of_the_pages_runs(block: Any) -> None:
    """Every Python block is a complete DAG with operators of this package that have valid arguments."""
    names: dict[str, Any] = {}

    exec(compile(block.text, block.page.name, "exec"), names)  # noqa: S102 - code of this repository

    dags = [value for value in names.values() if isinstance(value, DAG)]
    assert dags
    assert all(any(isinstance(task, _OF_THE_PACKAGE) for task in dag.tasks) for dag in dags)


@select_blocks("py")
def test_parts_of_python_files_compile(block: Any) -> None:
    """A part of a file compiles; it may name what the page does not define."""
    assert compile(block.text, block.page.name, "exec").co_code


@select_blocks("json", "yaml", "ini")
def test_files_of_the_pages_can_be_read(block: Any) -> None:
    """Every JSON, YAML and INI block has a valid syntax."""
    assert _READERS[block.language](block.text)


@select_blocks("sh")
def test_commands_of_the_pages_have_a_valid_syntax(block: Any) -> None:
    """The shell can parse every command."""
    process = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)

    assert process.stderr == ""


def test_blocks_of_unknown_languages_are_not_checked_by_accident() -> None:
    """Every block has one of the languages that the tests check, or one that is only shown."""
    languages = {block.language for page in PAGES for block in list_blocks(page)}

    assert languages <= {"python", "py", "json", "yaml", "ini", "sh", "text", "console", "sql"}


def _read_ini(text: str) -> dict[str, Any]:
    parser = configparser.ConfigParser()
    parser.read_string(text)
    return {name: dict(parser[name]) for name in parser.sections()}


_READERS: dict[str, Callable[[str], Any]] = {"json": json.loads, "yaml": yaml.safe_load, "ini": _read_ini}


def test_the_dag_of_the_readme_has_ten_lines() -> None:
    """The DAG in the README has ten lines, so that it can be read before anything is installed."""
    (block,) = [block for block in list_blocks(ROOT / "README.md") if block.language == "python"]

    assert len(block.text.splitlines()) == 10


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


@pytest.mark.parametrize(
    ("page", "title", "column"),
    [
        ("README.md", "Which operator?", 2),
        ("docs/start/choose.md", "# Which operator do I need?", 2),
        ("docs/operators/README.md", "# Operators", 0),
    ],
)
def test_every_operator_can_be_chosen(page: Any, title: Any, column: Any) -> None:
    """Each table of operators has every operator and sensor of the provider info, once."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = text.split("\n## ", 1)[0] if title.startswith("# ") else read_section(text, title)
    names = [re.findall(r"(\w+(?:Operator|Sensor))\b", row[column])[0] for row in read_rows(section)]
    modules = [
        module
        for kind in ("operators", "sensors")
        for entry in get_provider_info()[kind]
        for module in entry["python-modules"]
    ]

    assert sorted(map(_find_module, names)) == sorted(module.rpartition(".")[2] for module in modules)


def _find_module(name: str) -> str:
    parts = re.findall(r"[A-Z][a-z]*\d?", re.sub(r"(Operator|Sensor)$", "", name))
    return "_".join(parts).lower()


def test_the_page_of_the_installation_names_the_versions_that_are_tested() -> None:
    """The versions on the page are those that constraints.txt installs."""
    page = (ROOT / "docs/start/install.md").read_text(encoding="utf-8")
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    installed = dict(line.split("==") for line in constraints.split())
    versions = dict(read_rows(read_section(page, "Versions")))

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
        for name in ("merge_source/equality", "merge_source/columns", "merge_source/decision", "population")
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

    assert re.findall(r"`([^`]+)`", function_list) == sorted([*DTL_FUNCTIONS, *ITEM_FUNCTIONS])


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
