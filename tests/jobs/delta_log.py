"""Read the log files of a Delta table without the code under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
