"""What does a run of MergeRecord tell: how many bins ended and why, what stays open, and when it expires."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow_merge_provider.core.dataset import resolve
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.plan import Plan, next_expiry
from airflow_merge_provider.core.merge_record.reasons import EVICTED
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.protocol import JobRequest

_MOST_SHOWN = 5
_MOST_WARNINGS = 5
_MICROSECONDS = 1_000_000


def told_of(plans: Sequence[Plan], uris: Mapping[str, str], config: MergeRecordConfig) -> dict[str, Any]:
    """Sum up what plans do; the first merges and failures are shown, the ledger has them all."""
    merges = [merge for each in plans for merge in each.merges]
    failures = [failure for each in plans for failure in each.failures]
    reasons: Counter[str] = sum((Counter(each.reasons) for each in plans), Counter())
    return {
        "counts": {
            "merged": len(merges),
            "failed": len(failures),
            "outputs": sum(merge.records for merge in merges),
            "files": sum(len(merge.sources) for merge in merges),
            "failed_files": sum(len(failure.sources) for failure in failures),
            "lost_files": sum(len(each.lost) for each in plans),
            **_open_counts(plans[-1].state),
        },
        "reasons": dict(reasons),
        "merged": [
            {
                "merge_uuid": merge.id,
                "uri": uris.get(merge.id),
                "code": merge.reason.code,
                "reason": merge.reason.text,
                "records": merge.records,
                "files": len(merge.sources),
                "bytes": merge.bytes,
                "bin_age_ms": merge.age_ms,
            }
            for merge in merges[:_MOST_SHOWN]
        ],
        "failed": [
            {"bin": failure.bin, "code": failure.reason.code, "reason": failure.reason.text}
            for failure in failures[:_MOST_SHOWN]
        ],
        "open_bins": _open_bins(plans[-1].state),
        "next_expiry": _instant(next_expiry(plans[-1].state, config)),
        "warnings": _warnings(reasons, config),
    }


def report(
    request: JobRequest,
    config: MergeRecordConfig,
    told: Mapping[str, Any] | None,
    seconds: Mapping[str, float],
    said: Sequence[str],
    *,
    changed: bool,
    state: State | None = None,
) -> dict[str, Any]:
    """Put the report together; without anything told, that nothing has happened and what is still open."""
    idle: dict[str, Any] = {"counts": _open_counts(state or State())}
    if state is not None:
        idle |= {"open_bins": _open_bins(state), "next_expiry": _instant(next_expiry(state, config))}
    found = dict(told or idle)
    # Called as the user calls them: the configuration has them written out.
    merged, source = (resolve(request.config[name], request.warehouse) for name in ("merged", "source"))
    return {
        "job": request.job,
        "changed": changed and request.until == "commit",
        "dry_run": request.until != "commit",
        "target": {"dataset": merged.id, "uri": merged.uri, "version": None},
        "sources": {source.id: {"uri": source.uri, "version": None}},
        **found,
        "seconds": dict(seconds),
        "warnings": [*said, *found.get("warnings", ())][:_MOST_WARNINGS],
    }


def _open_counts(state: State) -> dict[str, int]:
    return {
        "open_bins": len(state.bins),
        "open_files": sum(len(bin_.sources) for bin_ in state.bins),
    }


def _open_bins(state: State) -> list[dict[str, Any]]:
    """Show the oldest bins that are open, with what they have in common."""
    return [
        {
            "bin": bin_.id,
            "group": bin_.group[-1],
            "records": bin_.records,
            "files": len(bin_.sources),
            "bytes": bin_.bytes,
            "since": _instant(bin_.created_at),
        }
        for bin_ in state.bins[:_MOST_SHOWN]
    ]


def _instant(microseconds: int | None) -> str | None:
    if microseconds is None:
        return None
    return datetime.fromtimestamp(microseconds / _MICROSECONDS, tz=UTC).isoformat()


def _warnings(reasons: Mapping[str, int], config: MergeRecordConfig) -> list[str]:
    if not (evicted := reasons.get(EVICTED.code, 0)):
        return []
    return [f"{evicted} bins were ended by max_bins {config.max_bins} before they were full: raise it"]
