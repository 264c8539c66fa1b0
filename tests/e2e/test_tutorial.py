"""Run the pages that show a session in a shell, block after block, and compare what they print.

Each page takes more than 20 seconds: it starts Spark for merges that are compiled for the first time, and the
tutorial also creates an Airflow and runs a DAG.
"""

from __future__ import annotations

import doctest
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.unit.test_docs import ROOT, Block, list_blocks

pytestmark = pytest.mark.spark

PAGES = ("start/first_run.md", "start/first_golden_record.md", "tutorial.md")
_SEPARATOR = "--- the end of a block ---"
# An ellipsis on a page stands for any output. Lines on a page do not end with blanks.
_CHECKER, _OPTIONS = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# On a slow machine, the tutorial with a new environment takes 340 seconds.
_SECONDS_MAX = 600


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """Return the environment of a new user: no settings of Airflow, and one shared server for all pages."""
    folder = tmp_path_factory.mktemp("server")
    own = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW__")}
    settings = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder),
        "AIRFLOW__MERGE__LOCAL_SPARK_MEMORY": "1g",
        "AIRFLOW__MERGE__LOCAL_SPARK_WARM_UP": "False",
    }
    yield own | settings
    stop = [sys.executable, "-m", "airflow_merge_provider", "local-spark", "stop"]
    subprocess.run(stop, env=own | settings, cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_what_its_commands_print(
    name: str, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    """Each command prints the text that follows it on the page, in a session in an empty folder."""
    assert run_page(name, tmp_path, environment) == []


def run_page(name: str, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Run the commands of a page in an empty folder; return the differences of their outputs to the page."""
    blocks = list_blocks(ROOT / "docs" / name)
    script, work = folder / "session.sh", folder / "folder"
    work.mkdir()
    script.write_text("".join(build_session(blocks)), encoding="utf-8")
    process = subprocess.run(
        ["bash", str(script)],
        cwd=work,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS_MAX,
        check=True,
    )
    outputs = process.stdout.split(f"{_SEPARATOR}\n")[:-1]
    expected_outputs = list_outputs(blocks)
    assert any(expected_outputs)
    return [
        _CHECKER.output_difference(doctest.Example("", expected), printed, _OPTIONS)
        for printed, expected in zip(outputs, expected_outputs, strict=True)
        if expected is not None and not _CHECKER.check_output(expected, printed, _OPTIONS)
    ]


def build_session(blocks: list[Block]) -> Iterator[str]:
    """Yield the commands of a page; a block with a title is a file, which is written in its turn."""
    for block in blocks:
        if block.title:
            yield f"cat > {shlex.quote(block.title)} <<'END_OF_FILE'\n{block.text}END_OF_FILE\n"
        elif block.language == "sh":
            yield f"{block.text}echo '{_SEPARATOR}'\n"


def list_outputs(blocks: list[Block]) -> list[str | None]:
    """Return the output of each command: the text that follows it, None if the page does not show it."""
    following = [*blocks[1:], None]
    return [
        after.text if after is not None and after.language == "text" else None
        for block, after in zip(blocks, following, strict=True)
        if block.language == "sh"
    ]
