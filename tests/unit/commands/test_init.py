"""Tests of ``init``: the files that it writes parse, pass ``check``, and propose what the tables allow."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_merge_provider import cli
from airflow_merge_provider.dag_files.arguments import PROPOSALS
from airflow_merge_provider.dag_files.columns import read_source
from airflow_merge_provider.pipes import load_pipes

AT = datetime(2026, 1, 1, tzinfo=UTC)
TABLES: dict[str, dict[str, Any]] = {
    "crm": {"_id": ["1", "2"], "email": ["a", "b"], "tax_id": ["x", "y"], "id": [1, 2], "note": ["", ""]},
    "shop": {"_id": ["1", "2"], "Email": ["a", "b"], "tax_id": ["x", "y"], "id": [1, 2]},
    "web": {"_id": ["1", "2"], "email": ["a", "b"], "tax_id": [1, 2]},
    "orders": {"order_id": [1, 2], "customer_id": [7, 7], "name": ["a", "b"], "updated_at": [AT, AT]},
    "customers": {"customer_id": [7, 8], "name": ["a", "b"]},
    "notes": {"text": ["a", "b"]},
}
DATASETS = {"merge_source": ["crm", "shop", "web"], "joiner": ["orders", "customers"]}


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    """Write the tables, and a folder of CSV files."""
    folder = tmp_path / "lake"
    for name, columns in TABLES.items():
        write_deltalake(str(folder / name), pa.table(columns))
    (folder / "landing").mkdir()
    (folder / "landing/1.csv").write_text("a\n1\n")
    return str(folder)


def init_files(kind: str, warehouse: str, *arguments: str, datasets: Any = None) -> int:
    default = ["landing"] if kind == "merge_record" else ["orders"]
    names = datasets or DATASETS.get(kind, default)
    options = ["--datasets", *names, "--target", "golden", "--warehouse", warehouse, *arguments]
    return cli.main(["init", kind, *options])


def load_task(file: Path) -> Any:
    """Parse a DAG file, and return its only task."""
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)  # noqa: S102 - the file of the test
    (task,) = names["dag"].tasks
    return task


@pytest.mark.parametrize("kind", PROPOSALS)
def test_the_files_of_every_operator_are_valid(kind: str, warehouse: str, tmp_path: Path) -> None:
    """The DAG parses with the operator of its kind, and the pipes pass `check` and become DAGs."""
    dag, pipes = tmp_path / "dags/golden.py", tmp_path / "pipes"
    files = [dag, pipes / "golden.yaml", pipes / "golden.json"]

    assert init_files(kind, warehouse, *(word for file in files for word in ("-o", str(file)))) == 0

    task = load_task(dag)
    assert type(task).__module__.endswith(f"operators.{kind}")
    assert task.warehouse == warehouse
    task._parse_config()
    for file in files[1:]:
        assert cli.main(["check", str(file), "--warehouse", warehouse]) == 0
    files[1].unlink()
    (pipe_dag,) = load_pipes(pipes, strict=True).values()
    assert type(pipe_dag.tasks[0]) is type(task)


def test_rules_come_from_columns_of_the_same_name_and_type(warehouse: str, tmp_path: Path) -> None:
    """IDs and email addresses are compared, but not each dataset's own ID, nor columns of other types."""
    assert init_files("merge_source", warehouse, "-o", str(tmp_path / "golden.py")) == 0

    task = load_task(tmp_path / "golden.py")
    assert task.datasets == ["crm crm", "shop shop", "web web"]
    assert task.equality == [
        ["eq", ["lower", "crm.email"], ["lower", "shop.Email"]],
        ["eq", ["lower", "shop.Email"], ["lower", "web.email"]],
        ["eq", "crm.tax_id", "shop.tax_id"],
    ]


