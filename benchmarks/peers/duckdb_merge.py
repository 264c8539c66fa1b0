"""Run the same merge in DuckDB and scipy: clusters, merged properties in order, result as Parquet.

``python -m benchmarks.peers.duckdb_merge FOLDER OUT`` prints the seconds, without imports, as JSON. Its
result is simpler: a list per property instead of an entity, and no state for the next run.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from benchmarks.entities import DATASETS

PROPERTIES = ("email", "phone", "name", "city", "age")

# A key links if entities of two datasets have it: the benchmark's six rules cover all pairs of datasets.
_EDGES = """
SELECT e.entity, k.key FROM (SELECT entity, {key} AS value FROM entities WHERE {key} IS NOT NULL) e
JOIN (SELECT {key} AS value, row_number() OVER () - 1 AS key FROM entities WHERE {key} IS NOT NULL
      GROUP BY {key} HAVING count(DISTINCT ds) > 1) k USING (value)
"""
_MERGED = """
COPY (
  SELECT row_number() OVER (ORDER BY first) - 1 AS "_updated", * EXCLUDE (first) FROM (
    SELECT string_agg(ds || '|' || _id, '|' ORDER BY ds, _id) AS "_id", false AS "_deleted",
      list(_id ORDER BY ds, _id) AS "$ids", min((ds, _id)) AS first,
      {lists}
    FROM entities JOIN labels USING (entity) GROUP BY cluster)
) TO '{out}' (FORMAT parquet)
"""


def merge_datasets(folder: Path, out: Path) -> float:
    """Merge the datasets of ``benchmarks.entities`` below ``folder`` into ``out``; return the seconds."""
    start = time.perf_counter()
    base = duckdb.connect()
    tables = [
        f"SELECT {offset} AS ds, * FROM read_parquet({DeltaTable(str(folder / name)).file_uris()!r})"
        for offset, name in enumerate(DATASETS)
    ]
    base.execute(
        "CREATE TABLE entities AS SELECT row_number() OVER () - 1 AS entity, * FROM "
        f"({' UNION ALL '.join(tables)})"
    )
    count = base.execute("SELECT count(*) FROM entities").fetchall()[0][0]
    heads, tails, nodes = [], [], count
    for key in ("email", "phone"):
        key_edges = base.execute(_EDGES.format(key=key)).fetchnumpy()
        heads.append(key_edges["entity"])
        tails.append(key_edges["key"] + nodes)
        nodes += int(key_edges["key"].max(initial=-1)) + 1
    ends = np.concatenate(heads), np.concatenate(tails)
    graph = coo_matrix((np.ones(len(ends[0]), np.int8), ends), (nodes, nodes))
    _, labels = connected_components(graph, directed=False)
    base.register("labels", pa.table({"entity": np.arange(count), "cluster": labels[:count]}))
    lists = ", ".join(
        f"list({name} ORDER BY ds, _id) FILTER (WHERE {name} IS NOT NULL) AS {name}" for name in PROPERTIES
    )
    base.execute(_MERGED.format(lists=lists, out=out))
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps({"seconds": merge_datasets(Path(sys.argv[1]), Path(sys.argv[2]))}))
