"""The counts and details of a MergeRecord report: ended bins with their reasons, and open bins."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.core.change_plan.summary import EXAMPLES_MAX, ChangeExample, ChangeSummary
from airflow_merge_provider.core.merge_record.bins import EVICTED, EXPECTATION
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.plan import Plan, PlannedFailure, PlannedMerge, next_expiry
from airflow_merge_provider.core.merge_record.state import State
from airflow_merge_provider.core.report import Details, RowCounts
from airflow_merge_provider.core.run.reporter import RunResult
from airflow_merge_provider.core.run_mode import RunMode

_BINS_MAX = 5
_FILES_MAX = 10
_MICROS_PER_SECOND = 1_000_000


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
) -> Details:
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
    """Return the warnings for a result: files that failed, and bins that ``max_bins`` ended early."""
    warnings = []
    # There is a warning of its own for each expectation.
    if failures := [failure for failure in result.details["failed"] if failure["code"] != EXPECTATION]:
        first = f"{failures[0]['files'][0]}: {failures[0]['reason']}"
        warnings.append(describe_failed_files(result.counts["failed_files"] or 0, first))
    if evicted := result.details["reasons"].get(EVICTED.code, 0):
        warnings.append(
            f"{evicted} bins were ended by max_bins {config.max_bins} before they were full: "
            "increase max_bins"
        )
    return warnings


def describe_failed_files(count: int, first: str) -> str:
    """Return how many files fail, with the name of the first one and its reason."""
    more = f" (and {count - 1} more: see details.failed and the ledger)" if count > 1 else ""
    return f"{count} {'files' if count > 1 else 'file'} failed: {first}{more}"


def summarize_plan(plan: Plan) -> ChangeSummary:
    """Return the bins of a plan: those that become a file, those that fail, and those that stay open."""
    examples = [
        *(
            ChangeExample(
                kind="inserted", reason=merge.reason.code, detail=merge.reason.text,
                after={**_list_files(merge.sources), "records": merge.records, "bytes": merge.bytes},
            )
            for merge in plan.merges
        ),
        *(
            ChangeExample(
                kind="failed", reason=failure.reason.code, detail=_describe_culprit(failure),
                before=_list_files(failure.sources),
            )
            for failure in plan.failures
        ),
        *(
            ChangeExample(
                kind="kept", reason="open",
                after={**_list_files(bin_.sources), "records": bin_.records, "bytes": bin_.bytes},
            )
            for bin_ in plan.state.bins
        ),
    ]  # fmt: skip
    digest = hashlib.sha256(json.dumps(plan.as_json(), sort_keys=True).encode()).hexdigest()[:32]
    kinds = Counter({"inserted": 0, "failed": 0, "kept": 0} | Counter(one.kind for one in examples))
    reasons = Counter(example.reason for example in examples)
    shown = [
        example for kind in kinds for example in [one for one in examples if one.kind == kind][:EXAMPLES_MAX]
    ]
    return ChangeSummary.model_validate(
        {"kinds": kinds, "reasons": reasons, "examples": shown, "digest": digest}
    )


def _list_files(sources: Sequence[FlowFile]) -> dict[str, Any]:
    names = [PurePosixPath(source.uri).name for source in sources]
    more = [f"and {len(names) - _FILES_MAX} more"] if len(names) > _FILES_MAX else []
    return {"files": [*names[:_FILES_MAX], *more]}


def _describe_culprit(failure: PlannedFailure) -> str:
    """Return why a bin fails, with the name of the file that made it fail."""
    culprits = [source for source in failure.sources if source.uuid == failure.culprit]
    names = "".join(f" ({PurePosixPath(source.uri).name})" for source in culprits)
    return f"{failure.reason.text}{names}"


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
    return {
        "bin": failure.bin,
        "code": failure.reason.code,
        "reason": failure.reason.text,
        **_list_files(failure.sources),
    }


def _list_open_bins(state: State) -> list[dict[str, Any]]:
    """Return the oldest open bins with the value that their files are grouped by."""
    return [
        {
            "bin": bin_.id,
            "group": mask_text(bin_.group[-1]),
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
    return datetime.fromtimestamp(microseconds / _MICROS_PER_SECOND, tz=UTC).isoformat()
