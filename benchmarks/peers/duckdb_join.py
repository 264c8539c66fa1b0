"""Run the same join in DuckDB, result as Parquet: ``python -m benchmarks.peers.duckdb_join FOLDER TASK OUT``.

Prints the seconds, without imports, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import duckdb
from deltalake import DeltaTable

from benchmarks.relations import NAMES, SKEWED, SMALL

_COLUMNS = {name: f"{name}.k AS {name}_k, {name}_n, {name}_t" for name in (*NAMES, SKEWED, SMALL)}
_CHAIN = {"inner": "JOIN", "full": "FULL JOIN", "two": "JOIN"}


def build_query(folder: Path, task: str) -> str:
    """Return the SQL of the join over the files of the tables."""
    stages = {"skewed": (SKEWED, SMALL), "two": NAMES[:2]}.get(task, NAMES)
    tables = {name: f"read_parquet({DeltaTable(str(folder / name)).file_uris()!r}) {name}" for name in stages}
    first, *other_stages = stages
    clauses = [tables[first]]
    keys = [f"{first}.k"]
    for name in other_stages:
        clauses.append(
            f"{_CHAIN.get(task, 'LEFT JOIN')} {tables[name]} ON coalesce({', '.join(keys)}) = {name}.k"
        )
        keys.append(f"{name}.k")
    return f"SELECT {', '.join(_COLUMNS[name] for name in stages)} FROM {' '.join(clauses)}"


def join_tables(folder: Path, task: str, out: Path) -> float:
    """Write the joined rows to the file ``out``; return the seconds."""
    start = time.perf_counter()
    duckdb.connect().execute(f"COPY ({build_query(folder, task)}) TO '{out}' (FORMAT parquet)")
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps({"seconds": join_tables(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))}))
