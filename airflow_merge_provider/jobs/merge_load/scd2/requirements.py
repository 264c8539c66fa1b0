"""Refuse loads into a history that are late, or that would close too many versions."""

from __future__ import annotations

from datetime import datetime

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.config import AnyLoad
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from airflow_merge_provider.jobs.merge_load.scd2.history import LATE
from airflow_merge_provider.jobs.merge_load.scd2.snapshot import ENDED, VALID
from airflow_merge_provider.jobs.merge_load.writing import CountedChanges


def require_in_time(
    counted_changes: CountedChanges, config: AnyLoad, boundary: datetime, target: Dataset
) -> None:
    """Raise an error if the load is older than versions that it would change.

    :raises DataError: when it is.
    """
    late = counted_changes.counts.get(LATE, 0)
    if late:
        hint = "load in chronological order"
        if isinstance(config, Scd2Config) and config.natural_key is None:
            hint += "; with natural_key, on_late='repair' inserts late loads into the history"
        message = f"the load of {boundary.isoformat()} is older than {late} versions in {target.id}"
        raise DataError.from_problems([Problem("boundary_timestamp", "late", message, hint)])


def require_few_endings(counted_changes: CountedChanges, config: AnyLoad) -> None:
    """Raise an error if a snapshot would end a larger share of versions than allowed.

    :raises DataError: when it would.
    """
    max_ratio = getattr(config, "max_close_ratio", None)
    ended, valid = counted_changes.counts.get(ENDED, 0), counted_changes.counts.get(VALID, 0)
    if max_ratio is not None and ended > max_ratio * valid:
        message = (
            f"the load would close {ended} of {valid} valid versions, more than a share of {max_ratio:g}"
        )
        hint = "check whether the source is complete; if it is, increase max_close_ratio for this run"
        raise DataError.from_problems([Problem("max_close_ratio", "change-limit", message, hint)])
