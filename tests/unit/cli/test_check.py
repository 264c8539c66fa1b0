"""Tests of ``check``: it finds columns that the sources do not have, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from airflow_merge_provider.cli import main as cli

KNOWN_FILES = (
    "a Delta table nor a file or folder of files with a known ending "
    "(csv, json, parquet, avro, orc, xml, jsonl, ndjson)"
)
LOAD = {"job": "upsert", "target": "t", "primary_key": "id"}
CSV = {"dataset": "files", "format": "csv", "options": {"header": True, "sep": ";"}}
PARQUET = {"dataset": "one", "format": "parquet"}
JOIN = {"job": "joiner", "inputs": {"r": "rows", "f": CSV}, "target": "t", "join_keys": "r.id = f.id"}
MERGE = {"job": "merge_source", "target": "t", "datasets": ["rows r", "more m"], "id_column": "id"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write tables, and folders of files of other formats."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("rows", "more"):
        write_deltalake(str(folder / name), pa.table({"id": ["1"], "no": ["x"]}))
    for name, text in {"files/day=1/1.csv": "id;no\n1;x\n", "lines/1.json": '{"id": 1}\n'}.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    (folder / "one").mkdir()
    pq.write_table(pa.table({"id": [1], "no": ["x"]}), folder / "one/1.parquet")
    return folder


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {**LOAD, "source": "rows", "primary_key": "idd"},
            "primary_key: the source rows has no column 'idd'",
        ),
        ({**LOAD, "source": CSV, "primary_key": ["day", "idd"]}, "source files has no column 'idd' (did you"),
        (
            {**LOAD, "source": PARQUET, "primary_key": "idd"},
            "primary_key: the source one has no column 'idd'",
        ),
        (
            {**LOAD, "source": CSV, "hard_delete": "gone"},
            "hard_delete: the source files has no column 'gone'",
        ),
        ({**LOAD, "source": CSV, "expect": {"e": {"not_null": "nn"}}}, "expect.e.not_null"),
        ({**LOAD, "job": "scd2", "source": CSV, "primary_key": None, "natural_key": "no1"}, "natural_key: "),
        ({"job": "merge_engine", "source": "rows", "target": "t", "primary_key": "idd"}, "primary_key"),
        ({**MERGE, "equality": [["eq", "r.no", "m.noo"]]}, "dataset 'more' has no column 'noo'"),
        (
            {
                "job": "joiner",
                "inputs": {"r": "rows", "m": "more"},
                "target": "t",
                "join_keys": "r.id = m.idd",
            },
            "idd",
        ),
    ],
)
def test_a_wrong_column_is_refused(
    config: Any, message: str, folder: Path, file: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is that of the run, and names the argument and a similar column."""
    config = {name: value for name, value in config.items() if value is not None}

    assert cli.main(["check", file(config), "--warehouse", str(folder)]) in {2, 3}
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "result"),
    [
        ({**LOAD, "source": "rows"}, "columns checked: rows"),
        ({**LOAD, "source": CSV, "primary_key": ["day", "id"]}, "columns checked: files"),
        ({**LOAD, "source": PARQUET}, "columns checked: one"),
        ({**LOAD, "source": "rows", "target": "more", "adopt": True}, "columns checked: rows"),
        ({**MERGE, "equality": [["eq", "r.no", "m.no"]]}, "columns checked: rows, more"),
        (JOIN, "columns not checked: only Spark reads the columns of {folder}/files"),
        ({**LOAD, "source": "later"}, "columns not checked: {folder}/later does not exist"),
        (
            {**LOAD, "source": {"dataset": "lines", "format": "json"}},
            "columns not checked: only Spark reads the columns of {folder}/lines",
        ),
        (
            {**LOAD, "source": {**CSV, "options": {**CSV["options"], "comment": "#"}}},
            "columns not checked: only Spark reads the columns of {folder}/files",
        ),
        (
            {**LOAD, "source": {**CSV, "dataset": "tomorrow"}},
            f"columns not checked: {{folder}}/tomorrow is neither {KNOWN_FILES}",
        ),
        ({**LOAD, "source": "a.b"}, "columns not checked: a.b is a catalog table"),
        (
            {**LOAD, "source": {**CSV, "dataset": "a.csv"}},
            "columns not checked: only Spark reads the columns of table:a.csv",
        ),
    ],
)
def test_the_sources_that_were_checked_are_named(
    config: Any, result: str, folder: Path, file: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only Spark can read is not refused, and the output says that it was not checked."""
    path = file(config)

    assert cli.main(["check", path, "--warehouse", str(folder)]) == 0

    expected = f"{path}: valid {config['job']} configuration\n{result.format(folder=folder)}\n"
    assert capsys.readouterr().out == expected


def test_relative_paths_of_a_file_start_at_the_current_folder(
    folder: Path, file: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path with a slash is a location, as a dataset, in an object and in a list with an alias."""
    monkeypatch.chdir(folder.parent)
    name = folder.name
    merge = {**MERGE, "target": f"{name}/t", "datasets": [f"{name}/rows r", f"./{name}/more m"]}
    load = {**LOAD, "target": f"{name}/t", "source": {**CSV, "dataset": f"{name}/files"}}

    for config, sources in ((merge, ("rows", "more")), (load, ("files",))):
        assert cli.main(["check", file(config)]) == 0
        names = ", ".join(str(folder / source) for source in sources)
        assert f"columns checked: {names}\n" in capsys.readouterr().out
