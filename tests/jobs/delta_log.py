"""Read the log files of a Delta table without the code under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def list_commits(table: Path) -> list[dict[str, Any]]:
    """Return one entry per commit, in order: operation, userMetadata, transaction and table properties."""
    found = []
    for file in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        said = {kind: body for action in actions for kind, body in action.items()}
        entry: dict[str, Any] = {
            "operation": said["commitInfo"]["operation"],
            "run": json.loads(said["commitInfo"].get("userMetadata") or "null"),
        }
        if "txn" in said:
            entry["txn"] = (said["txn"]["appId"], said["txn"]["version"])
        if "metaData" in said:
            entry["properties"] = said["metaData"]["configuration"]
        found.append(entry)
    return found
