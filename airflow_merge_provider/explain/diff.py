"""Compare two versions of a Delta table without Spark: which files and rows differ, and how.

The change data feed is read where it is on. Otherwise only the range of rows is read that the files which
differ contain, and delta-rs subtracts the rows of one version from those of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_merge_provider.core.capabilities import list_internal_columns
from airflow_merge_provider.core.change_plan.summary import (
    ChangeExample,
    ChangeKind,
    describe_counts,
    format_examples,
    select_examples,
)
from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConfigError, Problem, format_count, suggest_name
from airflow_merge_provider.core.schema.key_types import choose_comparison
from airflow_merge_provider.core.value_text import Row, escape_text, to_json_value
from airflow_merge_provider.delta_rs import read_columns
from airflow_merge_provider.explain.model.rows import write_content
from airflow_merge_provider.explain.reading import (
    find_column,
    list_types,
    open_version,
    query_rows,
    quote_name,
    render_literal,
)
from airflow_merge_provider.explain.target import find_row_columns, identify_owner, open_target

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Types whose statistics are exact: those of strings are cut off, those of timestamps are rounded.
_EXACT_TYPES = frozenset({"byte", "short", "integer", "long", "date"})
_VECTORS = "deletionVectors"


def build_range_condition(before: DeltaTable, after: DeltaTable) -> str | None:
    """Return a condition that holds for every row which differs; None if no file differs.

    Files that both versions contain with the same deletion vector hold the same rows. All other rows are
    inside the ranges that the statistics of the remaining files give, and delta-rs skips files outside them.
    """
    differing = _list_differing_files(before, after)
    if differing is None:
        return "true"
    if not differing:
        return None
    types = list_types(before), list_types(after)
    ranges = (
        (name, kind, _find_range(differing, name))
        for name, kind in types[1].items()
        if kind in _EXACT_TYPES and name in types[0] and name not in _list_separate(*types)
    )
    conditions = [
        f"({quote_name(name)} IS NULL OR {quote_name(name)} BETWEEN {low} AND {high})"
        for name, kind, limits in ranges
        if limits is not None
        for low, high in [[render_literal(limit, kind) for limit in limits]]
    ]
    return " AND ".join(conditions) or "true"


def _list_separate(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the columns that have two types which delta-rs cannot compare exactly."""
    comparisons = {
        name: choose_comparison((before[name], kind))
        for name, kind in after.items()
        if before.get(name, kind) != kind
    }
    return [name for name, comparison in comparisons.items() if comparison is None or comparison.is_split]


def count_differing_bytes(before: DeltaTable, after: DeltaTable) -> int:
    """Return the size of the files that a comparison of two versions reads, as their logs record it."""
    differing = _list_differing_files(before, after)
    if differing is None:
        differing = [entry for table in (before, after) for entry in _list_files(table).values()]
    return sum(int(entry["size_bytes"]) for entry in differing)


def _list_differing_files(before: DeltaTable, after: DeltaTable) -> list[Mapping[str, Any]] | None:
    """Return the log entries of the files that one version alone has, or has with other deletion vectors.

    None is returned if a deletion vector is of a file that is not in the log.
    """
    files = _list_files(before), _list_files(after)
    differing = [side[path] for side, other in (files, files[::-1]) for path in side.keys() - other.keys()]
    for path in _find_differing_vectors(before, after):
        entries = [files[1][name] for name in files[1] if path.endswith((name, unquote(name)))]
        if not entries:
            return None
        differing += entries
    return differing