def test_without_a_common_column_the_file_says_what_to_do(
    warehouse: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without -o the DAG is printed; without rules, a comment says that nothing merges."""
    write_deltalake(f"{warehouse}/other", pa.table({"_id": ["1"], "v": [1]}))

    assert init_files("merge_source", warehouse, datasets=["crm", "other"]) == 0

    text = capsys.readouterr().out
    assert "equality=[]," in text
    assert "# no column of the same name and type looks like an ID or an email address" in text


def test_a_join_selects_every_field_once(warehouse: str, tmp_path: Path) -> None:
    """The schema of the join is valid: fields of the same name get another one."""
    assert init_files("joiner", warehouse, "-o", str(tmp_path / "golden.py")) == 0

    task = load_task(tmp_path / "golden.py")
    assert task.join_keys == "orders.customer_id = customers.customer_id"
    schemas = {
        "orders": {"order_id": "long", "customer_id": "long", "name": "string", "updated_at": "timestamp"}
    }
    preview = task.preview({**schemas, "customers": {"customer_id": "long", "name": "string"}})
    names = [field[0] for field in preview["output"]]
    assert names == ["order_id", "customer_id", "name", "updated_at", "customers_name"]


@pytest.mark.parametrize("kind", ["upsert", "delete_insert", "scd2", "merge_engine"])
def test_the_key_is_proposed_or_given(kind: str, warehouse: str, tmp_path: Path) -> None:
    """The column named after the table is the key unless --key names others."""
    file = tmp_path / "golden.py"
    argument = "natural_key" if kind == "scd2" else "primary_key"
    assert init_files(kind, warehouse, "-o", str(file)) == 0
    assert getattr(load_task(file), argument) == ["order_id"]

    options = ("-o", str(file), "--force", "--key", "Customer_Id", "name")
    assert init_files(kind, warehouse, *options) == 0
    assert getattr(load_task(file), argument) == ["customer_id", "name"]


@pytest.mark.parametrize(
    ("values", "is_possible"),
    [
        (pa.array([1, 2, 3]), True),
        (pa.array([1, 2, None]), False),
        (pa.array([1, 2, 2]), False),
        (pa.array(["a", "a"]), False),
        (pa.array(["a", "b", "a"]), True),
        (pa.array(["x" * 40, "x" * 40]), True),
        (pa.array([1.0, 2.0]), False),
    ],
)
def test_statistics_exclude_keys(tmp_path: Path, values: Any, is_possible: bool) -> None:
    """A column with NULLs, or with fewer values than rows, is not a key; strings are only known if equal."""
    write_deltalake(str(tmp_path / "t"), pa.table({"id": values}))

    keys = read_source(str(tmp_path / "t"), None).list_keys()

    assert [column.name for column in keys] == (["id"] if is_possible else [])


def test_the_format_of_files_is_that_of_their_names(warehouse: str, tmp_path: Path) -> None:
    """The reader of a merge record has the format of the files in the source folder."""
    assert init_files("merge_record", warehouse, "-o", str(tmp_path / "golden.py")) == 0

    assert load_task(tmp_path / "golden.py").reader == {"format": "csv"}


def test_a_file_is_overwritten_only_with_force(
    warehouse: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that exists stays as it is, also if another file could be written."""
    old, new = tmp_path / "golden.py", tmp_path / "golden.json"
    old.write_text("old")

    assert init_files("upsert", warehouse, "-o", str(new), "-o", str(old)) == 2
    assert capsys.readouterr().err == f"error: {old}: exists already (set --force to overwrite it)\n"
    assert old.read_text() == "old"
    assert not new.exists()

    assert init_files("upsert", warehouse, "-o", str(new), "-o", str(old), "--force") == 0
    assert json.loads(new.read_text())["source"]["primary_key"] == ["order_id"]


@pytest.mark.parametrize(
    ("kind", "datasets", "arguments", "message"),
    [
        (
            "upsert",
            ["notes"],
            [],
            "--key: no column of notes looks like a key (set --key to columns of: text)",
        ),
        ("upsert", ["orders"], ["--key", "nam"], "--key: orders has no column 'nam' (did you mean 'name'?)"),
        ("upsert", ["orders", "crm"], [], "--datasets: upsert has one source, found 2 (change the list)"),
        (
            "joiner",
            ["orders"],
            [],
            "--datasets: joiner requires at least two inputs, found 1 (change the list)",
        ),
        ("joiner", ["orders", "notes"], [], "--key: the inputs have no common column that looks like an ID"),
        ("merge_source", ["crm", "orders"], [], "--key: the datasets have no common column of strings"),
        ("merge_source", ["crm"], ["--key", "id"], "--key: column 'id' is not a string in every dataset"),
        ("upsert", ["orders"], ["-o", "golden.txt"], "golden.txt: has an unknown ending"),
        ("upsert", ["nothing"], [], "is not a Delta table: check the name and the warehouse"),
    ],
)
def test_what_cannot_be_proposed_is_refused(
    kind: str,
    datasets: list[str],
    arguments: list[str],
    message: str,
    warehouse: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each error names the option and what to do."""
    assert init_files(kind, warehouse, *arguments, datasets=datasets) in {2, 3}

    assert message in capsys.readouterr().err
