"""The counts and details of a MergeRecord report: ended bins with their reasons, and open bins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.plan import Plan, PlannedFailure, PlannedMerge, next_expiry
from airflow_merge_provider.core.merge_record.reasons import EVICTED
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.report import RowCounts
from airflow_merge_provider.core.run.reporter import RunResult
from airflow_merge_provider.core.run_mode import RunMode

_BINS_MAX = 5
_MICROSECONDS = 1_000_000


def build_result(
    run_mode: RunMode,
    reason: str,
    plans: Sequence[Plan],
    uris: Mapping[str, str],
    config: MergeRecordConfig,
) -> RunResult:
    """Build the result of plans; details cover the first merges and failures, the ledger contains all.

    :param uris: the places of merged files by the ids of their merges, as far as they were published.
    """
    merges = [merge for plan in plans for merge in plan.merges]
    failures = [failure for plan in plans for failure in plan.failures]
    reasons: Counter[str] = sum((Counter(plan.reasons) for plan in plans), Counter())
    state = plans[-1].state
    outputs = sum(merge.records for merge in merges)
    counts = {
        "merged": len(merges),
        "outputs": outputs,
        "files": sum(len(merge.sources) for merge in merges),
        "failed": len(failures),
        "failed_files": sum(len(failure.sources) for failure in failures),
        "lost_files": sum(len(plan.lost) for plan in plans),
        **count_open(state),
    }
    details = build_details(
        state,
        config,
        reasons=dict(reasons),
        merged=[_describe_merge(merge, uris.get(merge.id)) for merge in merges[:_BINS_MAX]],
        failed=[_describe_failure(failure) for failure in failures[:_BINS_MAX]],
    )
    return RunResult(run_mode, reason, RowCounts(inserted=outputs, updated=0, deleted=0), counts, details)


def build_details(
    state: State,
    config: MergeRecordConfig,
    *,
    reasons: Mapping[str, int] | None = None,
    merged: Sequence[Mapping[str, Any]] = (),
    failed: Sequence[Mapping[str, Any]] = (),
    ledger: str | None = None,
) -> dict[str, Any]:
    """Build the details of a run that ends with a state.

    ``reasons`` counts the ended bins by reason. ``merged`` and ``failed`` list the first merges and failures,
    ``open_bins`` lists the oldest open bins, and ``next_expiry`` is the time when the next open bin expires.
    ``ledger`` is the file that lists all files of the run.
    """
    return {
        "reasons": dict(reasons or {}),
        "merged": list(merged),
        "failed": list(failed),
        "open_bins": _list_open_bins(state),
        "next_expiry": _to_instant(next_expiry(state, config)),
        "ledger": ledger,
    }


def list_result_warnings(result: RunResult, config: MergeRecordConfig) -> list[str]:
    """Return the warnings for a result: bins that ``max_bins`` ended early."""
    evicted = result.details["reasons"].get(EVICTED.code, 0)
    if not evicted:
        return []
    return [
        f"{evicted} bins were ended by max_bins {config.max_bins} before they were full: increase max_bins"
    ]


def count_open(state: State) -> dict[str, int]:
    """Count the open bins and their files."""
    return {
        "open_bins": len(state.bins),
        "open_files": sum(len(bin_.sources) for bin_ in state.bins),
    }


def _describe_merge(merge: PlannedMerge, uri: str | None) -> dict[str, Any]:
    return {
        "merge_uuid": merge.id,
        "uri": uri,
        "code": merge.reason.code,
        "reason": merge.reason.text,
        "records": merge.records,
        "files": len(merge.sources),
        "bytes": merge.bytes,
        "bin_age_ms": merge.age_ms,
    }


def _describe_failure(failure: PlannedFailure) -> dict[str, Any]:
    return {"bin": failure.bin, "code": failure.reason.code, "reason": failure.reason.text}


def _list_open_bins(state: State) -> list[dict[str, Any]]:
    """Return the oldest open bins with the value that their files are grouped by."""
    return [
        {
            "bin": bin_.id,
            "group": bin_.group[-1],
            "records": bin_.records,
            "files": len(bin_.sources),
            "bytes": bin_.bytes,
            "since": _to_instant(bin_.created_at),
        }
        for bin_ in state.bins[:_BINS_MAX]
    ]


def _to_instant(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    return datetime.fromtimestamp(microseconds / _MICROSECONDS, tz=UTC).isoformat()
