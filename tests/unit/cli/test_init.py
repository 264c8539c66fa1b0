"""Tests of ``init``: what it writes passes ``check`` once the key is chosen, and proposes nothing else."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from fsspec.implementations.local import LocalFileSystem

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.yaml_text import parse_yaml

TABLES: dict[str, dict[str, Any]] = {
    "crm": {"_id": ["1", "2"], "email": ["a", "b"]},
    "shop": {"_id": ["1", "2"], "Email": ["a", "b"]},
    "orders": {"order_id": [1, 2], "Day": ["a", "b"]},
}
DATASETS = {"merge_source": ["crm", "shop"], "joiner": ["crm", "shop"], "merge_record": ["landing"]}
KEYS: dict[str, dict[str, Any]] = {
    "upsert": {"primary_key": ["order_id", "Day"]},
    "delete_insert": {"primary_key": ["order_id", "Day"]},
    "merge_engine": {"primary_key": ["order_id", "Day"]},
    "scd2": {"natural_key": ["order_id", "Day"]},
    "merge_source": {"equality": [["eq", "crm.email", "shop.Email"]]},
    "joiner": {"join_keys": "crm.email = shop.Email"},
}


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """Write the tables, and folders and files of other formats."""
    folder = tmp_path / "lake"
    for name, columns in TABLES.items():
        write_deltalake(str(folder / name), pa.table(columns))
    for name, text in {
        "landing/day=1/1.csv": "\ufeffid,no\n1,x\n",
        "landing/_state.json": "{}\n",
        "lines.jsonl": '{"id": 1, "no": null}\n{}\n',
        "list.json": "[1]",
        "pretty.json": '{\n  "id": 1\n}\n',
        "odd.parquet": "PAR1",
        "odd.csv": '"a: b\n# c",id\n',
        "empty.csv": "\n",
        "quote.csv": '"id,no\n' + "1,x\n" * 40_000,
        "several/a.csv": "1,x\n",
        "several/b.txt": "",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    pq.write_table(pa.table({"id": [1], "no": ["x"]}), folder / "file.parquet")
    (folder / "wide.csv").write_bytes("id,no\n1,x\n".encode("utf-16-le"))
    (folder / "windows.csv").write_bytes("id,price\n1,5 €\n".encode("cp1252"))
    return folder


def init_file(kind: str, warehouse: Path, *arguments: str, datasets: Any = None) -> int:
    names = datasets or DATASETS.get(kind, ["orders"])
    options = ["--datasets", *names, "--target", "golden", "--warehouse", str(warehouse), *arguments]
    return cli.main(["init", kind, *options])


@pytest.mark.parametrize("kind", [*KEYS, "merge_record"])
def test_check_refuses_the_file_until_the_key_is_chosen(
    kind: str, warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has the columns as comments; without --key, `check` says what to choose."""
    file = tmp_path / "runs/golden.yaml"
    assert init_file(kind, warehouse, "-o", str(file)) == 0
    output = capsys.readouterr().out
    if kind == "merge_record":
        files = f'{warehouse / "landing"}: 1 file, csv with a header, delimiter ",", encoding UTF-8'
        moved = "1 file will be moved to golden_original once they are merged"
        assert output == f"wrote {file}\n{files}\n{moved}\nnext: airflow_merge_provider plan {file}\n"
        assert cli.main(["check", str(file)]) == 0
        assert parse_yaml(file.read_text())["reader"] == {"format": "csv", "options": {"header": True}}
        return
    assert f"replace <choose> in it by columns, then run airflow_merge_provider check {file}" in output

    (name,) = KEYS[kind]
    assert cli.main(["check", str(file)]) == 2
    message = f"{name}: is not chosen (replace '<choose>' by columns of the sources)"
    assert message in capsys.readouterr().err

    key = ["EMAIL"] if kind in DATASETS else ["order_id", "day"]
    assert init_file(kind, warehouse, "-o", str(file), "--force", "--key", *key) == 0
    content = parse_yaml(file.read_text())
    assert {name: content[name]} == KEYS[kind]
    assert content["job"] == kind
    assert "# columns of " in file.read_text()
    assert capsys.readouterr().out.endswith(f"next: airflow_merge_provider plan {file}\n")
    assert cli.main(["check", str(file)]) == 0


