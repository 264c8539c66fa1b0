"""Explain a row of a merge engine's target: read the records of its key again and repeat the fold.

Neither Spark nor Airflow is needed: the target's commits record which sources were folded, with which
options and up to which version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cmp_to_key
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_engine.accumulators import comes_before
from airflow_merge_provider.core.merge_engine.checks import plan_fold as planned
from airflow_merge_provider.core.merge_engine.columns import parse_columns
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.fold import Record
from airflow_merge_provider.core.merge_engine.plan import Plan
from airflow_merge_provider.core.merge_engine.trace import KeyTrace, trace_batches
from airflow_merge_provider.core.run.previous_run import list_state_commits
from airflow_merge_provider.core.run.reporter import RunResult
from airflow_merge_provider.core.run.table_log import LOG_RETENTION
from airflow_merge_provider.core.source_offset import SourceOffset, find_offset, read_offsets
from airflow_merge_provider.core.value_text import (
    DistantTime,
    Row,
    escape_text,
    format_row,
    format_value,
    to_json_value,
)
from airflow_merge_provider.delta_rs import open_table, read_columns
from airflow_merge_provider.explain.model.key import convert_key, fit_value, parse_key
from airflow_merge_provider.explain.reading import list_types, read_lineage
from airflow_merge_provider.explain.target import open_target

if TYPE_CHECKING:
    from deltalake import DeltaTable

_MERGE_ENGINE = "merge_engine"
_OFFSETS_EXPIRED_HINT = f"raise {LOG_RETENTION}, and run the task once with full_refresh=True"


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A record as it was read: the source and commit that it comes from, its row kind and its content."""

    source: str
    version: int
    row: int
    kind: str
    record: Record
    arrival: tuple[Any, ...] = field(repr=False)
    dropped: str = ""

    @property
    def place(self) -> str:
        """The source and version of the record."""
        return f"{PurePosixPath(self.source).name} version {self.version} row {self.row}"


@dataclass(frozen=True, slots=True)
class KeyExplanation:
    """The records of a key, oldest first, with the effect of each, and the origin of every column value."""

    key: Row
    read: tuple[SourceRecord, ...]
    trace: KeyTrace

    def format_lines(self) -> Iterator[str]:
        """Yield the explanation as text; records that an option dropped have no number."""
        row = "a row" if self.trace.is_live else "no row"
        yield f"{format_row(self.key)}: {row} from {len(self.read)} records"
        for record, number, effect in self._number_records():
            yield escape_text(
                f"  record {'-' if number is None else number}  {record.kind}  {record.place}: {effect}"
            )
        for name, source in self.trace.values.items():
            by = f" (record {', '.join(map(str, source.records))})" if source.records else ""
            yield f"  {escape_text(name)} = {format_value(source.value)}: {escape_text(source.why)}{by}"

    def as_object(self) -> dict[str, Any]:
        """Return the explanation as a JSON-compatible object."""
        columns = {
            name: {"value": to_json_value(source.value), "why": source.why, "records": list(source.records)}
            for name, source in self.trace.values.items()
        }
        records = [
            {
                "number": number,
                "source": record.source,
                "version": record.version,
                "row": record.row,
                "kind": record.kind,
                "did": effect,
            }
            for record, number, effect in self._number_records()
        ]
        key = to_json_value(self.key)
        return {"key": key, "row": self.trace.is_live, "columns": columns, "records": records}

    def _number_records(self) -> Iterator[tuple[SourceRecord, int | None, str]]:
        """Yield each record with its number and its effect; records dropped by an option were not folded."""
        folded = iter(enumerate(self.trace.did))
        for record in self.read:
            number, effect = (None, record.dropped) if record.dropped else next(folded)
            yield record, number, effect


