"""The only fake of Spark in this project, for tests of the Airflow side."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_merge_provider.core.capabilities import JOBS
from airflow_merge_provider.core.failure_report import TargetState
from airflow_merge_provider.core.merge_source.decision import COUNTS
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult
from airflow_merge_provider.core.report import Report, fill_counts
from airflow_merge_provider.core.run_sentence import summarize_run

REPORT: dict[str, Any] = {
    "job": "merge_source",
    "changed": True,
    "dry_run": False,
    "run_mode": "incremental",
    "run_mode_reason": "changed since the previous run: crm",
    "target": {"dataset": "golden", "uri": "/lake/golden", "version_before": 2, "version": 3},
    "sources": {
        "crm": {"uri": "/lake/crm", "version": 7, "rows": 3},
        "erp": {"uri": "/lake/erp", "version": 2, "rows": 2},
    },
    "rows": {"inserted": 2, "updated": 1, "deleted": 0, "unchanged": 0},
    "counts": {**fill_counts(COUNTS, {}), "entities": 5, "live_rows": 3, "merged_rows": 1},
    "details": {"cluster_sizes": {"1": 2, "3": 1}},
    "seconds": {"launch": 1.5, "session": 4.0, "read": 0.5, "cluster": 1.25, "commit": 0.75, "other": 0.1},
    "warnings": [],
    "populated": None,
    "became_populated": False,
    "approved_by": None,
    "plan": None,
    "expectations": [],
    "summary": "",
    "truncated": [],
}


def build_report(**changes: Any) -> Report:
    """Return the report with other values."""
    return Report.model_validate({**REPORT, **changes})


# As operators add it.
REPORT["summary"] = summarize_run(build_report(), JOBS[REPORT["job"]].describe_run)


class FakeSparkJobHook:
    """Fake hook that records the requests of operators and answers each one with a prepared result."""

    requests: ClassVar[list[JobRequest]] = []
    init_arguments: ClassVar[list[tuple[str, Any]]] = []
    answer: ClassVar[JobResult | JobFailure | BaseException] = JobResult(report=build_report())
    killed: ClassVar[int] = 0
    target_state: ClassVar[TargetState | None] = None

    def __init__(self, conn_id: str, merge_store_conn_id: str = "", *, conf: Any = None) -> None:
        type(self).init_arguments.append((conn_id, conf))

    def submit(self, request: JobRequest) -> JobResult | JobFailure:
        type(self).requests.append(request)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def find_target_state(self, request: JobRequest) -> TargetState | None:
        return self.target_state

    def on_kill(self) -> None:
        type(self).killed += 1

    @classmethod
    def create_fake(cls, answer: JobResult | JobFailure | BaseException) -> type[FakeSparkJobHook]:
        """Return a new fake hook with one answer."""
        return type("Fake", (cls,), {"requests": [], "init_arguments": [], "answer": answer, "killed": 0})


def build_unchanged() -> JobResult:
    """Return the result of a run that found no changes."""
    rows = {"inserted": 0, "updated": 0, "deleted": 0, "unchanged": 3}
    reason = "no source has changed since the previous run"
    report = build_report(run_mode="noop", run_mode_reason=reason, changed=False, rows=rows)
    return JobResult(report=report)
