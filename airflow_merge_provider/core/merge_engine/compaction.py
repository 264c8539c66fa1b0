"""How much of the target's files is outdated, and when are they rewritten without it.

A changed row leaves its old form in its file, marked by a deletion vector that every reader has to look at.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig


def count_storage(before: Mapping[str, int] | None, rows: Mapping[str, int], *, full: bool) -> dict[str, int]:
    """Count the rows of the target and their outdated forms after a run, from what was known before it.

    :param before: the result of the previous run; the result is empty if that did not count.
    :param rows: the rows that the run inserts, updates and deletes; if ``full``, they are all rows.
    """
    if full:
        return {"rows": rows["inserted"], "outdated": 0}
    if not before:
        return {}
    outdated = before["outdated"] + rows["updated"] + rows["deleted"]
    return {"rows": before["rows"] + rows["inserted"] - rows["deleted"], "outdated": outdated}


def is_due(config: MergeEngineConfig, stored: Mapping[str, int]) -> bool:
    """Return whether more of what is stored is outdated than the configuration allows."""
    if config.compact_ratio is None or not stored:
        return False
    return stored["outdated"] > config.compact_ratio * (stored["rows"] + stored["outdated"])