def _list_files(table: DeltaTable) -> dict[str, Mapping[str, Any]]:
    """Return the log entries of the files of a version by their paths."""
    columns = read_columns(table.get_add_actions(flatten=True))
    entries = (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    return {str(entry["path"]): entry for entry in entries}


def _find_differing_vectors(before: DeltaTable, after: DeltaTable) -> list[str]:
    """Return the full paths of the files with another deletion vector in each version."""
    first, last = dict(_digest_vectors(before)), dict(_digest_vectors(after))
    return [path for path in first.keys() | last.keys() if first.get(path) != last.get(path)]


def _digest_vectors(table: DeltaTable) -> Iterator[tuple[str, str]]:
    """Yield the path of each file with a deletion vector, and the digest of the vector."""
    if _VECTORS not in (table.protocol().reader_features or ()):
        return
    from arro3.core import list_flatten  # noqa: PLC0415 - a dependency of deltalake

    for batch in table.deletion_vectors():
        vectors = batch.column("selection_vector")
        for number, path in enumerate(batch.column("filepath").to_pylist()):
            vector = list_flatten(vectors.slice(number, 1)).to_numpy()
            yield str(path), sha256(vector.tobytes()).hexdigest()


def _find_range(entries: list[Mapping[str, Any]], name: str) -> tuple[Any, Any] | None:
    """Return the smallest and the largest value of a column in files; None if a file does not tell."""
    lows: list[Any] = []
    highs: list[Any] = []
    for entry in entries:
        partition = entry.get(f"partition.{name}")
        low, high = entry.get(f"min.{name}", partition), entry.get(f"max.{name}", partition)
        if low is None or high is None:
            return None
        lows.append(low)
        highs.append(high)
    return min(lows), max(highs)


_FEED_PROPERTY, _CHANGE_TYPE = "delta.enableChangeDataFeed", "_change_type"
_FEED_HIDDEN = frozenset({_CHANGE_TYPE, "_commit_version", "_commit_timestamp"})
_FEED_SIGNS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
_SIGN, _NET_COLUMN, _AFTER = "__sign", "__net", "__after_"
_FLOAT_NAMES = frozenset({"float", "double"})
_NESTED_TYPES = frozenset({"array", "map", "struct", "variant"})
# A row, and how often the later version has it more often than the earlier one.
NetRow = tuple[Row, int]


# The kind of a change, and the row before and after without its NULLs; None where there is none.
RowPair = tuple[ChangeKind, Row | None, Row | None]


@dataclass(frozen=True, slots=True)
class VersionChanges:
    """The rows that differ, read once; ``key`` are the columns that pair them, ``method`` what was read."""

    key: tuple[str, ...]
    method: str
    rows: Iterator[RowPair]


@dataclass(frozen=True, slots=True)
class TableDiff:
    """The rows that differ between two versions: counts by kind, and examples.

    ``key`` are the columns that pair a row before with the row after; without any, a row with other values is
    a deleted and an inserted row. ``method`` says what was read. The text has no ``internal_columns``.
    """

    dataset: Dataset
    versions: tuple[int, int]
    key: tuple[str, ...]
    method: str
    kinds: Mapping[ChangeKind, int]
    examples: Sequence[ChangeExample]
    internal_columns: tuple[str, ...] = ()

    def format_lines(self) -> Iterator[str]:
        """Yield the difference as text: the counts, then the examples of each kind."""
        first, last = self.versions
        count = sum(self.kinds.values())
        detail = f": {describe_counts(self.kinds)}" if count else ""
        yield (
            f"{escape_text(self.dataset.uri)} version {first} to {last}: "
            f"{format_count(count, 'row')} changed{detail}"
        )
        key = ", ".join(map(escape_text, self.key)) or "none, so that no row is updated"
        yield f"key: {key}; compared by {self.method}"
        shown = [example.hide_columns(self.internal_columns) for example in self.examples]
        yield from format_examples(self.kinds, shown)

    def as_object(self) -> dict[str, Any]:
        """Return the difference as a JSON object."""
        return {
            "uri": self.dataset.uri,
            "version_before": self.versions[0],
            "version_after": self.versions[1],
            "key": list(self.key),
            "method": self.method,
            "rows": dict(self.kinds),
            "examples": [
                {
                    "kind": example.kind,
                    "before": to_json_value(example.before),
                    "after": to_json_value(example.after),
                }
                for example in self.examples
            ],
        }


def compare_versions(
    target: str,
    first: int,
    last: int,
    *,
    warehouse: str | None = None,
    key: Sequence[str] = (),
    limit: int = 20,
) -> TableDiff:
    """Return the rows that differ between two versions of a table; ``first`` may be the later one.

    :param key: the columns that identify a row; by default those that the target records.
    :param limit: the number of examples.
    :raises ConfigError: if the table does not have one of the versions or columns.
    :raises DataError: if the target is not a Delta table, or a version can no longer be read.
    """
    dataset, newest = open_target(target, warehouse)
    changes = read_changes(dataset, newest, first, last, key)
    kinds: dict[ChangeKind, int] = {"inserted": 0, "updated": 0, "deleted": 0}
    examples: list[ChangeExample] = []
    for kind, before, after in changes.rows:
        kinds[kind] += 1
        if kinds[kind] <= limit:
            examples.append(ChangeExample(kind=kind, reason="", before=before, after=after))
    selected = select_examples(examples, limit)
    internal = list_internal_columns(identify_owner(newest))
    return TableDiff(dataset, (first, last), changes.key, changes.method, kinds, selected, internal)


def read_changes(
    dataset: Dataset, newest: DeltaTable, first: int, last: int, key: Sequence[str] = ()
) -> VersionChanges:
    """Return the rows that differ between two versions of a table; its arguments are as those of a diff.

    :raises ConfigError: if the table does not have one of the versions or columns.
    :raises DataError: if a version can no longer be read.
    """
    tables = open_versions(dataset, newest, first, last)
    columns = _choose_key(dataset, newest, key, list_types(tables[0]))
    feed = _read_feed(*tables)
    method = "the files that differ" if feed is None else "the change data feed"
    rows = _subtract_versions(dataset, *tables, columns) if feed is None else feed
    if _list_separate(*map(list_types, tables)):
        rows = list(rows)
    pairs = _pair_rows(rows, columns)
    if first > last:
        # Back in time, an inserted row is a deleted one.
        pairs = ((after, before) for before, after in pairs)
    return VersionChanges(columns, method, (_name_change(*pair) for pair in pairs))


def open_versions(
    dataset: Dataset, newest: DeltaTable, first: int, last: int
) -> tuple[DeltaTable, DeltaTable]:
    """Open the earlier and the later one of two versions of a table.

    :raises ConfigError: if the table does not have one of them.
    :raises DataError: if one of them can no longer be read.
    """
    _require_versions(dataset, newest, {"V1": first, "V2": last})
    return open_version(dataset, min(first, last)), open_version(dataset, max(first, last))


def _name_change(before: Row | None, after: Row | None) -> RowPair:
    kind: ChangeKind = "inserted" if before is None else "deleted" if after is None else "updated"
    return kind, _drop_nulls(before), _drop_nulls(after)


def _require_versions(dataset: Dataset, newest: DeltaTable, versions: Mapping[str, int]) -> None:
    problems = [
        Problem(name, "unknown", f"{dataset.uri} has no version {number}", f"use 0 to {newest.version()}")
        for name, number in versions.items()
        if not 0 <= number <= newest.version()
    ]
    if problems:
        raise ConfigError.from_problems(problems)


def _choose_key(
    dataset: Dataset, newest: DeltaTable, names: Sequence[str], types: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the columns that identify a row in the earlier version.

    :raises ConfigError: if it does not have one of the columns that the user names.
    """
    if not names:
        recorded = find_row_columns(dataset, newest)
        return recorded if set(recorded) <= set(types) else ()
    columns = [find_column(name, types) for name in names]
    problems = [
        Problem(
            "--key", "unknown", f"{dataset.uri} has no column {name!r}", suggest_name(name, types, "columns")
        )
        for name, column in zip(names, columns, strict=True)
        if column is None
    ]
    if problems:
        raise ConfigError.from_problems(problems)
    return tuple(column for column in columns if column is not None)


def _read_feed(before: DeltaTable, after: DeltaTable) -> list[NetRow] | None:
    """Return the net changes of the change data feed; None if it is off, or cannot be read."""
    is_on = all(table.metadata().configuration.get(_FEED_PROPERTY) == "true" for table in (before, after))
    # The feed that delta-rs derives from added and removed files ignores deletion vectors.
    if not is_on or "deletionVectors" in (after.protocol().reader_features or ()):
        return None
    if before.version() == after.version():
        return []
    try:
        return _sum_rows(_iterate_feed(after.load_cdf(before.version() + 1, after.version())))
    except Exception:  # noqa: BLE001 - off in between, a changed schema, deleted files: versions are compared
        return None


def _iterate_feed(reader: Iterable[Any]) -> Iterator[NetRow]:
    for batch in reader:
        columns = read_columns(batch)
        for cells in zip(*columns.values(), strict=True):
            row = dict(zip(columns, cells, strict=True))
            sign = _FEED_SIGNS[row[_CHANGE_TYPE]]
            yield {name: value for name, value in row.items() if name not in _FEED_HIDDEN}, sign


def _sum_rows(rows: Iterable[NetRow]) -> list[NetRow]:
    """Return each row once with the sum of its counts, without rows whose sum is zero."""
    counts: dict[str, NetRow] = {}
    for row, count in rows:
        content = write_content(row)
        _, previous_count = counts.get(content, (row, 0))
        counts[content] = row, previous_count + count
    return [(row, count) for row, count in counts.values() if count]


def _subtract_versions(
    dataset: Dataset, before: DeltaTable, after: DeltaTable, key: Sequence[str]
) -> Iterator[NetRow]:
    """Yield the rows that one version has more often than the other, sorted by the key.

    If a column has two types that delta-rs cannot compare, equal rows are among them, in any order.
    """
    condition = build_range_condition(before, after)
    if condition is None:
        return
    types = list_types(before), list_types(after)
    # Such a column of the later version is another column of the query.
    separate = {f"{_AFTER}{name}": name for name in _list_separate(*types)}
    names = list(dict.fromkeys((*types[1], *types[0], *separate)))
    columns = ", ".join(map(quote_name, names))
    # -0.0 equals 0.0, so that a group is named 0.0: its first row has the value that is stored.
    floats = {name for name in names if _FLOAT_NAMES & {types[0].get(name), types[1].get(name)}}
    shown = ", ".join(
        f"first_value({value}) AS {value}" if name in floats else value
        for name, value in zip(names, map(quote_name, names), strict=True)
    )
    sides = [
        f"SELECT {_select_columns(names, present)}, {sign} AS {_SIGN} FROM {table} WHERE {condition}"
        for table, sign, present in (
            ("target", -1, {name: name for name in types[0]}),
            ("other", 1, {name: name for name in types[1] if name not in separate.values()} | separate),
        )
    ]
    # Without a key the order has no meaning, but is the same every time.
    sortable = [name for name in names if {types[0].get(name), types[1].get(name)}.isdisjoint(_NESTED_TYPES)]
    order = f" ORDER BY {', '.join(map(quote_name, key or sortable))}" if key or sortable else ""
    query = (
        f"SELECT {shown}, sum({_SIGN}) AS {_NET_COLUMN} FROM ({' UNION ALL '.join(sides)}) "
        f"GROUP BY {columns} HAVING sum({_SIGN}) <> 0{order}"
    )
    for row in query_rows(dataset, before, query, other=after):
        values = {name: value for name, value in row.items() if name != _NET_COLUMN and name not in separate}
        if row[_NET_COLUMN] > 0:
            values |= {name: row[alias] for alias, name in separate.items()}
        yield values, row[_NET_COLUMN]


def _select_columns(names: Sequence[str], present: Mapping[str, str]) -> str:
    """Return the columns of a query; ``present`` has the column of the table behind each."""
    columns = {name: quote_name(present[name]) if name in present else "NULL" for name in names}
    return ", ".join(f"{column} AS {quote_name(name)}" for name, column in columns.items())


def _pair_rows(rows: Iterable[NetRow], key: Sequence[str]) -> Iterator[tuple[Row | None, Row | None]]:
    """Yield the rows of each key before and after; None where there is none."""

    def find_key(net_row: NetRow) -> str:
        return write_content({name: net_row[0][name] for name in key} if key else net_row[0])

    # The rows of a query are sorted by the key already, and may be too many to sort here.
    for _, group in groupby(sorted(rows, key=find_key) if isinstance(rows, list) else rows, find_key):
        removed: list[Row] = []
        added: list[Row] = []
        for row, count in group:
            (added if count > 0 else removed).extend([row] * abs(count))
        for before, after in zip_longest(removed, added):
            is_new = not isinstance(rows, list) or None in (before, after)
            if is_new or write_content(before) != write_content(after):
                yield before, after


def _drop_nulls(row: Row | None) -> Row | None:
    return None if row is None else {name: value for name, value in row.items() if value is not None}
