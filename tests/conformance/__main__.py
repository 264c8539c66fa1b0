"""Run vectors through a capability's public path: ``python -m tests.conformance CAPABILITY FILE``.

Prints one JSON line per vector, also for a vector that cannot be run; progress goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import local
from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession

from tests.conformance.lean import forget_tables, lean_session, start_session

_FORGET_AFTER = 50
CAPABILITIES = ("joiner", "merge_engine", "merge_load", "merge_record", "merge_source")


def main(argv: list[str]) -> int:
    if len(argv) != 2 or argv[0] not in CAPABILITIES:
        capabilities = ", ".join(CAPABILITIES)
        print(
            f"usage: python -m tests.conformance CAPABILITY FILE (capabilities: {capabilities})",
            file=sys.stderr,
        )
        return 2
    capability = importlib.import_module(f"tests.conformance.{argv[0]}")
    content = json.loads(Path(argv[1]).read_text(encoding="utf-8"))
    vectors = content["vectors"] if isinstance(content, dict) else content
    with tempfile.TemporaryDirectory(prefix="merge-conformance-") as folder:
        spark = start_session(Path(folder))
        for number, line in enumerate(iterate_outcomes(capability, spark, vectors, Path(folder))):
            print(json.dumps(line, ensure_ascii=False), flush=True)
            print(f"\r{number + 1}/{len(vectors)}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        spark.stop()
    return 0


def iterate_outcomes(
    capability: ModuleType, spark: SparkSession, vectors: Sequence[Any], folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of vectors in order; two run at a time, each thread with its own session."""
    mine, turns = local(), count(1)

    def run_vector(number: int) -> dict[str, Any]:
        if not hasattr(mine, "session"):
            mine.session = lean_session(spark)
        if next(turns) % _FORGET_AFTER == 0:
            forget_tables(spark)
        return line_of(capability, mine.session, vectors[number], folder / str(number))

    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        yield from pool.map(run_vector, range(len(vectors)))


def line_of(capability: ModuleType, spark: SparkSession, vector: Any, warehouse: Path) -> dict[str, Any]:
    """Return the outcome of a vector; any exception becomes its error."""
    try:
        outcome: dict[str, Any] = capability.run_vector(spark, vector, warehouse)
    except Exception as error:  # noqa: BLE001 - one vector must not end the others
        vector_id = vector.get("id") if isinstance(vector, dict) else None
        return {"id": vector_id, "error": f"{type(error).__name__}: {error}"}
    return outcome


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
