"""Decide whether a merge engine has anything to fold, and whether it may continue its previous run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem
from airflow_merge_provider.core.merge_engine import refusals
from airflow_merge_provider.core.merge_engine.checks import check_columns, check_names, plan_fold
from airflow_merge_provider.core.merge_engine.columns import parse_columns
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.report import Measure
from airflow_merge_provider.core.run.columns import ReadFields
from airflow_merge_provider.core.run.decision import RunDecision
from airflow_merge_provider.core.run.previous_run import PreviousRun, load_previous_run
from airflow_merge_provider.core.run.reporter import Progress, RunReporter
from airflow_merge_provider.core.run.table_log import (
    PinnedDataset,
    TableLog,
    count_pinned,
    is_continued,
    pin_source,
    refuse_missing_dataset,
)
from airflow_merge_provider.core.run_mode import (
    FULL_REFRESH,
    NO_TARGET,
    NOTHING_CHANGED,
    RunMode,
    describe_changed_sources,
)
from airflow_merge_provider.core.source_offset import (
    RunState,
    SourceOffset,
    find_offset,
    find_replaced,
    read_offsets,
)

JOB = "merge_engine"
# The state names this many batches, each with the time of its run, and the time of the newest one that it has
# dropped, in microseconds since 1970 UTC.
_BATCHES_MAX = 100
_BATCHES, _DROPPED_BATCHES = "batches", "dropped_batches_until"
# The key of the options that the first run of a target has decided.
IMMUTABLE_OPTIONS = "immutable_options"


@dataclass(frozen=True)
class FoldDecision(RunDecision):
    """The decision about one fold of a source into a target."""

    config: MergeEngineConfig
    source: PinnedDataset
    log: TableLog
    reporter: RunReporter

    @property
    def batch(self) -> str | None:
        """The configured batch ID; if none is set and ``incremental`` is off, the ID of the run."""
        if self.config.batch_id is not None or self.config.incremental:
            return self.config.batch_id
        run = self.request.run
        return f"{run.dag_id}/{run.task_id}/{run.map_index}/{run.run_id}"

    @property
    def offset(self) -> SourceOffset | None:
        """The offset up to which the source was folded, even if it was at another location then."""
        return find_offset(read_offsets(self.state), self.source.offset)

    @property
    def since(self) -> int | None:
        """The version after which the source is read; None if all of it is."""
        offset = None if self.request.full_refresh else self.offset
        return None if offset is None else offset.version

    def find_example(self, name: str) -> str | None:
        """Return a value of a column of the source as text; None if it has none."""
        return self.log.read_example(self.source, name)

    @property
    def is_repeatable(self) -> bool:
        """Whether folding the same records again is safe; it is not for a snapshot without offsets."""
        return self.config.incremental

    def choose_run_mode(self) -> tuple[RunMode, str]:
        """Return the run mode and the reason for it.

        :raises ConfigError: if options have changed on which the stored rows depend.
        :raises DataError: if the source does not continue from where it was read.
        """
        if self.batch in _read_batches(self.state) and not self.request.full_refresh:
            reason = f"batch {self.batch!r} was already folded"
            self.reporter.add_warnings([f"{reason}: the run does nothing"])
            return "noop", reason
        self._require_known_batch()
        self._require_continuity()
        self.reporter.add_warnings(self.last.warnings if self.last else [])
        if self.last is None:
            return "initial", NO_TARGET
        if self.request.full_refresh:
            return "full", FULL_REFRESH
        if not self.config.incremental:
            return "full", "incremental is False: the whole source is one batch"
        if self.since is None:
            return "full", "the source is read for the first time"
        if self.since == self.source.version:
            return "noop", NOTHING_CHANGED
        return "incremental", describe_changed_sources(
            self.state, {self.source.dataset.id: self.source.offset}
        )

    def build_batches(self) -> RunState:
        """Return the part of the run's state that names the batches in the target."""
        state = {} if self.request.full_refresh else self.state
        batches = _read_batches(state) | ({self.batch: self.request.started_at} if self.batch else {})
        names = sorted(batches, key=lambda name: batches[name])
        former_names, stored_names = names[:-_BATCHES_MAX], names[-_BATCHES_MAX:]
        dropped_until = max([state.get(_DROPPED_BATCHES) or 0, *(batches[name] for name in former_names)])
        return {
            _BATCHES: {name: batches[name] for name in stored_names},
            **({_DROPPED_BATCHES: dropped_until} if dropped_until else {}),
        }

    def check_inputs(self, read_fields: ReadFields) -> None:
        config = self.config
        if not self.source.exists and (self.since is None or not config.incremental):
            raise refuse_missing_dataset(self.source.dataset)
        if not self.source.exists or self.source.dataset.format != "delta":
            return
        columns = parse_columns(read_fields(self.source))
        check_names(config, [column.name for column in columns])
        # The columns of kinds and of names to clear are read, but not stored.
        extra = {name.casefold() for name in (config.row_kind_column, config.clear_column) if name}
        columns = tuple(column for column in columns if column.name.casefold() not in extra)
        stored = self.pinned_target
        table_columns = columns if stored is None else parse_columns(read_fields(stored))
        # Changes of the source may also be retractions, which the job finds out.
        kinds = bool(config.row_kind_column or config.table_options.row_kind_field)
        plan_fold(config, table_columns, retracts=kinds)
        check_columns(config, columns, table_columns, self.find_example)

    def _require_known_batch(self) -> None:
        """Raise an error if the batch may be one that the state no longer names.

        :raises DataError: if the DAG run was cleared and a batch as old as it has been dropped from the
            state, or if the state has aged out.
        """
        if self.batch is None or self.request.full_refresh:
            return
        if self.config.batch_id is not None and self.last is not None and self.last.is_expired:
            message = (
                f"batch {self.batch!r} may have been folded: the commit that names the batches is no longer "
                "in the history of the target"
            )
            hint = "set another batch_id if it was not, or rebuild the target with full_refresh=True"
            raise _build_refusal("batch_id", message, hint)
        dropped_until, run_after = self.state.get(_DROPPED_BATCHES), self.request.run_after
        is_old = dropped_until and run_after is not None and run_after <= dropped_until
        if is_old and self.request.run.is_cleared:
            message = (
                f"batch {self.batch!r} may have been folded: this DAG run is older than the last "
                f"{_BATCHES_MAX} batches, which the target names"
            )
            hint = "fold it with a new DAG run if it was not, or rebuild the target with full_refresh=True"
            raise _build_refusal("batch_id", message, hint)

    def _require_continuity(self) -> None:
        """Raise an error if the previous run's configuration or offsets do not allow continuing.

        :raises ConfigError: if options have changed on which the stored rows depend.
        :raises DataError: if the offset of the source is unknown or belongs to another table.
        """
        if self.last is None:
            return
        target, offsets = self.reporter.target, read_offsets(self.last.state)
        if self.request.full_refresh:
            own_offsets = (self.offset, find_replaced(offsets, self.source.offset))
            _require_single_source(target, [offset.uri for offset in offsets if offset not in own_offsets])
            return
        if self.config.incremental:
            self._require_offset(self.last, target, offsets)
        if self.state and IMMUTABLE_OPTIONS not in self.state:
            message = f"the options with which {target.uri} was written are not known to this version"
            raise _build_refusal("target", message, "run once with full_refresh=True")
        previous_options = self.state.get(IMMUTABLE_OPTIONS, {})
        problems = list(refusals.find_breaks(previous_options, refusals.build_fixed_settings(self.config)))
        if problems:
            raise ConfigError.from_problems(problems)

    def _require_offset(
        self, previous: PreviousRun, target: Dataset, offsets: Sequence[SourceOffset]
    ) -> None:
        if previous.is_expired:
            message = f"the history of {target.uri} no longer contains the source offset of the previous run"
            raise _build_refusal("source", message, "run once with full_refresh=True")
        if reason := _find_break(self.log, self.source, offsets, self.offset):
            message = f"the changes of {self.source.dataset.uri} cannot be read: {reason}"
            raise _build_refusal(
                "source", message, "run once with full_refresh=True, or set incremental=False"
            )


