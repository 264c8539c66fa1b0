"""The queries of the dataset page: what the logs and the rows of a target answer, without Spark and Airflow.

Each query returns a JSON object with a bounded number of rows. Values of rows pass the masks of ``[merge]``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from airflow_merge_provider.core.capabilities import CAPABILITIES, JOBS, list_internal_columns
from airflow_merge_provider.core.change_plan.shown_rows import (
    MASK,
    ShownRows,
    mask_change,
    mask_row,
    mask_text,
    parse_shown_rows,
    use_shown_rows,
)
from airflow_merge_provider.core.change_plan.summary import ChangeExample, ChangeKind
from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import DataError, MergeError, Problem
from airflow_merge_provider.core.expectations.config import REJECTED, REJECTED_OWNER, REJECTED_SUFFIX
from airflow_merge_provider.core.expectations.result import ExpectationResult
from airflow_merge_provider.core.merge_source.explanation import (
    EntityExplanation,
    Explanation,
    describe_member_changes,
)
from airflow_merge_provider.core.population import FLAG, WRITER
from airflow_merge_provider.core.protocol import Job
from airflow_merge_provider.core.report import Report, RowCounts, SourceReport, TargetReport
from airflow_merge_provider.core.run.previous_run import (
    SIDE_TABLE_VERSIONS,
    list_commits_in_force,
    list_state_commits,
)
from airflow_merge_provider.core.run.reporter import APPROVED_BY, EXPECTATIONS, RunResult
from airflow_merge_provider.core.run_sentence import summarize_run
from airflow_merge_provider.core.source_offset import read_offsets
from airflow_merge_provider.core.table_history import RESTORED_VERSION, UNDO, HistoryEntry, trace_lineage
from airflow_merge_provider.core.value_text import Row, to_json_value
from airflow_merge_provider.delta_rs import count_rows, is_table
from airflow_merge_provider.explain.diff import count_differing_bytes, open_versions, read_changes
from airflow_merge_provider.explain.dispatch import explain_target, list_history, trace_key
from airflow_merge_provider.explain.merge_record import find_state_folders, list_bins
from airflow_merge_provider.explain.merge_source import read_members
from airflow_merge_provider.explain.model.commits import CommitRef
from airflow_merge_provider.explain.model.history import HistoryColumns
from airflow_merge_provider.explain.reading import list_types, open_version, query_rows, read_lineage
from airflow_merge_provider.explain.target import (
    find_row_columns,
    identify_owner,
    open_target,
    read_history_columns,
    refuse_owner,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

JsonObject = dict[str, Any]
# The rows of a page, the commits that it reads, and the compressed bytes by which two versions differ.
PAGE_ROWS = 50
COMMITS_MAX = 2000
CHANGES_MAX_BYTES = 32 * 1024 * 1024
_SHOWN_BINS_MAX = 50
_SHOWN_MEMBERS_MAX = 20
_MEMBERS, _ID = "_members", "_id"
# What a state that another program wrote may raise when it is read.
_DAMAGED = (AttributeError, KeyError, TypeError, ValueError)
# The names of rows in explanations, and of texts that may have values of rows.
_ROW_FIELDS = frozenset({"key", "rows", "removed", "added", "values"})
_VALUE_FIELDS = frozenset({"detail", "effect", "why", "did", "reason", "reasons", "key", "group", "culprit"})
_CONFIGS = ("config", "configs", "join")


class TooLargeError(DataError):
    """Raised when an answer would take more memory than a query may; the command line has no such limit."""

    code = "too-large"


@dataclass(frozen=True, slots=True)
class QueryTarget:
    """The target of a query: its reference, the warehouse, and the settings of ``[merge]`` about rows."""

    text: str
    warehouse: str | None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def dataset(self) -> Dataset:
        """The dataset that the reference names."""
        return resolve_dataset(self.text, self.warehouse, at="target")

    def has_files(self) -> bool:
        """Return whether the target is a folder of a merge record."""
        path = self.dataset.path
        return path is not None and not is_table(path) and bool(find_state_folders(self.dataset))

    def open(self) -> tuple[Dataset, DeltaTable]:
        """Open the target.

        :raises DataError: if it is not a Delta table, or not one that this package writes.
        """
        dataset, table = open_target(self.text, self.warehouse)
        owner = identify_owner(table)
        if owner not in CAPABILITIES:
            raise refuse_owner(dataset, owner, "this package")
        return dataset, table

    def choose_shown_rows(self, dataset: Dataset, table: DeltaTable) -> ShownRows:
        """Return what may be shown of the rows of the target."""
        owner = identify_owner(table)
        keys = [*find_row_columns(dataset, table), *CAPABILITIES[cast("Job", owner)].output_keys]
        if owner == "joiner":
            keys += _list_join_keys(dataset, table)
        shown = parse_shown_rows(self.settings.get, keys)
        if owner == "merge_source" and shown.masked_columns:
            # An ID consists of those of its members, which have values of any column, under other names.
            masked = tuple(dict.fromkeys((*shown.masked_columns, *keys, _MEMBERS)))
            return shown.model_copy(update={"masked_columns": masked})
        return shown


def read_about(target: QueryTarget) -> JsonObject:
    """Return the columns, the sources, the configuration and the size of a target, from its log."""
    if target.has_files():
        states = [_read_commit(entry).state for entry in list_history(target.text, target.warehouse, 1)]
        facts = {"location": target.dataset.uri, "owner": "merge_record", "is_table": False, "columns": []}
        return {**facts, "sources": _list_sources(states), "config": None, "populated": None}
    dataset, table = target.open()
    owner, internal = identify_owner(table), set(list_internal_columns(identify_owner(table)))
    keys, properties = find_row_columns(dataset, table), table.metadata().configuration
    commits = map(_read_commit, read_lineage(dataset, table).entries)
    states = [commit.state for commit in commits if commit.state.get("capability") == owner]
    sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist()
    fields = json.loads(table.schema().to_json())["fields"]
    return {
        "location": dataset.uri,
        "owner": owner,
        "is_table": True,
        "version": table.version(),
        "rows": count_rows(table, table.version(), live=True),
        "files": len(sizes),
        "bytes": sum(sizes),
        "populated": properties.get(FLAG) == "true",
        "has_vectors": "deletionVectors" in (table.protocol().reader_features or ()),
        "columns": [
            {
                "name": item["name"],
                "type": item["type"] if isinstance(item["type"], str) else json.dumps(item["type"]),
                "nullable": item["nullable"],
                "comment": item.get("metadata", {}).get("comment"),
                "is_key": item["name"] in keys,
                "is_internal": item["name"] in internal,
            }
            for item in fields
        ],
        "sources": _list_sources(states),
        "config": next((state[name] for state in states for name in _CONFIGS if name in state), None),
    }


def list_runs(target: QueryTarget, before: int | None = None, limit: int = PAGE_ROWS) -> JsonObject:
    """Return the commits before a version, newest first: runs, undos, maintenance, those of other programs.

    :raises TooLargeError: if too many commits are newer than the page.
    """
    owner = "merge_record"
    if not (has_files := target.has_files()):
        _, table = target.open()
        owner = str(identify_owner(table))
    newest = list_history(target.text, target.warehouse, 1)
    top = newest[0].version if newest else 0
    start = top if before is None else min(before - 1, top)
    count = top - start + limit
    if count > COMMITS_MAX:
        raise TooLargeError(f"more than {COMMITS_MAX:,} commits are newer")
    entries = list_history(target.text, target.warehouse, count)
    in_force, known_since = _find_in_force(entries, owner, has_files=has_files)
    page = [entry for entry in entries if entry.version <= start][:limit]
    name = target.dataset.id
    runs = [_describe_commit(entry, owner, name) for entry in page]
    for run in runs:
        is_run = run["kind"] in {"run", "undo"} and run["version"] >= known_since
        run["undone"] = run["version"] not in in_force if is_run else None
    oldest = page[-1].version if page else 0
    return {"version": top, "runs": runs, "next": oldest if len(page) == limit and oldest else None}


def list_changes(
    target: QueryTarget,
    first: int,
    last: int,
    *,
    kind: str | None = None,
    key: str = "",
    all_columns: bool = False,
    offset: int = 0,
    limit: int = PAGE_ROWS,
) -> JsonObject:
    """Return the rows that differ between two versions, with the reason as far as the rows tell it.

    :param key: a part of the text of a key column; empty for all rows.
    :raises TooLargeError: if the files in which the versions differ are too large.
    :raises DataError: if the key may not be searched.
    """
    dataset, table = target.open()
    shown = target.choose_shown_rows(dataset, table)
    size = count_differing_bytes(*open_versions(dataset, table, first, last))
    if size > CHANGES_MAX_BYTES:
        raise TooLargeError(f"versions {first} and {last} differ by {size:,} bytes of files")
    changes = read_changes(dataset, table, first, last)
    if key:
        _require_shown(shown, changes.key or tuple(list_types(table)))
    internal = () if all_columns else list_internal_columns(identify_owner(table))
    history = read_history_columns(table)
    kinds: dict[ChangeKind, int] = {"inserted": 0, "updated": 0, "deleted": 0}
    rows: list[JsonObject] = []
    matches = 0
    for name, before, after in changes.rows:
        kinds[name] += 1
        if kind not in {None, name} or not _has_key(after or before or {}, changes.key, key):
            continue
        matches += 1
        if offset < matches <= offset + limit:
            with use_shown_rows(shown):
                rows.append(_describe_change(name, before, after, history, internal))
    return {
        "first": first, "last": last, "key": list(changes.key), "method": changes.method, "kinds": kinds,
        "matches": matches, "rows": rows, "next": offset + limit if matches > offset + limit else None,
    }  # fmt: skip


def find_key(target: QueryTarget, key: str) -> JsonObject:
    """Return the explanation and the timeline of a key, or of a file of a merge record.

    :raises MergeError: if neither knows the key, or the key may not be searched.
    """
    read_options = {"warehouse": target.warehouse}
    if target.has_files():
        shown = parse_shown_rows(target.settings.get)
        explanation = explain_target(target.text, key, warehouse=target.warehouse).as_object()
        with use_shown_rows(shown):
            return {"owner": "merge_record", "explanation": _mask_values(explanation), "timeline": None}
    dataset, table = target.open()
    shown = target.choose_shown_rows(dataset, table)
    _require_shown(shown, _list_key_names(key) or shown.key_columns)
    internal = list_internal_columns(identify_owner(table))
    answers: JsonObject = {}
    errors: list[MergeError] = []
    for name, read in (("explanation", explain_target), ("timeline", trace_key)):
        try:
            explained = cast("Any", read)(target.text, key, **read_options)
            answer = explained.as_object()
            if isinstance(explained, Explanation | EntityExplanation):
                members = explained.list_members()[:_SHOWN_MEMBERS_MAX]
                inputs = read_members(dataset, table, members, target.warehouse)
                answer["inputs"] = [rows.as_object() for rows in inputs]
            with use_shown_rows(shown):
                answers[name] = _mask_values(answer, read_history_columns(table))
        except MergeError as error:
            errors.append(error)
            answers[name] = {"problem": str(error).splitlines()[0]}
    if len(errors) == len(answers):
        raise errors[0]
    return {"owner": identify_owner(table), "internal_columns": list(internal), **answers}


def list_waiting(target: QueryTarget, offset: int = 0, limit: int = PAGE_ROWS) -> JsonObject:
    """Return what waits: the open bins of a merge record, or the rejected rows of a target."""
    if target.has_files():
        reports = [
            report.as_object() for report in list_bins(target.text, warehouse=target.warehouse, limit=0)
        ]
        bins = [item for report in reports for item in report["open_bins"]]
        with use_shown_rows(parse_shown_rows(target.settings.get)):
            return {"bins": _mask_values(bins[:_SHOWN_BINS_MAX]), "bin_count": len(bins), "rejected": None}
    dataset, table = target.open()
    side_table = _open_rejected(dataset, table)
    if side_table is None:
        return {"bins": [], "bin_count": 0, "rejected": None}
    rejected = dataset.with_suffix(REJECTED_SUFFIX)
    query = f"SELECT * FROM target ORDER BY rejected_at DESC LIMIT {int(limit)} OFFSET {int(offset)}"
    rows = list(query_rows(rejected, side_table, query))
    count = count_rows(side_table, side_table.version(), live=True)
    with use_shown_rows(target.choose_shown_rows(dataset, table)):
        masked = [to_json_value({**row, "row": _mask_rejected(row["row"])}) for row in rows]
    has_more = len(rows) == limit and count != offset + limit
    page = {"uri": rejected.uri, "count": count, "rows": masked, "next": offset + limit if has_more else None}
    return {"bins": [], "bin_count": 0, "rejected": page}


QUERIES: Mapping[str, Callable[..., JsonObject]] = {
    "about": read_about,
    "runs": list_runs,
    "changes": list_changes,
    "find": find_key,
    "waiting": list_waiting,
}


def _open_rejected(dataset: Dataset, table: DeltaTable) -> DeltaTable | None:
    """Open the table of rejected rows at the version that belongs to the rows of a target; None without one.

    :raises DataError: if this version can no longer be read.
    """
    commits = list_state_commits(read_lineage(dataset, table).entries, str(identify_owner(table)))
    state = next((commit.state for commit in commits), {})
    version = (state.get(SIDE_TABLE_VERSIONS) or {}).get(REJECTED)
    if version is None:
        return None
    side_table = open_version(dataset.with_suffix(REJECTED_SUFFIX), version)
    return side_table if side_table.metadata().configuration.get(WRITER) == REJECTED_OWNER else None


def _mask_rejected(text: str) -> Any:
    """Return a rejected row, which is stored as JSON, as it may be shown."""
    row = json.loads(text)
    return mask_row(row) if isinstance(row, dict) else mask_text(text)


def _find_in_force(entries: Sequence[HistoryEntry], owner: str, *, has_files: bool) -> tuple[set[int], int]:
    """Return the versions of the commits in force, and the version since which that is known."""
    if has_files:
        return _find_files_in_force(entries), 0
    lineage = trace_lineage(entries, lambda _: None)
    in_force = {commit.version for commit in list_commits_in_force(lineage.entries, owner)}
    last = lineage.entries[-1] if lineage.entries else None
    # A RESTORE to a timestamp does not name the version that the table went back to.
    is_unknown = last is not None and last.effect == "restore" and last.restored_version is None
    return in_force, last.version if last is not None and is_unknown else 0


def _find_files_in_force(entries: Sequence[HistoryEntry]) -> set[int]:
    in_force, below = set(), None
    for entry in entries:
        if below is None or entry.version <= below:
            in_force.add(entry.version)
            restored = (_read_commit(entry).state.get(UNDO) or {}).get(RESTORED_VERSION)
            below = restored if isinstance(restored, int) else below
    return in_force


def _read_commit(entry: HistoryEntry) -> CommitRef:
    """Return a commit; one whose metadata is not that of a run is a commit of another program."""
    commit = CommitRef.from_entry(entry)
    token: Any = commit.token if commit.state else {}
    return commit if isinstance(token, Mapping) else replace(commit, state={})


def _describe_commit(entry: HistoryEntry, owner: str, name: str) -> JsonObject:
    commit = _read_commit(entry)
    result = _read_result(commit)
    rows = result.rows if result else RowCounts()
    counts = dict(result.counts) if result else {}
    return {
        **commit.as_object(),
        "kind": commit.kind or ("other" if entry.effect != "none" else "maintenance"),
        "number": commit.state.get("number"),
        "author": None if commit.state else entry.author or None,
        "run_mode": result.run_mode if result else None,
        "reason": result.reason if result else None,
        "sentence": _write_sentence(commit, result, owner, name) if result else None,
        "rows": rows.model_dump(),
        "live_rows": _count_live_rows(rows, counts),
        "approved_by": commit.state.get(APPROVED_BY),
    }


def _read_result(commit: CommitRef) -> RunResult | None:
    if commit.kind not in {"run", "undo"}:
        return None
    try:
        return RunResult.from_state(commit.state)
    except _DAMAGED:
        return None


def _write_sentence(commit: CommitRef, result: RunResult, owner: str, name: str) -> str | None:
    """Return the sentence about a run that its report begins with."""
    job = JOBS["undo" if commit.kind == "undo" else owner]
    try:
        report = Report(
            job=job.name,
            run_mode=result.run_mode,
            run_mode_reason=result.reason,
            changed=True,
            dry_run=False,
            target=TargetReport(
                dataset=name, uri="", version_before=result.version_before, version=commit.version
            ),
            sources={
                offset.uri: SourceReport(uri=offset.uri, version=offset.version, rows=None)
                for offset in read_offsets(commit.state)
            },
            rows=result.rows,
            counts={measure.name: result.counts.get(measure.name, 0) for measure in job.counts},
            details=dict(result.details),
            seconds={},
            warnings=[],
            expectations=list(map(ExpectationResult.model_validate, commit.state.get(EXPECTATIONS) or ())),
        )
        return summarize_run(report, job.describe_run)
    except _DAMAGED:
        return None


def _count_live_rows(rows: RowCounts, counts: Mapping[str, int | None]) -> int | None:
    if isinstance(live := counts.get("live_rows"), int):
        return live
    parts = (rows.inserted, rows.updated, rows.unchanged)
    return None if None in parts else sum(part or 0 for part in parts)


def _list_sources(states: Sequence[Row]) -> list[JsonObject]:
    """Return the sources that the newest run has read, with their versions."""
    offsets = next((read for state in states if (read := read_offsets(state))), [])
    return [{"uri": offset.uri, "version": offset.version} for offset in offsets]


def _list_join_keys(dataset: Dataset, table: DeltaTable) -> Iterator[str]:
    """Yield the key fields of the inputs of a join, by which its rows are searched."""
    states = (CommitRef.from_entry(entry).state for entry in read_lineage(dataset, table).entries)
    join: Row = next((state["join"] for state in states if "join" in state), {})
    for stage, names in (join.get("keys") or {}).items():
        for name in names:
            yield from (name, f"{stage}.{name}")


def _list_key_names(key: str) -> tuple[str, ...]:
    """Return the columns that a key names, if it is a JSON object."""
    if not key.lstrip().startswith("{"):
        return ()
    try:
        return tuple(map(str, json.loads(key)))
    except ValueError:
        return ()


def _require_shown(shown: ShownRows, names: Sequence[str]) -> None:
    """Refuse to search columns whose values are not shown: an answer would tell which values there are.

    :raises DataError: if the values of one of them are masked.
    """
    hidden = [name for name in names if not shown.shows_column(name)]
    if hidden or (not names and shown.has_masks):
        column = repr(hidden[0]) if hidden else "a row"
        message = f"values of {column} are not shown here ([merge] show_rows, mask_columns)"
        raise DataError.from_problems([Problem("key", "masked", message, "use the command line")])


def _has_key(row: Row, names: Sequence[str], text: str) -> bool:
    """Return whether a value of the key, or of any column if rows have none, contains a text."""
    folded_text = text.casefold()
    return any(folded_text in str(to_json_value(row.get(name))).casefold() for name in names or row)


def _describe_change(
    kind: ChangeKind,
    before: Row | None,
    after: Row | None,
    history: HistoryColumns | None,
    internal: Collection[str],
) -> JsonObject:
    """Return a row before and after a change as it may be shown, without internal columns."""
    reason = _explain_change(before, after, history)
    masked = mask_change(before, after)
    example = ChangeExample(kind=kind, reason=reason, before=masked[0], after=masked[1])
    shown = example.hide_columns(internal)
    images = {"before": shown.before, "after": shown.after}
    return {"kind": kind, "reason": reason, **to_json_value(images)}


def _explain_change(before: Row | None, after: Row | None, history: HistoryColumns | None) -> str:
    """Return why a row differs: its members, or what became of a version of a history; empty if unknown."""
    sides = [(row or {}).get(_MEMBERS) or [] for row in (before, after)]
    row = after or before or {}
    if any(sides):
        shown_id = mask_row({_ID: row.get(_ID)})[_ID]
        changes = describe_member_changes(str(shown_id), sides[0], sides[1], show_key=mask_text)
        return "" if shown_id == MASK else changes
    if history is None:
        return ""
    if before is None or after is None:
        return "removed from the history" if after is None else "opened"
    ends = [side.get(history.valid_to) for side in (before, after)]
    if ends[0] == ends[1]:
        return "changed in place"
    return "closed" if ends[0] in {None, history.active} else "reopened or moved"


def _mask_values(value: Any, history: HistoryColumns | None = None, name: str = "") -> Any:
    """Return a part of an explanation as it may be shown: rows by column, texts with values as a whole."""
    if isinstance(value, Mapping):
        if name in _ROW_FIELDS:
            return mask_row(value)
        if name == "columns":
            values = mask_row({key: item["value"] for key, item in value.items()})
            return {
                key: {**item, "value": values[key], "why": mask_text(item["why"])}
                for key, item in value.items()
            }
        return {key: _mask_values(item, history, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_mask_values(item, history, name) for item in value]
    if value is None:
        return None
    if history is not None and name in {"valid_from", "valid_to"}:
        return mask_row({getattr(history, name): value}).popitem()[1]
    return mask_text(value) if name in _VALUE_FIELDS and isinstance(value, str) else value
