"""Tests of docs/command_line.md: its examples print what the page shows, and it names every command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.cli.registry import COMMANDS, EXITS
from tests.unit.cli.lake import build_lake

PAGE = (Path(__file__).parents[3] / "docs/command_line.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"```console\n\$ (airflow_merge_provider .*?)\n(.*?)```", re.DOTALL)
# What needs Spark, or depends on the machine.
_OTHERS = {"doctor", "plan", "run", "local-spark"}
_VARYING = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ?|\d+ days, +\d+:\d\d:\d\d|\d+\.\d+s")
EXAMPLES = [(command, expected) for command, expected in _BLOCK.findall(PAGE)]


def clean_output(text: str) -> str:
    """Return a text without times and ages, and without the spaces that align columns of them."""
    return re.sub(r" {2,}", "  ", _VARYING.sub("…", text)).strip()


@pytest.mark.parametrize(
    ("command", "expected"),
    [example for example in EXAMPLES if example[0].split()[1] not in _OTHERS],
    ids=lambda text: text[:60],
)
def test_an_example_prints_what_the_page_shows(
    command: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example runs over the tables of the page; what it prints begins with what the page shows."""
    build_lake(tmp_path)
    capsys.readouterr()

    code = cli.main([word.replace("/lake", str(tmp_path)) for word in shlex.split(command)[1:]])

    output = capsys.readouterr()
    printed = (output.err + output.out).replace(str(tmp_path), "/lake")
    assert code == 0, printed
    assert clean_output(printed).startswith(clean_output(expected))


def test_the_page_names_every_command_and_exit_code() -> None:
    """The table of the page has every command with its summary, and the codes are those of the help."""
    for command in COMMANDS:
        assert re.search(rf"`{command.name}`", PAGE), command.name
        if f"| [`{command.name}`]" in PAGE:
            assert f"| {command.summary.partition(':')[0]} |" in PAGE
    for line in EXITS.splitlines()[1:]:
        code, _, meaning = line.strip().partition("  ")
        assert f"| {code} | {meaning} |" in PAGE
    assert {command.split()[1] for command, _ in EXAMPLES} >= {
        command.name for command in COMMANDS if command.name not in {"connect-server", "prepare", "schema"}
    }
