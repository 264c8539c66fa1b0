"""Run the loads with other tools: DuckDB with the statements of dlt, delta-rs, and a standard MERGE."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

_HASH = "md5(concat_ws('|', {}))"


def duckdb_history(database: Path, snapshots: list[tuple[str, Path]]) -> None:
    """Create the stored history of a peer: load each snapshot as dlt does, into a database file."""
    for at, file in snapshots:
        duckdb_scd2(database, at, file)


def duckdb_scd2(database: Path, at: str, snapshot: Path) -> None:
    """Retire rows that are not in the snapshot and insert new ones, by row hash, in one transaction."""
    with duckdb.connect(str(database)) as db:
        names = [row[0] for row in db.execute(f"DESCRIBE SELECT * FROM '{snapshot}'").fetchall()]
        hashed = _HASH.format(", ".join(f"coalesce(CAST({name} AS VARCHAR), '')" for name in names))
        db.execute("BEGIN")
        db.execute(f"CREATE OR REPLACE TABLE staging AS SELECT *, {hashed} AS h FROM '{snapshot}'")
        db.execute(
            "CREATE TABLE IF NOT EXISTS t AS SELECT CAST(NULL AS TIMESTAMP) AS valid_from, "
            "CAST(NULL AS TIMESTAMP) AS valid_to, * FROM staging LIMIT 0"
        )
        db.execute(
            f"UPDATE t SET valid_to = TIMESTAMP '{at}' WHERE valid_to IS NULL "
            "AND h NOT IN (SELECT h FROM staging)"
        )
        db.execute(
            f"INSERT INTO t SELECT TIMESTAMP '{at}', NULL, * FROM staging "
            "WHERE h NOT IN (SELECT h FROM t WHERE valid_to IS NULL)"
        )
        db.execute("COMMIT")


def duckdb_rows(database: Path, file: Path) -> None:
    """Write the peer's history as Parquet, for the comparison."""
    with duckdb.connect(str(database), read_only=True) as db:
        db.execute(f"COPY (SELECT * EXCLUDE (h) FROM t) TO '{file}' (FORMAT parquet)")


def deltars_upsert(path: Path, rows: pa.Table) -> None:
    """Upsert with delta-rs, which dlt uses for Delta tables."""
    merger = DeltaTable(str(path)).merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def textbook_scd2(spark: SparkSession, path: Path, at: str, snapshot: Path) -> None:
    """Close and insert with one MERGE whose source is the whole snapshot, with changed rows twice."""
    target = f"delta.`{path}`"
    names = [name for name in spark.read.parquet(str(snapshot)).columns if name != "id"]
    differ = " OR ".join(f"NOT (t.{name} <=> s.{name})" for name in names)
    columns = ", ".join(("id", *names))
    values = ", ".join(f"s.{name}" for name in ("id", *names))
    spark.read.parquet(str(snapshot)).createOrReplaceTempView("snapshot")
    spark.sql(
        f"""
        MERGE INTO {target} AS t USING (
            SELECT id AS k, * FROM snapshot
            UNION ALL
            SELECT NULL AS k, s.* FROM snapshot s JOIN {target} t
              ON s.id = t.id AND t.valid_to IS NULL AND ({differ})
        ) AS s ON t.id = s.k
        WHEN MATCHED AND t.valid_to IS NULL AND ({differ}) THEN UPDATE SET valid_to = TIMESTAMP '{at}'
        WHEN NOT MATCHED THEN INSERT ({columns}, valid_from, valid_to)
          VALUES ({values}, TIMESTAMP '{at}', NULL)
        WHEN NOT MATCHED BY SOURCE AND t.valid_to IS NULL THEN UPDATE SET valid_to = TIMESTAMP '{at}'
        """
    ).collect()
