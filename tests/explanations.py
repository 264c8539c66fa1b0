"""Examples of explanations in the documentation, compared with what the command line prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from airflow_merge_provider.cli.main import main

PAGES = Path(__file__).parents[1] / "docs" / "operators"
_BLOCK = re.compile(r"```console\n(\$ airflow_merge_provider explain .*?)```", re.DOTALL)
# The times of commits, and the names of merged files, which contain an ID of their sources.
_VARYING = re.compile(r"(?<=version )(\d+, )\S+Z|(merged-)[0-9a-f-]{36}")


def check_examples(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the explain commands of a page over a folder that is /lake there, and compare their outputs.

    The times of commits and the IDs in the names of merged files vary, so they are not compared.
    """
    text = (PAGES / page).read_text(encoding="utf-8")
    blocks = _BLOCK.findall(text)
    assert blocks, f"{page} has no example"
    capsys.readouterr()
    for block in blocks:
        command, _, expected = block.partition("\n")
        arguments = [word.replace("/lake", str(folder)) for word in shlex.split(command)[2:]]
        assert main(arguments) == 0, capsys.readouterr().err
        printed = capsys.readouterr().out.replace(str(folder), "/lake")
        assert _VARYING.sub(r"\1\2…", printed) == _VARYING.sub(r"\1\2…", expected)
