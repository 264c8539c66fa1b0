"""What stands in for Spark in tests of the Airflow side: the one fake of this project."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult

REPORT = {
    "job": "merge_source",
    "changed": True,
    "dry_run": False,
    "target": {"dataset": "golden", "uri": "/lake/golden", "version": 3},
    "sources": {"crm": {"uri": "/lake/crm", "version": 7}, "erp": {"uri": "/lake/erp", "version": 2}},
    "counts": {"entities": 5, "outputs": 3, "new": 3, "changed": 0, "deleted": 0},
    "seconds": {"session": 4.0, "read": 0.5, "cluster": 1.25, "commit": 0.75},
    "warnings": [],
}


class FakeSparkJobHook:
    """Records the requests of operators and answers each with what the test laid out."""

    requests: ClassVar[list[JobRequest]] = []
    made_with: ClassVar[list[tuple[str, Any]]] = []
    answer: ClassVar[JobResult | JobFailure | Exception] = JobResult(report=REPORT)
    killed: ClassVar[int] = 0

    def __init__(self, conn_id: str, *, conf: Any = None) -> None:
        type(self).made_with.append((conn_id, conf))

    def submit(self, request: JobRequest) -> JobResult | JobFailure:
        type(self).requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def on_kill(self) -> None:
        type(self).killed += 1

    @classmethod
    def answering(cls, answer: JobResult | JobFailure | Exception) -> type[FakeSparkJobHook]:
        """Give a fresh fake with one answer."""
        return type("Fake", (cls,), {"requests": [], "made_with": [], "answer": answer, "killed": 0})


def unchanged() -> JobResult:
    """Give the answer of a run that found nothing new."""
    return JobResult(report={**REPORT, "changed": False, "counts": {"entities": 5, "outputs": 3}})
