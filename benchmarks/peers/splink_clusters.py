"""Cluster ``benchmarks.entities`` with Splink on DuckDB, in a Python that has Splink; print JSON.

``python splink_clusters.py FILES``, where FILES is JSON: for each dataset its Parquet files. Splink gets
fewer edges: each entity is linked to the first one with its key, not to all of them.
"""

from __future__ import annotations

import json
import sys
import time

import duckdb
from splink import DuckDBAPI
from splink.clustering import cluster_pairwise_predictions_at_threshold

_EDGES = """
SELECT first(id) OVER (PARTITION BY {key} ORDER BY id) AS id_l, id AS id_r
FROM entities WHERE {key} IS NOT NULL
"""


def main() -> None:
    files = json.loads(sys.argv[1])
    start = time.perf_counter()
    base = duckdb.connect()
    rows = " UNION ALL ".join(
        f"SELECT '{number}:' || _id AS id, email, phone FROM read_parquet({file!r})"
        for number, file in enumerate(files)
    )
    base.execute(f"CREATE TABLE entities AS {rows}")
    edges = " UNION ALL ".join(_EDGES.format(key=key) for key in ("email", "phone"))
    base.execute(f"CREATE TABLE edges AS SELECT * FROM ({edges}) WHERE id_l <> id_r")
    api = DuckDBAPI(connection=base)
    clusters = cluster_pairwise_predictions_at_threshold(
        "entities", "edges", api, node_id_column_name="id", edge_id_column_name_left="id_l",
        edge_id_column_name_right="id_r",
    )  # fmt: skip
    [(count,)] = clusters.as_duckdbpyrelation().aggregate("count(DISTINCT cluster_id)").fetchall()
    print(json.dumps({"seconds": time.perf_counter() - start, "clusters": count}))


if __name__ == "__main__":
    main()