def decide_fold(
    config: MergeEngineConfig, source: PinnedDataset, log: TableLog, reporter: RunReporter
) -> FoldDecision:
    """Return the decision about a fold whose source and target were found, with its warnings."""
    reporter.add_warnings(config.list_warnings())
    return FoldDecision(config, source, log, reporter)


def open_run(
    log: TableLog, config: MergeEngineConfig, request: JobRequest, progress: Progress
) -> FoldDecision:
    """Find the source and the target of a fold, and return the decision about it.

    :raises ConfigError: if the source or the target is not set or not valid.
    :raises DataError: if the source or the target is something other than expected.
    :raises RequiresSparkError: if only Spark can read one of them.
    """
    target = resolve_dataset(require_dataset("target", config.target), request.warehouse, at="target")
    last = load_previous_run(log, target, JOB, request)
    source = resolve_dataset(require_dataset("source", config.source), request.warehouse, at="source")
    pinned = pin_source(log, source, request)
    reporter = RunReporter(count_pinned(log), request, progress, COUNTS, target, {source.id: pinned}, last)
    return decide_fold(config, pinned, log, reporter)


def require_dataset(path: str, ref: str | None) -> str:
    """Return a dataset that a run needs.

    :raises ConfigError: if it is not set.
    """
    if ref is None:
        raise ConfigError.from_problems([Problem(path, "missing", "is required", "set a dataset")])
    return ref