def explain_key(
    target: str, key: str, *, warehouse: str | None = None, version: int | None = None
) -> KeyExplanation:
    """Return the records of a key, and which of them set the value of each column of its row.

    ``key`` is the value of the only key column, or a JSON object with the values of several columns.
    ``version`` is the version of the target to explain.

    :raises ConfigError: when the target or the key is not valid.
    :raises DataError: when the target was not written by a merge engine, or has no run metadata.
    """
    dataset, table = open_target(target, warehouse, version)
    uri = dataset.uri
    runs = _list_runs(dataset, table)
    state = runs[-1]
    columns = parse_columns(json.loads(table.schema().to_json())["fields"])
    plans = {
        source: planned(MergeEngineConfig.parse(config), columns)
        for source, config in state["configs"].items()
    }
    plan = next(iter(plans.values()))
    key_values = convert_key(parse_key(key, plan.key), list_types(table))
    records = [
        record
        for source, config in state["configs"].items()
        for record in _read_records(source, MergeEngineConfig.parse(config), plans[source], key_values, runs)
    ]
    records.sort(key=cmp_to_key(lambda first, second: _compare_records(plan, first, second)))
    if not records:
        raise DataError.from_problems(
            [
                Problem(
                    "key", "unknown", f"the sources of {uri} contain no record with {format_row(key_values)}"
                )
            ]
        )
    row_key = {name: records[0].record.values[name] for name in plan.key}
    return KeyExplanation(row_key, tuple(records), _trace_runs(plan, records))


def _trace_runs(plan: Plan, records: Sequence[SourceRecord]) -> KeyTrace:
    """Fold records run by run, since each run folded its records into the row before it."""
    folded = [record for record in records if not record.dropped]
    batches: dict[int, list[int]] = {}
    for position, record in enumerate(folded):
        batches.setdefault(record.arrival[0], []).append(position)
    return trace_batches(
        plan, [record.record for record in folded], [batches[run] for run in sorted(batches)]
    )


def _list_runs(dataset: Dataset, table: DeltaTable) -> Sequence[Mapping[str, Any]]:
    """Return the states of the runs that a version contains, oldest first; an undo or RESTORE removes runs.

    :raises DataError: if there are none.
    """
    lineage = read_lineage(dataset, table)
    runs = [commit.state for commit in reversed(list_state_commits(lineage.entries, _MERGE_ENGINE))]
    if runs and runs[-1].get("configs"):
        return runs
    message, hint = "has no commit of a merge engine in its history", "check the name of the target"
    if any(entry.is_reset for entry in lineage.entries):
        message, hint = "has no rows to explain: all its runs were undone", "run its task again"
    elif not lineage.is_complete:
        message, hint = "no longer has the commits of its runs in its history", _OFFSETS_EXPIRED_HINT
    raise DataError.from_problems([Problem("target", "foreign-target", f"{dataset.uri} {message}", hint)])


def _read_records(
    uri: str,
    config: MergeEngineConfig,
    plan: Plan,
    key: Row,
    runs: Sequence[Mapping[str, Any]],
) -> Iterator[SourceRecord]:
    """Yield the records of a key that each source contained at its last fold."""
    from deltalake.exceptions import DeltaError

    table_id = (runs[-1].get("tables") or {}).get(uri)
    source = SourceOffset(uri, None, table_id)
    offsets = [find_offset(read_offsets(run), source) for run in runs]
    versions = {
        run: offset.version for run, offset in enumerate(offsets) if offset and offset.version is not None
    }
    newest = list(versions.values())[-1]
    # A run that folded the whole source again made one batch of all records before it.
    full_runs = [run for run, state in enumerate(runs) if RunResult.from_state(state).run_mode == "full"]
    first_run = max(full_runs, default=0)
    try:
        # The files can be read as long as the table is open.
        table = open_table(uri, newest)
        dataset = table.to_pyarrow_dataset()
    # delta-rs raises a ValueError for statistics with a date that Python does not have.
    except (DeltaError, ValueError) as error:
        raise DataError(f"{uri} cannot be read at version {newest}: {error}") from None
    commits, key_values = _Commits(uri, newest), _fit_key(key, table)
    if key_values is None:
        return
    for fragment in dataset.get_fragments():
        rows = fragment.to_table(schema=dataset.schema)
        positions = list(_find_places(rows, key_values))
        version = commits.find_version(fragment.path) if positions else 0
        run = next(
            (run for run, offset in versions.items() if first_run <= run and version <= offset), first_run
        )
        for row in positions:
            values = {name: column[0] for name, column in read_columns(rows.slice(row, 1)).items()}
            yield _as_read(uri, config, plan, values, (run, version, fragment.path, row))


