"""The share of outdated rows in the target's files, and when the files are rewritten without them.

A changed row leaves its old version in its file, marked by a deletion vector that every reader has to
process.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig


def count_storage(
    previous_storage: Mapping[str, int] | None, rows: Mapping[str, int], *, full: bool
) -> dict[str, int]:
    """Return the rows of the target and their outdated versions after a run, given those before it.

    :param previous_storage: the result of the previous run; the result is empty if that did not count.
    :param rows: the rows that the run inserts, updates and deletes; if ``full``, they are all rows.
    """
    if full:
        return {"rows": rows["inserted"], "outdated": 0}
    if not previous_storage:
        return {}
    outdated = previous_storage["outdated"] + rows["updated"] + rows["deleted"]
    return {"rows": previous_storage["rows"] + rows["inserted"] - rows["deleted"], "outdated": outdated}


def is_due(config: MergeEngineConfig, storage: Mapping[str, int]) -> bool:
    """Return whether the share of outdated rows exceeds the limit of the configuration."""
    if config.compact_ratio is None or not storage:
        return False
    return storage["outdated"] > config.compact_ratio * (storage["rows"] + storage["outdated"])