def _read_batches(state: RunState) -> dict[str, int]:
    """Return the batches in the target with the times of their runs."""
    return dict(state.get(_BATCHES) or {})


def _build_refusal(path: str, message: str, hint: str) -> DataError:
    return DataError.from_problems([Problem(path, "refused", message, hint)])


def _require_single_source(target: Dataset, other_uris: Sequence[str]) -> None:
    if other_uris:
        message = f"{target.uri} also contains rows of other sources: {', '.join(other_uris)}"
        raise _build_refusal("full_refresh", message, "drop the target, and fold each source again")


def _find_break(
    log: TableLog, source: PinnedDataset, offsets: Sequence[SourceOffset], offset: SourceOffset | None
) -> str | None:
    """Return why a source does not continue the table that was folded; None if it does."""
    if offset is None:
        if find_replaced(offsets, source.offset) is not None:
            return "the table at this location was recreated after it was folded"
        copies = [
            candidate.uri
            for candidate in offsets
            if candidate.table_id and candidate.table_id == source.table_id
        ]
        return f"the folded table can be any of the copies {', '.join(copies)}" if copies else None
    if source.dataset.format != "delta" or source.version is None or is_continued(log, source, offset):
        return None
    if offset.version is not None and source.version < offset.version:
        # Reading from the offset reports this error.
        return None
    return (
        f"its version {offset.version} is not the version that was folded, as in a copy with another history"
    )


COUNTS = (
    Measure("records", "records", "Records of the batch."),
    Measure("keys", "keys", "Keys of the batch."),
    Measure("unchanged_keys", "keys", "Keys of the batch whose row did not change."),
    Measure(
        "late",
        "records",
        "Records older than the stored row, by `sequence.field` or by every sequence group that they set.",
    ),
    Measure("filled_holes", "keys", "Keys that have only late records and whose row changed."),
    Measure(
        "missed_deletes",
        "records",
        "Deletes that did not remove the row because they are late or have no sequence.",
    ),
    Measure("ties", "records", "Records with the same `sequence.field` as another record of their key."),
    Measure("null_sequence", "records", "Records with NULL in `sequence.field`, which is the oldest value."),
    Measure("lone_updates", "keys", "Keys whose newest record is a `-U`, without a `+U` that follows it."),
    Measure(
        "orphan_retracts", "keys", "Keys with retractions that have a row neither before nor after the run."
    ),
    Measure("ignored_retracts", "records", "Records dropped by `ignore-delete` or `ignore-update-before`."),
    Measure("tombstones", "keys", "Removed keys that the run recorded for `tombstone_retention`."),
)


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


def is_compaction_due(config: MergeEngineConfig, storage: Mapping[str, int]) -> bool:
    """Return whether the share of outdated rows in the files of the target exceeds the limit.

    A changed row leaves its old version in its file, marked by a deletion vector that every reader has to
    process.
    """
    if config.compact_ratio is None or not storage:
        return False
    return storage["outdated"] > config.compact_ratio * (storage["rows"] + storage["outdated"])
