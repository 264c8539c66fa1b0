"""The lineage of an undo: it writes earlier rows of its target, and reads no other dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_merge_provider.core.table_history import NO_VERSION


def is_truncate(report: Mapping[str, Any]) -> bool:
    """Return whether the target has no rows afterwards, as before its first run."""
    return bool(report["details"].get("restored_version") == NO_VERSION)
