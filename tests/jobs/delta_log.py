"""Read the log files of a Delta table without the code under test."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def list_commits(table: Path) -> list[dict[str, Any]]:
    """Return one entry per commit, in order: operation, userMetadata, transaction and table properties."""
    commits = []
    for file in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        actions_by_kind = {kind: body for action in actions for kind, body in action.items()}
        entry: dict[str, Any] = {
            "operation": actions_by_kind["commitInfo"]["operation"],
            "run": json.loads(actions_by_kind["commitInfo"].get("userMetadata") or "null"),
        }
        if "txn" in actions_by_kind:
            entry["txn"] = (actions_by_kind["txn"]["appId"], actions_by_kind["txn"]["version"])
        if "metaData" in actions_by_kind:
            entry["properties"] = actions_by_kind["metaData"]["configuration"]
        commits.append(entry)
    return commits


def write_checkpoints(spark: SparkSession, table: Path) -> None:
    """Let Delta write a checkpoint after each commit from a new one on, and clean the log then."""
    interval = "delta.checkpointInterval"
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('{interval}' = '1')").collect()


def expire_log(spark: SparkSession, table: Path, *, newest: int = 0) -> None:
    """Let Delta remove the commits of a table but the newest ones and a new one, as 40 days later.

    The oldest of the newest commits needs a checkpoint.
    """
    commits = sorted((table / "_delta_log").glob("*.json"))
    commits = commits[: len(commits) - newest]
    for file in commits:
        os.utime(file, (time.time() - 40 * 86_400,) * 2)
    write_checkpoints(spark, table)
    remaining = [file.name for file in commits if file.exists()]
    if remaining:
        raise AssertionError(f"Delta has not removed {remaining}")