def _fit_key(key: Row, table: DeltaTable) -> Row | None:
    """Return a key by the names and with the values of a source's columns; None if a type lacks its value."""
    types = list_types(table)
    names = {name.casefold(): name for name in types}
    values = {names[name.casefold()]: value for name, value in key.items()}
    fitting = {
        name: None if value is None else fit_value(value, types[name]) for name, value in values.items()
    }
    is_complete = all(value is None or fitting[name] is not None for name, value in values.items())
    return fitting if is_complete else None


def _find_places(rows: Any, key: Row) -> Iterator[int]:
    """Yield the positions of the rows with a key."""
    (first, value), *other_columns = [(rows[name], value) for name, value in key.items()]
    for position in _find_value(first, value):
        if all(list(_find_value(column.slice(position, 1), other)) for column, other in other_columns):
            yield position


def _find_value(column: Any, value: Any) -> Iterator[int]:
    """Yield the positions of a value of a column's type; NULL equals NULL, and NaN equals NaN."""
    if isinstance(value, DistantTime):
        column, value = column.cast("int32" if str(column.type).startswith("date") else "int64"), value.number
    is_nan = isinstance(value, float) and math.isnan(value)
    if value is None or is_nan:
        marks = column.is_null(nan_is_null=is_nan).to_pylist()
        yield from (at for at, mark in enumerate(marks) if mark and column[at].is_valid == is_nan)
        return
    try:
        position = column.index(value).as_py()
    except (ValueError, OverflowError):
        # An integer beyond the type of the column.
        return
    while position >= 0:
        yield position
        position = column.index(value, start=position + 1).as_py()


def _as_read(
    uri: str,
    config: MergeEngineConfig,
    plan: Plan,
    values: Row,
    location: tuple[int, int, str, int],
) -> SourceRecord:
    value_by_name = {name.casefold(): value for name, value in values.items()}
    run, version, file, row = location
    kind_column = config.row_kind_column or plan.options.row_kind_field
    kind = str(value_by_name[kind_column.casefold()]).upper() if kind_column else "+I"
    clears = value_by_name.get((config.clear_column or "").casefold()) or ()
    cleared_names = clears.split(",") if isinstance(clears, str) else clears
    cleared = frozenset(word.strip().casefold() for word in cleared_names if word)
    record = Record(
        {
            name: None if name.casefold() in cleared else value_by_name.get(name.casefold())
            for name in plan.names
        },
        kind in {"+I", "+U"},
        kind == "-D",
        clears=cleared,
    )
    order_values = tuple(value_by_name[name.casefold()] for name in config.order_by)
    return SourceRecord(
        uri, version, row, kind, record, (run, *order_values, version, file, row), _explain_drop(plan, kind)
    )


def _explain_drop(plan: Plan, kind: str) -> str:
    if plan.options.ignore_delete and kind in {"-U", "-D"}:
        return "dropped by ignore-delete"
    if plan.options.ignore_update_before and kind == "-U":
        return "dropped by ignore-update-before"
    return ""


def _compare_records(plan: Plan, first: SourceRecord, second: SourceRecord) -> int:
    """Compare two records in fold order: by sequence, then by arrival."""
    sequences = [[record.record.values[name] for name in plan.sequence] for record in (first, second)]
    for pair, sign in ((sequences, -1), (sequences[::-1], 1)):
        if comes_before(zip(*pair, strict=True), descending=plan.options.descending):
            return sign
    arrivals = ((first.arrival, second.arrival, -1), (second.arrival, first.arrival, 1))
    return next((sign for a, b, sign in arrivals if comes_before(zip(a, b, strict=True))), 0)


class _Commits:
    """Find the versions of a source that added its files."""

    def __init__(self, uri: str, newest: int) -> None:
        self._uri, self._newest = uri, newest
        self._files: dict[int, frozenset[str]] = {}

    def find_version(self, path: str) -> int:
        """Return the version that added a file: all later versions contain it, no earlier one does."""
        name = PurePosixPath(path).name
        low, high = 0, self._newest
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if name in self._list_files(middle) else (middle + 1, high)
        return low

    def _list_files(self, version: int) -> frozenset[str]:
        from deltalake.exceptions import DeltaError

        if version not in self._files:
            try:
                uris = open_table(self._uri, version).file_uris()
            except DeltaError:
                # The log no longer contains this version, so no commit can be found for its files.
                uris = []
            self._files[version] = frozenset(PurePosixPath(uri).name for uri in uris)
        return self._files[version]
