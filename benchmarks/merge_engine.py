"""Measure folding a batch of changes, against a bare MERGE of the folded batch and DuckDB with delta-rs.

``python -m benchmarks.merge_engine [--engine E] [--size N] [--changes N] [--rounds N]`` writes the figures to
``benchmarks/out``, one file per engine. Every method has its own table and gets the same batches; all tables
must be equal at the end. The minimum is a scan of the keys and a bare append of the batch, which merges
nothing. A batch that is only in the source costs no more than that append; the cost for readers until the
batch is folded is also measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_engine import reading
from airflow_merge_provider.jobs.merge_engine.job import run
from benchmarks.changes import COLUMNS, TEXTS, VALUES, build_batch, build_states, write_table
from benchmarks.measure import OUT, Candidate, run_in_turns, warm_session, write_results

GOAL = 1.15
ENGINES: Mapping[str, dict[str, str]] = {
    "deduplicate": {"sequence.field": "seq"},
    "partial-update": {"sequence.field": "seq"},
    "aggregation": {f"fields.{name}.aggregate-function": "sum" for name in VALUES}
    | {"sequence.field": "seq"},
    "first-row": {},
}


class Contest:
    """The tables of all methods in one folder, and their batches."""

    def __init__(self, spark: SparkSession, folder: Path, chosen: argparse.Namespace, engine: str) -> None:
        self.spark, self.folder, self.engine = spark, folder, engine
        self.size, self.changes = chosen.size, chosen.changes
        self.number = {"ours": 0, "bare": 0, "peer": 0, "floor": 0}
        shutil.rmtree(folder, ignore_errors=True)
        first = build_states(chosen.size)
        for name in ("changes", "bare", "peer", "floor"):
            write_table(folder / name, first)
        self._run_job()
        vectors = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
        spark.sql(f"ALTER TABLE delta.`{folder / 'bare'}` SET {vectors}").collect()

    def read_table(self) -> Mapping[str, Any]:
        """Read all columns of the table."""
        return self._read_rows(lambda: self.spark.read.format("delta").load(str(self.folder / "ours")))

    def fold_current(self) -> Mapping[str, Any]:
        """Append a batch to the source, and read the table as it is with the batch folded."""
        write_deltalake(str(self.folder / "changes"), self._build_batch("ours"), mode="append")
        return self._read_rows(lambda: reading.read_current_rows(self.spark, "ours", str(self.folder)))

    def run_ours(self) -> Mapping[str, Any]:
        """Run the job on the batch that was appended last."""
        began = time.perf_counter()
        report = self._run_job()
        return {
            "seconds": time.perf_counter() - began,
            "steps": report["seconds"],
            "counts": report["counts"],
        }

    def run_bare_merge(self) -> Mapping[str, Any]:
        """Merge the batch that DuckDB has folded, to measure the MERGE alone."""
        file = self.folder / "folded.parquet"
        pq.write_table(self._fold_batch("bare"), file)
        began = time.perf_counter()
        source = self.spark.read.parquet(str(file))
        source.createOrReplaceTempView("folded")
        sets = ", ".join(f"t.{name} = s.{name}" for name in COLUMNS[1:])
        matched = "" if self.engine == "first-row" else f"WHEN MATCHED THEN UPDATE SET {sets} "
        self.spark.sql(
            f"MERGE INTO delta.`{self.folder / 'bare'}` t USING folded s ON t.k = s.k "
            f"{matched}WHEN NOT MATCHED THEN INSERT *"
        ).collect()
        return {"seconds": time.perf_counter() - began}

    def run_peer(self) -> Mapping[str, Any]:
        """Fold with DuckDB and merge with delta-rs."""
        began = time.perf_counter()
        folded = self._fold_batch("peer")
        merge = DeltaTable(str(self.folder / "peer")).merge(
            folded, "t.k = s.k", source_alias="s", target_alias="t"
        )
        if self.engine != "first-row":
            merge = merge.when_matched_update_all()
        merge.when_not_matched_insert_all().execute()
        return {"seconds": time.perf_counter() - began}

    def run_floor(self) -> Mapping[str, Any]:
        """Scan the keys and append the batch unchanged: the minimum cost of reading and writing."""
        file = self.folder / "raw.parquet"
        pq.write_table(self._build_batch("floor"), file)
        began = time.perf_counter()
        table = self.spark.read.format("delta").load(str(self.folder / "floor"))
        table.agg(F.max("k")).collect()
        appended = self.spark.read.parquet(str(file)).writeTo(f"delta.`{self.folder / 'floor'}`")
        appended.append()
        return {"seconds": time.perf_counter() - began}

    def _read_rows(self, rows: Callable[[], DataFrame]) -> Mapping[str, Any]:
        began = time.perf_counter()
        rows().agg(F.bit_xor(F.xxhash64(*COLUMNS))).collect()
        return {"seconds": time.perf_counter() - began}

    def is_same(self) -> bool:
        """Return whether all tables have the same rows."""
        checksums = set()
        for name in ("ours", "bare", "peer"):
            rows = self.spark.read.format("delta").load(str(self.folder / name)).select(*COLUMNS)
            checksums.add(tuple(rows.agg(F.count(F.lit(1)), F.bit_xor(F.xxhash64(*COLUMNS))).collect()[0]))
        return len(checksums) == 1

    def _read_stored(self, table_name: str) -> Any:
        """Return the rows of a table; few readers support the deletion vectors of the bare MERGE."""
        table = DeltaTable(str(self.folder / table_name))
        if table_name != "bare":
            return table.to_pyarrow_dataset()
        rows = QueryBuilder().register("stored", table).execute("SELECT * FROM stored")
        return pa.RecordBatchReader.from_stream(rows).read_all()

    def _build_batch(self, table_name: str) -> pa.Table:
        self.number[table_name] += 1
        return build_batch(self.size, self.changes, self.number[table_name])

    def _run_job(self) -> dict[str, Any]:
        request = JobRequest(
            job="merge_engine",
            config={
                "source": "changes",
                "target": "ours",
                "primary_key": ["k"],
                "merge_engine": self.engine,
                "options": ENGINES[self.engine],
            },
            run=RunToken(dag_id="benchmark", run_id=str(self.number["ours"]), task_id="merge"),
            warehouse=str(self.folder),
            started_at=0,
        )
        return run(self.spark, request, Progress(out=str)).as_json()

    def _fold_batch(self, table_name: str) -> pa.Table:
        """Fold a batch with its matching stored rows in DuckDB, by the same rules."""
        changes = self._build_batch(table_name)
        stored = self._read_stored(table_name)  # noqa: F841 - as above
        if self.engine == "first-row":
            return _first_rows(changes)
        last = "arg_max({0}, seq) FILTER ({0} IS NOT NULL) AS {0}"
        rules = {
            "deduplicate": "arg_max_null({0}, seq) AS {0}",
            "partial-update": last,
            "aggregation": "sum({0})::BIGINT AS {0}",
        }
        texts = last if self.engine == "aggregation" else rules[self.engine]
        values = [rules[self.engine].format(name) for name in VALUES] + [texts.format(name) for name in TEXTS]
        query = (
            f"SELECT k, max(seq) AS seq, {', '.join(values)} FROM (SELECT * FROM changes UNION ALL "
            "SELECT * FROM stored WHERE k IN (SELECT k FROM changes)) GROUP BY k"
        )
        return duckdb.sql(query).to_arrow_table()


def _first_rows(changes: pa.Table) -> pa.Table:
    """Return the first record of each key."""
    numbered = changes.append_column("place", pa.array(range(len(changes))))  # noqa: F841 - as above
    values = ", ".join(f"arg_min_null({name}, place) AS {name}" for name in COLUMNS[1:])
    return duckdb.sql(f"SELECT k, {values} FROM numbered GROUP BY k").to_arrow_table()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=[*ENGINES, "all"], default="all", help="which one (all)")
    parser.add_argument("--size", type=int, default=1_000_000, help="rows of the table (1000000)")
    parser.add_argument("--changes", type=int, default=100_000, help="records of a batch (100000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the one that warms up (3)")
    chosen = parser.parse_args()
    spark = warm_session()
    engines = ENGINES if chosen.engine == "all" else [chosen.engine]
    same = [run_contest(spark, chosen, engine) for engine in engines]
    spark.stop()
    return 0 if all(same) else 1


def run_contest(spark: SparkSession, chosen: argparse.Namespace, engine: str) -> bool:
    """Measure one engine and write its figures; return whether all tables are equal at the end."""
    contest = Contest(spark, OUT / "data" / f"merge_engine-{engine}-{chosen.size}", chosen, engine)
    candidates = [
        Candidate("read", contest.read_table),
        Candidate("read with a batch not folded", contest.fold_current),
        Candidate("operator", contest.run_ours),
        Candidate("bare MERGE of the folded batch", contest.run_bare_merge),
        Candidate("DuckDB + delta-rs", contest.run_peer),
        Candidate("key scan and append (floor)", contest.run_floor),
    ]
    run_in_turns(candidates, chosen.rounds)
    same = contest.is_same()
    read, current, provider, bare, peer, floor = (
        candidate.summarize_rounds()["median"] for candidate in candidates
    )
    ratios = {
        "operator / bare MERGE": round(provider / bare, 2),
        "operator / delta-rs": round(provider / peer, 2),
        "operator / floor": round(provider / floor, 2),
        "read with a batch not folded / read": round(current / read, 2),
    }
    measured = f"{engine}, {chosen.size:,} rows, {chosen.changes:,} changes"
    facts = {"engine": engine, "changes": chosen.changes, "tables_are_equal": same, "goal": GOAL}
    print(json.dumps([candidate.summarize_rounds() for candidate in candidates], indent=1))
    written = write_results("merge_engine", measured, candidates, ratios, facts)
    print(f"ratios {ratios}, {facts}\nwritten to {written} and {written.with_suffix('.png')}", flush=True)
    return same


if __name__ == "__main__":
    sys.exit(main())
