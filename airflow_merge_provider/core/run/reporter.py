"""Build the report of a run, the same keys for every capability and run, and print its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from airflow_merge_provider.core.change_plan.summary import ChangeSummary
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.expectations.config import EXPECT, parse_expectations
from airflow_merge_provider.core.expectations.result import (
    REJECTED_ROWS,
    ExpectationResult,
    build_result,
    check_freshness,
    list_warnings,
    require_success,
)
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import (
    OTHER,
    Details,
    Measure,
    Report,
    RowCounts,
    SourceReport,
    TargetReport,
    clear_run_counts,
    fill_counts,
)
from airflow_merge_provider.core.run.previous_run import (
    HAS_UNNAMED_SIDE_TABLES,
    RESULT,
    TOKEN,
    VERSION_BEFORE,
    PreviousRun,
    RunCommit,
)
from airflow_merge_provider.core.run.table_log import CountRows, Fields, PinnedDataset
from airflow_merge_provider.core.run_mode import RunMode
from airflow_merge_provider.core.source_offset import RunState, write_offsets
from airflow_merge_provider.core.table_history import UNDO


class Progress:
    """Printer of one line per step, which collects what the result of a run contains besides its report.

    ``seconds`` are the durations of the steps. ``schemas`` are the columns in Spark's JSON form of datasets
    that the run has read or written, by their URIs; other schemas are read from the logs if they are needed.
    """

    def __init__(self, out: Callable[[str], object] | None = None) -> None:
        self._out = out or _print_line
        self._start = time.monotonic()
        self.seconds: dict[str, float] = {}
        # The seconds of the steps inside each step that is not over.
        self._nested_seconds: list[float] = []
        self.schemas: dict[str, Fields] = {}

    def log_line(self, text: str) -> None:
        """Print a line, prefixed with the seconds since the start."""
        self._out(f"[merge +{time.monotonic() - self._start:5.1f}s] {text}")

    @contextmanager
    def time_step(self, name: str) -> Iterator[None]:
        """Measure the block and print its duration at the end; durations under the same name are added up.

        The steps inside the block are not part of its duration.
        """
        start = time.monotonic()
        self._nested_seconds.append(0.0)
        try:
            yield
        finally:
            elapsed = time.monotonic() - start
            duration = elapsed - self._nested_seconds.pop()
            if self._nested_seconds:
                self._nested_seconds[-1] += elapsed
        self.seconds[name] = round(self.seconds.get(name, 0.0) + duration, 3)
        self.log_line(f"{name}: {duration:.1f}s")

    def record_schema(self, uri: str, fields: Fields) -> None:
        """Record the columns of a dataset, so that its log is not read for them again."""
        self.schemas[uri] = fields

    def list_seconds(self) -> dict[str, float]:
        """Return the seconds of every step, and as ``other`` the rest of the duration until now."""
        total = time.monotonic() - self._start
        return {**self.seconds, OTHER: round(max(total - sum(self.seconds.values()), 0.0), 3)}


def _print_line(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the task log is the process's output


CHANGED, APPROVED_BY, EXPECTATIONS = "changed", "approved_by", "expectations"
_WARNINGS_MAX = 5


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. Its commit carries it, so that retries and runs without work report it again.

    ``counts`` may leave out zeros; ``details`` is specific to the capability. ``version_before`` is the
    version of the target that the run found. ``records`` is the number of records that no later run reads
    again once the source offsets are committed; 0 if every run reads them, or every run commits. ``changed``
    says whether the run changes rows.
    """

    run_mode: RunMode
    reason: str
    rows: RowCounts = field(default_factory=RowCounts)
    counts: Mapping[str, int | None] = field(default_factory=dict)
    details: Details = field(default_factory=dict)
    version_before: int | None = None
    records: int = 0
    changed: bool = True

    def to_state(self) -> RunState:
        """Return the result in the form that the state of a commit holds."""
        return {
            "run_mode": self.run_mode,
            "reason": self.reason,
            "rows": self.rows.model_dump(),
            "counts": dict(self.counts),
            "details": dict(self.details),
            VERSION_BEFORE: self.version_before,
        }

    @classmethod
    def from_state(cls, state: RunState) -> Self:
        """Read the result from the state of a commit."""
        stored = state.get(RESULT)
        if not stored:
            return cls("full", "the commit does not record the result of the run")
        rows = RowCounts.model_validate(stored["rows"])
        return cls(
            stored["run_mode"], stored["reason"], rows, stored["counts"], stored["details"],
            stored[VERSION_BEFORE],
        )  # fmt: skip


