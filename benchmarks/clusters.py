"""Measure clustering: both algorithms of the merge source, GraphX, Splink, and Spark's minimum, in turns.

``python -m benchmarks.clusters [--size N] [--rounds N] [--alone] [--splink PYTHON]`` writes the figures to
``benchmarks/out``. All must find the number of generated clusters. ``--splink`` is the path of a Python with
Splink; without it Splink is skipped. ``--alone`` skips the peers: GraphX takes minutes at 5 million entities.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import partial, reduce
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession, functions as F

from airflow_merge_provider.core.protocol import JobRequest, RunToken
from airflow_merge_provider.core.run.reporter import Progress
from airflow_merge_provider.jobs.merge_source.job import run
from airflow_merge_provider.jobs.merge_source.resolution import KEYS_ON_DRIVER
from airflow_merge_provider.jobs.spark.session import override_settings
from benchmarks import entities
from benchmarks.measure import OUT, Candidate, run_in_turns, warm_session, write_results

# The maximum number of edges collected on the driver; low, so that the graph is contracted several times.
EDGES = 100_000
GOALS = {
    "operator / Spark floor": 1.5,
    "operator / GraphX": 0.125,
    "operator / Splink": 1.0,
    "in Spark / operator": 6.0,
}
_SPLINK = Path(__file__).parent / "peers" / "splink_clusters.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1_000_000, help="entities (1000000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the one that warms up (3)")
    parser.add_argument("--alone", action="store_true", help="without GraphX")
    parser.add_argument("--splink", help="a Python that has Splink")
    chosen = parser.parse_args()
    folder = OUT / "data" / f"{chosen.size}"
    truth = entities.write_datasets(folder, chosen.size)
    spark = warm_session(**{"spark.driver.memory": "4g"})
    candidates = {
        "ours": Candidate("operator", partial(_run_ours, spark, folder)),
        "in Spark": Candidate("operator, keys in Spark", partial(_run_ours, spark, folder, keys=EDGES)),
        "Spark floor": Candidate("Spark reads, hashes, writes", partial(_run_floor, spark, folder)),
    }
    if not chosen.alone:
        candidates["GraphX"] = Candidate("GraphX", partial(_run_graphx, spark, folder))
    if chosen.splink:
        candidates["Splink"] = Candidate("Splink on DuckDB", partial(_run_splink, chosen.splink, folder))
    run_in_turns(list(candidates.values()), chosen.rounds)
    spark.stop()
    median = {name: candidate.summarize_rounds()["median"] for name, candidate in candidates.items()}
    counts = {
        name: candidate.rounds[-1]["clusters"]
        for name, candidate in candidates.items()
        if name != "Spark floor"
    }
    ratios = {
        f"operator / {name}": round(median["ours"] / median[name], 3)
        for name in median
        if name not in {"ours", "in Spark"}
    }
    ratios["in Spark / operator"] = round(median["in Spark"] / median["ours"], 2)
    facts = {"clusters": counts, "clusters_in_truth": truth, "goals": GOALS}
    print(json.dumps([candidate.summarize_rounds() for candidate in candidates.values()], indent=1))
    written = write_results("clusters", f"{chosen.size:,} entities", list(candidates.values()), ratios, facts)
    print(f"ratios {ratios}, {facts}\nwritten to {written} and {written.with_suffix('.png')}")
    return 0 if set(counts.values()) == {truth} else 1


def _run_ours(spark: SparkSession, folder: Path, keys: int | None = None) -> Mapping[str, Any]:
    """Run the job without writing; return the clusters, and the seconds until they are known."""
    config = {
        "version": 2, "target": "nothing", "equality": entities.RULES,
        "datasets": [f"{name} {name.lower()}" for name in entities.DATASETS],
    }  # fmt: skip
    token = RunToken(dag_id="benchmark", run_id="1", task_id="merge")
    request = JobRequest(
        job="merge_source", config=config, run=token, warehouse=str(folder), started_at=0, until="transform"
    )
    with override_settings(spark, {} if keys is None else {KEYS_ON_DRIVER: str(keys)}):
        report = run(spark, request, Progress(out=str)).as_json()
    steps = report["seconds"]
    # A run that writes nothing also lists its changes, which is not measured here.
    seconds = sum(steps[name] for name in ("resolve inputs", "open sources", "scan match keys", "cluster"))
    return {"clusters": report["counts"]["live_rows"], "steps": steps, "seconds": seconds}


def _run_graphx(spark: SparkSession, folder: Path) -> Mapping[str, Any]:
    """Connect every entity with its keys in GraphX, which requires numeric ids, so both are hashed."""
    ends = []
    for name in entities.DATASETS:
        rows = spark.read.format("delta").load(str(folder / name))
        node = F.xxhash64(F.lit(name), "_id")
        ends += [
            rows.where(F.col(key).isNotNull()).select(node.alias("a"), F.xxhash64(F.lit(key), key).alias("b"))
            for key in ("email", "phone")
        ]
    jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public API for GraphX
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("java.lang.Object"))
    pair = jvm.org.apache.spark.sql.Encoders.tuple(
        jvm.org.apache.spark.sql.Encoders.LONG(), jvm.org.apache.spark.sql.Encoders.LONG()
    )
    pairs = getattr(reduce(DataFrame.unionByName, ends)._jdf, "as")(pair).rdd()  # noqa: SLF001 - as above
    level = jvm.org.apache.spark.storage.StorageLevel.MEMORY_AND_DISK()
    graph = jvm.org.apache.spark.graphx.Graph.fromEdgeTuples(
        pairs, 1, jvm.scala.Option.empty(), level, level, tag
    )
    vertices = jvm.org.apache.spark.graphx.lib.ConnectedComponents.run(graph, tag, tag).vertices()
    labels = DataFrame(spark._jsparkSession.createDataset(vertices, pair).toDF(), spark)  # noqa: SLF001 - as above
    return {"clusters": labels.agg(F.count_distinct("_2")).collect()[0][0]}


def _run_floor(spark: SparkSession, folder: Path) -> Mapping[str, Any]:
    read = [spark.read.format("delta").load(str(folder / name)) for name in entities.DATASETS]
    rows = reduce(DataFrame.unionByName, read)
    hashed = rows.select("_id", *[F.xxhash64(name).alias(name) for name in ("email", "phone")])
    hashed.write.mode("overwrite").parquet(str(folder / "floor"))
    return {}


def _run_splink(python: str, folder: Path) -> Mapping[str, Any]:
    files = [DeltaTable(str(folder / name)).file_uris() for name in entities.DATASETS]
    process = subprocess.run(
        [python, str(_SPLINK), json.dumps(files)], check=True, capture_output=True, text=True
    )
    return dict(json.loads(process.stdout.splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main())
