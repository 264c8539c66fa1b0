"""Run vectors through a capability's public path: ``python -m tests.conformance CAPABILITY FILE``.

Prints one JSON line per vector, also for one that cannot be run; progress goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession

from airflow_merge_provider.core.spark_conf import session_conf
from airflow_merge_provider.jars import delta_jars
from airflow_merge_provider.jobs.session import local_session

CAPABILITIES = ("joiner", "merge_engine", "merge_load", "merge_record", "merge_source")


def main(argv: list[str]) -> int:
    if len(argv) != 2 or argv[0] not in CAPABILITIES:
        known = ", ".join(CAPABILITIES)
        print(f"usage: python -m tests.conformance CAPABILITY FILE (capabilities: {known})", file=sys.stderr)
        return 2
    capability = importlib.import_module(f"tests.conformance.{argv[0]}")
    content = json.loads(Path(argv[1]).read_text(encoding="utf-8"))
    vectors = content["vectors"] if isinstance(content, dict) else content
    spark = local_session(
        session_conf(local=True, jars=delta_jars(), user={"spark.sql.shuffle.partitions": "2"})
    )
    with tempfile.TemporaryDirectory(prefix="merge-conformance-") as folder:
        for number, vector in enumerate(vectors):
            line = line_of(capability, spark, vector, Path(folder) / str(number))
            print(json.dumps(line, ensure_ascii=False), flush=True)
            print(f"\r{number + 1}/{len(vectors)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    spark.stop()
    return 0


def line_of(capability: ModuleType, spark: SparkSession, vector: Any, warehouse: Path) -> dict[str, Any]:
    """Give a vector's outcome; whatever goes wrong on the way is its error."""
    try:
        outcome: dict[str, Any] = capability.outcome(spark, vector, warehouse)
    except Exception as error:  # noqa: BLE001 - one vector must not end the others
        known = vector.get("id") if isinstance(vector, dict) else None
        return {"id": known, "error": f"{type(error).__name__}: {error}"}
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