@dataclass
class RunReporter:
    """Collector of the values that the report of a run needs, and builder of the report.

    ``previous`` is the previous run of the target, None if there is no target yet. ``source_rows`` are the
    sizes of sources that the run has counted; ``count_rows`` reads those of the others from the log.
    ``rejection`` says what the run does with rows of an expectation with the action ``quarantine``.
    """

    count_rows: CountRows
    request: JobRequest
    progress: Progress
    measures: Sequence[Measure]
    target: Dataset
    sources: Mapping[str, PinnedDataset]
    previous: PreviousRun | None
    warnings: list[str] = field(default_factory=list)
    source_rows: dict[str, int] = field(default_factory=dict)
    expectations: dict[tuple[str, str | None], ExpectationResult] = field(default_factory=dict)
    rejection: str = REJECTED_ROWS

    def __post_init__(self) -> None:
        self.add_warnings(() if self.previous is None else self.previous.integrity_warnings)

    @property
    def is_dry_run(self) -> bool:
        """Whether the run stops before its commit."""
        return self.request.until != "commit"

    @cached_property
    def rows_before(self) -> int | None:
        """The number of rows that the run found in the target; None if only a scan can determine it."""
        if self.previous is None:
            return 0
        return self.count_rows(PinnedDataset(self.target, self.previous.version))

    @property
    def version_before(self) -> int | None:
        """The version of the target that the run found."""
        return None if self.previous is None else self.previous.version

    def build_state(self, result: RunResult) -> RunState:
        """Return the common part of every commit's state: the run, the versions it read, and its result."""
        approver = self.request.apply_plan and self.request.apply_plan.approved_by
        is_unnamed = self.previous is not None and self.previous.has_unnamed_side_tables
        expectations = [item.model_dump(exclude={"examples"}) for item in self.expectations.values()]
        return {
            TOKEN: self.request.run.model_dump(),
            **({APPROVED_BY: approver} if approver else {}),
            **write_offsets(source.offset for source in self.sources.values()),
            **({HAS_UNNAMED_SIDE_TABLES: True} if is_unnamed else {}),
            RESULT: replace(result, version_before=self.version_before).to_state(),
            CHANGED: result.changed,
            **({EXPECTATIONS: expectations} if expectations else {}),
        }

    def add_warnings(self, texts: Iterable[str]) -> None:
        """Add warnings and print them; each is shown once."""
        for text in texts:
            if text not in self.warnings:
                self.warnings.append(text)
                self.progress.log_line(f"warning: {text}")

    def add_expectations(self, results: Iterable[ExpectationResult]) -> None:
        """Add the results of expectations, and a warning for each that fails without stopping the run.

        A run that reads a source again replaces the results of its first read.
        """
        for result in results:
            self.expectations[result.name, result.source] = result
        self.add_warnings(list_warnings(self.expectations.values(), self.rejection))

    def build_report(
        self,
        result: RunResult,
        *,
        version: int | None = None,
        changed: bool = False,
        plan: ChangeSummary | None = None,
    ) -> Report:
        """Return the report of a successful run; ``version`` is the version that it committed.

        ``plan`` are the changes of a run without a commit.
        """
        sources = self._describe_sources()
        self.add_warnings(_build_empty_warning(name) for name, source in sources.items() if source.rows == 0)
        target = TargetReport(
            dataset=self.target.id,
            uri=self.target.uri,
            version_before=self.version_before,
            version=self.version_before if version is None else version,
        )
        return Report(
            job=self.request.job,
            run_mode=result.run_mode,
            run_mode_reason=result.reason,
            changed=changed and not self.is_dry_run,
            dry_run=self.is_dry_run,
            target=target,
            sources=sources,
            rows=result.rows,
            counts=fill_counts(self.measures, result.counts),
            details=dict(result.details),
            seconds=self.progress.list_seconds(),
            warnings=self._select_warnings(),
            approved_by=self.request.apply_plan.approved_by if changed and self.request.apply_plan else None,
            plan=plan,
            expectations=list(self.expectations.values()),
        )

    def build_plan(self, run_mode: RunMode, reason: str, details: Details) -> Report:
        """Return the report of a run that only plans: it reads no rows, so it has no counts."""
        unknown = {measure.name: None for measure in self.measures}
        return self.build_report(RunResult(run_mode, reason, RowCounts(), unknown, details))

    def build_retry(self, commit: RunCommit, details: Details | None = None) -> Report:
        """Return the report of a run whose earlier attempt has committed: the report of that commit.

        :param details: what the commit does not record.
        """
        result = RunResult.from_state(commit.state)
        reason = f"{result.reason}; an earlier attempt of this run committed version {commit.version}"
        counts = {measure.name: result.counts.get(measure.name, 0) for measure in self.measures}
        retry_result = replace(
            result, reason=reason, counts=counts, details={**result.details, **(details or {})}
        )
        report = self.build_report(
            retry_result, version=commit.version, changed=commit.state.get(CHANGED, True)
        )
        target = report.target.model_copy(update={"version_before": result.version_before})
        return report.model_copy(
            update={
                "target": target,
                "approved_by": commit.state.get(APPROVED_BY),
                "expectations": _read_expectations(commit.state),
            }
        )

    def build_noop(self, reason: str) -> Report:
        """Return the report of a run without work: the target is as the previous run left it.

        :raises DataError: if a source is not fresh, although nothing has changed in it.
        """
        self._check_freshness()
        state = self.previous.state if self.previous else {}
        # The result of an undo has the counts of another job.
        last = RunResult.from_state({} if UNDO in state else state)
        counts = clear_run_counts(self.measures, last.counts)
        rows = RowCounts.for_noop(unchanged=self.rows_before)
        return self.build_report(RunResult("noop", reason, rows, counts, last.details))

    def _check_freshness(self) -> None:
        """Compare the newest times that the previous run has read with the time of this run.

        :raises DataError: if an expectation with the action ``fail`` fails.
        """
        if self.previous is None:
            return
        expectations = {item.name: item for item in parse_expectations(self.request.config.get(EXPECT))}
        results = []
        for stored in _read_expectations(self.previous.state):
            item = expectations.get(stored.name)
            if item is not None and item.kind == "freshness":
                is_fresh = check_freshness(item, stored.newest, self.request.started_at)
                failed = 0 if is_fresh else max(stored.rows, 1)
                results.append(
                    build_result(item, stored.source, rows=stored.rows, failed=failed, newest=stored.newest)
                )
        self.add_expectations(results)
        require_success(results)

    def _select_warnings(self) -> list[str]:
        """Return the first warnings, and the number of further ones."""
        more = len(self.warnings) - _WARNINGS_MAX
        return [
            *self.warnings[:_WARNINGS_MAX],
            *([f"{more} more warnings are in the log"] if more > 0 else []),
        ]

    def _describe_sources(self) -> dict[str, SourceReport]:
        return {
            name: SourceReport(uri=source.dataset.uri, version=source.version, rows=self._count_source(name))
            for name, source in self.sources.items()
        }

    def _count_source(self, name: str) -> int | None:
        row_count = self.source_rows.get(name)
        return self.count_rows(self.sources[name]) if row_count is None else row_count


def _read_expectations(state: RunState) -> list[ExpectationResult]:
    return [ExpectationResult.model_validate(item) for item in state.get(EXPECTATIONS) or ()]


def _build_empty_warning(name: str) -> str:
    return f"the source {name!r} has no rows: check the name of the dataset, and the run that writes it"
