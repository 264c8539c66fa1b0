"""Test that the readers of docs/guides/read_targets.md open the tables and files of every capability."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyarrow.types import is_nested
from pyspark.sql import SparkSession

from airflow_merge_provider.cli.main import main
from tests.conformance.lean import lean_session
from tests.jobs.merge_record.landing import Landing
from tests.jobs.run.test_before_spark import CONFIGS, Lake

GROUPS = {"fields.v.sequence-group": "name,tags,notes,items"}
FUNCTIONS = {
    "fields.name.aggregate-function": "listagg",
    "fields.v.aggregate-function": "product",
    "fields.tags.aggregate-function": "collect",
    "fields.notes.aggregate-function": "merge_map",
    "fields.items.aggregate-function": "nested_update",
}
ENGINE = {"source": "a", "primary_key": ["_id"], "incremental": False, "changelog": "t_log"}
# A capability or a path of it: the job, and what its configuration adds.
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "functions": ("merge_engine", {**ENGINE, "merge_engine": "aggregation", "options": FUNCTIONS}),
    "removals": (
        "merge_engine",
        {
            **ENGINE,
            "merge_engine": "partial-update",
            "row_kind_column": "kind",
            "tombstone_retention": 9,
            "options": {**GROUPS, "partial-update.remove-record-on-sequence-group": "v"},
        },
    ),
    "columns": ("merge_source", {**CONFIGS["merge_source"][1], "values": "columns"}),
    "entities": (
        "merge_source",
        {
            **CONFIGS["merge_source"][1],
            "stable_id": True,
            "replaced_by": True,
            "metrics": "t_metrics",
            "max_key_fanout": 2,
            "on_over_merge": "quarantine",
            "expect": {"small": {"condition": "v < 10", "source": "a", "action": "quarantine"}},
        },
    ),
    "history": CONFIGS["history"],
    "tables": CONFIGS["nested"],
    "groups": CONFIGS["delete_insert"],
    "join": ("joiner", {**CONFIGS["joiner"][1], "required_inputs": "a, b", "unmatched": "t_rest"}),
}
# The tables beside the target, also of the plan that a run saves before the last one.
SIDE_TABLES = {
    "functions": {"t__plan", "t_log"},
    "removals": {"t_log", "t__removed"},
    "entities": {"t__plan", "t__rejected", "t__quarantine", "t__lineage", "t_metrics"},
    "tables": {"t__items", "t__tags"},
    "join": {"t_rest"},
}
# How each command names a row: the entity of a merge source, and the version of a history.
KEYS = {"columns": "a/1", "entities": "a/1", "join": '{"a._id": "1"}'}
NOTES = pa.map_(pa.string(), pa.string())


def build_columns(*ids: str, **more: list[Any]) -> dict[str, Any]:
    """Return columns of every kind of text."""
    return {
        "_id": list(ids),
        "name": [f"n{id_}" for id_ in ids],
        "v": list(range(1, len(ids) + 1)),
        "tags": [["x", id_] for id_ in ids],
        "notes": pa.array([[("p", id_)] for id_ in ids], NOTES),
        "items": [[{"sku": "s", "size": id_}] for id_ in ids],
        **more,
    }


def read_with_all(folder: Path) -> int:
    """Read a table with each reader, and return the number of rows that all of them see."""
    table = DeltaTable(str(folder))
    schema = table.schema().to_json().lower()
    assert "collat" not in schema
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all())
    # pandas does not hold lists.
    flat_rows = rows.select([field.name for field in rows.schema if not is_nested(field.type)])
    counts = {
        "delta-rs": rows.num_rows,
        "pandas": len(flat_rows.to_pandas()),
        "DuckDB": len(duckdb.sql("SELECT * FROM rows").fetchall()),
    }
    if '"variant"' in schema:
        with pytest.raises(pl.exceptions.ComputeError, match="LogicalType"):
            pl.read_delta(str(folder))
    else:
        counts["polars"] = pl.read_delta(str(folder)).height
    assert len(set(counts.values())) == 1, counts
    return int(rows.num_rows)


@pytest.mark.parametrize("path", PATHS)
def test_readers_open_every_table(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    path: str,
) -> None:
    """A first run, a plan and a run with changes leave tables without collations, which commands read."""
    job, settings = PATHS[path]
    kinds = {"kind": ["+I", "+I", "+I"]} if path == "removals" else {}
    lake = Lake(lean_session(spark), tmp_path)
    monkeypatch.setitem(CONFIGS, "path", (job, settings))
    for source in ("a", "b"):
        write(lake, source, build_columns("1", "2", "4", **kinds))
    assert lake.run_job(lake.build_request("path"))["changed"]
    later = {"kind": ["-D", "+U", "+I"]} if path == "removals" else {}
    if job in {"merge_load", "merge_source"}:
        later["added"] = ["x", "y", "z"]
    if path == "entities":
        # More entities have this name than max_key_fanout allows.
        later["name"] = ["n1", "n1", "n4"]
    write(lake, "a", build_columns("1", "3", "4", v=[8, 9, 10], **later))
    if "t__plan" in SIDE_TABLES.get(path, ()):
        lake.run_job(lake.build_request("path", "r2", until="transform", save_plan=True))
    assert lake.run_job(lake.build_request("path", "r3"))["changed"]

    tables = {log.parent.name for log in tmp_path.rglob("_delta_log")} - {"a", "b"}
    key = KEYS.get(path, "1")
    codes = [
        main([*command, "--warehouse", str(tmp_path)])
        for command in (
            ["history", "t"],
            ["diff", "t", "0", "1"],
            ["explain", "t", key],
            ["timeline", "t", key],
        )
    ]

    assert (codes, capsys.readouterr().err) == ([0] * 4, "")
    assert read_with_all(tmp_path / "t")
    assert all(read_with_all(tmp_path / name) is not None for name in tables)
    assert tables == {"t"} | SIDE_TABLES.get(path, set())


def write(lake: Lake, name: str, columns: dict[str, Any]) -> None:
    write_deltalake(str(lake.folder / name), pa.table(columns), mode="overwrite", schema_mode="overwrite")


def test_readers_open_merged_files(spark: SparkSession, tmp_path: Path) -> None:
    """A parquet file of merged texts has plain texts, also in the schema that Spark adds."""
    landing = Landing(tmp_path, spark, writer="parquet", schema_merge="union")
    landing.put_records("a.json", {"id": 1, "name": "a"})
    landing.put_records("b.json", {"id": 2, "tags": ["x"]})
    landing.run_job()

    (file,) = landing.list_outputs()
    assert b"collat" not in file.read_bytes().lower()
    assert pl.read_parquet(file).height == duckdb.sql(f"FROM '{file}'").shape[0] == 2