@pytest.mark.parametrize(
    ("name", "columns", "dataset"),
    [
        ("orders", ["order_id: long", "Day: string"], "orders"),
        (
            "landing",
            ["id: string", "no: string", "day"],
            {"format": "csv", "options": {"header": True}},
        ),
        ("lines.jsonl", ["id", "no"], {"format": "json"}),
        ("file.parquet", ["id: long", "no: string"], {"format": "parquet"}),
        (
            "odd.csv",
            ["a: b\\u000a# c: string", "id: string"],
            {"format": "csv", "options": {"header": True}},
        ),
    ],
)
def test_columns_are_those_of_the_table_or_the_first_file(
    name: str,
    columns: list[str],
    dataset: Any,
    warehouse: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A table, a folder, a CSV file, a file of JSON lines and a Parquet file are read for their columns."""
    ref = name if isinstance(dataset, str) else str(warehouse / name)

    assert init_file("upsert", warehouse, "--key", columns[-1].partition(":")[0], datasets=[ref]) == 0

    text = capsys.readouterr().out
    assert [line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   ")] == columns
    if not isinstance(dataset, str):
        dataset = {"dataset": ref, **dataset}
    assert parse_yaml(text)["source"] == dataset


def test_a_relative_file_is_written_as_a_location(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of the current folder is named by its location, which is the same in every folder."""
    monkeypatch.chdir(warehouse)

    assert init_file("upsert", warehouse, datasets=["file.parquet"]) == 0

    source = parse_yaml(capsys.readouterr().out)["source"]
    assert source == {"dataset": str(warehouse / "file.parquet"), "format": "parquet"}


@pytest.mark.parametrize(
    ("content", "arguments", "columns", "options"),
    [
        ("id;name\n1;Zoë, x\n", [], ["id", "name"], {"header": True, "sep": ";", "encoding": "ISO-8859-1"}),
        ("id\tname\n1\tZoë\n", [], ["id", "name"], {"header": True, "sep": "\t", "encoding": "UTF-16"}),
        ('"a;b","c\nd",e\n', [], ["a;b", "c\\u000ad", "e"], {"header": True}),
        ("1|Zoë\n", ["--no-header"], ["_c0", "_c1"], {"header": False, "sep": "|"}),
        ("id\n1\n", [], ["id"], {"header": True}),
        ("\r\n\r\nid;no\r\n1;2\r\n", [], ["id", "no"], {"header": True, "sep": ";"}),
    ],
)
def test_the_delimiter_and_the_encoding_of_csv_files_are_detected(
    content: str,
    arguments: Sequence[str],
    columns: Sequence[str],
    options: Any,
    warehouse: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The options of the reader are written, and a comment shows them with the header."""
    encoding = options.get("encoding", "UTF-8")
    (warehouse / "c.csv").write_bytes(content.encode(encoding))

    assert init_file("upsert", warehouse, *arguments, datasets=[str(warehouse / "c.csv")]) == 0

    text = capsys.readouterr().out
    assert [line.split(":")[0][4:] for line in text.splitlines() if line.startswith("#   ")] == columns
    assert parse_yaml(text)["source"]["options"] == options
    header = "with a header" if options["header"] else "without a header"
    delimiter = json.dumps(options.get("sep", ","))
    assert f"c.csv: 1 file, csv {header}, delimiter {delimiter}, encoding {encoding}\n" in text


def test_paths_below_the_current_folder_name_datasets(
    warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bare ID of the warehouse takes precedence over a folder of the same name; errors name arguments."""
    monkeypatch.chdir(tmp_path)
    for folder in ("orders", "daily"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.csv").write_text("id\n1\n")

    def init_and_read(name: str, *arguments: str) -> Any:
        assert cli.main(["init", "upsert", "--datasets", name, "--target", "lake/golden", *arguments]) == 0
        return parse_yaml(capsys.readouterr().out)

    assert init_and_read("lake/orders") == {
        "job": "upsert",
        "source": str(warehouse / "orders"),
        "target": str(warehouse / "golden"),
        "primary_key": "<choose>",
    }
    assert init_and_read("daily")["source"]["dataset"] == str(tmp_path / "daily")
    assert init_and_read("orders")["source"]["dataset"] == str(tmp_path / "orders")
    assert init_and_read("daily", "--warehouse", "lake")["source"]["dataset"] == str(tmp_path / "daily")
    with_warehouse = init_and_read("orders", "--warehouse", "lake")
    assert (with_warehouse["source"], with_warehouse["warehouse"]) == ("orders", str(warehouse))

    file = str(tmp_path / "bare.yaml")
    assert (
        cli.main(["init", "upsert", "--datasets", "daily", "--target", "t", "--key", "id", "-o", file]) == 0
    )
    assert f"next: airflow_merge_provider plan {file} --warehouse LOCATION\n" in capsys.readouterr().out
    assert cli.main(["init", "upsert", "--datasets", "absent", "--target", "t"]) == 2
    assert (
        "--datasets: dataset 'absent' requires a warehouse (set warehouse (or --w" in capsys.readouterr().err
    )
    assert cli.main(["init", "upsert", "--datasets", "daily", "--target", "a b"]) == 2
    assert "error: --target: 'a b' is not a valid dataset" in capsys.readouterr().err


def test_the_id_of_entities_is_chosen_too(warehouse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dataset without a column `_id` needs `id_column`."""
    assert init_file("merge_source", warehouse, datasets=["crm", "orders"]) == 0

    assert parse_yaml(capsys.readouterr().out)["id_column"] == "<choose>"


def test_a_store_that_cannot_be_read_is_refused_with_a_remedy(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The library of each store has errors of its own, such as that of missing credentials."""

    def find(_store: Any, _path: str) -> list[str]:
        raise RuntimeError("Unable to locate credentials")

    monkeypatch.setattr(LocalFileSystem, "find", find)

    assert init_file("upsert", warehouse, datasets=[str(warehouse / "odd.csv")]) == 4
    assert "credentials in the environment or of --store-conn (Unable to locate" in capsys.readouterr().err


def test_the_next_command_can_be_copied(
    warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name of the file is quoted as a shell needs it."""
    file = tmp_path / "my load.yaml"

    assert init_file("merge_record", warehouse, "-o", str(file)) == 0
    assert capsys.readouterr().out.endswith(f"\nnext: airflow_merge_provider plan '{file}'\n")


def test_a_file_is_overwritten_only_with_force(
    warehouse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that exists stays as it is."""
    file = tmp_path / "golden.yaml"
    file.write_text("old")

    assert init_file("upsert", warehouse, "-o", str(file)) == 2
    assert capsys.readouterr().err == f"error: {file}: exists already (set --force to overwrite it)\n"
    assert file.read_text() == "old"


@pytest.mark.parametrize(
    ("kind", "datasets", "arguments", "message"),
    [
        (
            "upsert",
            ["orders"],
            ["--key", "order"],
            "has no column 'order' (did you mean 'order_id'?)",
        ),
        ("upsert", ["orders", "crm"], [], "--datasets: upsert has one source, found 2 (change the list)"),
        ("joiner", ["crm"], [], "--datasets: joiner requires at least two inputs, found 1 (change the list)"),
        ("merge_record", ["landing"], ["--key", "id"], "--key: merge_record has no key (leave it out)"),
        ("upsert", ["orders"], ["-o", "a.py"], "a.py: has an unknown ending (valid endings: .yaml, .yml)"),
        (
            "upsert",
            ["nothing"],
            [],
            "/nothing is neither a Delta table nor a file or folder",
        ),
        ("upsert", ["{lake}/odd.parquet"], [], "/odd.parquet cannot be read as parquet: "),
        ("upsert", ["a.b"], [], "--datasets: the location of the catalog table a.b is unknown without Spark"),
        ("upsert", ["{lake}/list.json"], [], "/list.json cannot be read as json: its first line must be an"),
        ("upsert", ["{lake}/pretty.json"], [], "first line must be an object: write one object per line"),
        (
            "upsert",
            ["{lake}/windows.csv"],
            [],
            "/windows.csv: is neither UTF-8, UTF-16 with a byte order mark nor ISO 8859-1, which",
        ),
        (
            "upsert",
            ["{lake}/wide.csv"],
            [],
            "which Spark reads (convert it, for example with iconv -f UTF-16LE",
        ),
        ("upsert", ["{lake}/empty.csv"], [], "/empty.csv: has no columns (name a file with a record"),
        (
            "upsert",
            ["{lake}/quote.csv"],
            [],
            "/quote.csv cannot be read as csv: field larger than field limit",
        ),
        (
            "merge_record",
            ["{lake}/several"],
            [],
            "/several/b.txt: is in a folder of csv files, and Spark would read it as csv, too (move it",
        ),
        (
            "upsert",
            ["{lake}/several/a.csv"],
            ["--key", "id"],
            "has no column 'id' (valid columns: 1, x, or set --no-header if its first line is a record)",
        ),
        ("upsert", ["absent.csv"], [], "/absent.csv is neither a Delta table nor a file or folder"),
        ("merge_engine", ["{lake}/lines.jsonl"], [], "--datasets: merge_engine reads Delta tables, and "),
        (
            "merge_record",
            ["orders"],
            [],
            "--datasets: merge_record reads a folder of files, and orders is a D",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(
    kind: str,
    datasets: list[str],
    arguments: list[str],
    message: str,
    warehouse: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each error names the option or the file, and what to do."""
    csv.field_size_limit(1 << 30)  # as a job of this process does
    names = [name.format(lake=warehouse) for name in datasets]
    assert init_file(kind, warehouse, *arguments, datasets=names) in {2, 3}

    assert message in capsys.readouterr().err
