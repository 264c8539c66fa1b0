"""Upsert the rows of a Parquet file into a DuckDB table with dlt, in a Python that has dlt.

``python dlt_upsert.py FOLDER FILE``; the database and dlt's state are in FOLDER.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dlt
import pyarrow.parquet as pq


def main() -> None:
    folder, file = Path(sys.argv[1]), sys.argv[2]
    pipeline = dlt.pipeline(
        "peer", destination=dlt.destinations.duckdb(str(folder / "peer.duckdb")), dataset_name="lake",
        pipelines_dir=str(folder / "pipelines"),
    )  # fmt: skip
    rows = dlt.resource(pq.read_table(file), name="target")
    rows.apply_hints(primary_key="_id", write_disposition={"disposition": "merge", "strategy": "upsert"})
    pipeline.run(rows).raise_on_failed_jobs()


if __name__ == "__main__":
    main()
