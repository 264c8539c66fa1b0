"""Read rows of a key at the versions of a Delta table with delta-rs, and files of folders, without Spark."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, Problem, suggest_name
from airflow_merge_provider.core.object_store.clients import complete_arguments
from airflow_merge_provider.core.source_offset import SourceOffset
from airflow_merge_provider.core.table_history import HistoryEntry, Lineage, trace_lineage
from airflow_merge_provider.core.value_text import (
    EPOCH,
    DistantTime,
    Row,
    format_row,
    format_value,
    to_json_value,
)
from airflow_merge_provider.delta_rs import open_table, parse_entry, read_columns
from airflow_merge_provider.explain.model.commits import CommitRef, KeyState, KeyStates
from airflow_merge_provider.explain.model.key import fit_value, read_digits
from airflow_merge_provider.file_store.folder import open_folder

if TYPE_CHECKING:
    from deltalake import DeltaTable


# A key of a replaced group, or of rows without a key, may have many rows.
ROWS_MAX = 1000
VERSIONS_MAX = 1000
# The number of digits of decimals that a double holds exactly.
_EXACT_DIGITS_MAX = 15


def read_lineage(dataset: Dataset, table: DeltaTable) -> Lineage:
    """Return the commits on which the opened version of a table is based, newest first."""
    # At an older version, delta-rs gives the newest commits the numbers of that version and those before.
    history = open_table(str(dataset.path)).history()
    entries = [
        parse_entry({"timestamp": 0, **line}) for line in history if line["version"] <= table.version()
    ]
    return trace_lineage(entries, lambda _: None)


def read_states(dataset: Dataset, table: DeltaTable, keys: Sequence[Row]) -> KeyStates:
    """Return the rows of a key after each commit that may have changed rows, as far back as can be read.

    :param keys: the values of the key columns; rows with those of one item have the key.
    :raises DataError: if the opened version cannot be read, or has too many rows of the key.
    """
    lineage = read_lineage(dataset, table)
    changing = [entry for entry in lineage.entries if entry.effect == "rows"]
    missing = _explain_end(lineage)
    if len(changing) > VERSIONS_MAX:
        missing = f"only the newest {VERSIONS_MAX} commits are read"
    states: list[KeyState] = []
    for entry in changing[:VERSIONS_MAX]:
        try:
            # Maintenance after the newest change may have replaced the files of that version.
            rows = _read_version(dataset, entry, keys) if states else query_keys(dataset, table, keys)
        except DataError as error:
            if not states:
                raise
            missing = _explain_unreadable(entry, error)
            break
        if len(rows) == ROWS_MAX:
            raise _refuse_many_rows(dataset, entry)
        states.append(KeyState(CommitRef.from_entry(entry), tuple(rows)))
    if not states:
        newest = next(iter(lineage.entries), HistoryEntry(table.version()))
        states = [KeyState(CommitRef.from_entry(newest), tuple(query_keys(dataset, table, keys)))]
    return KeyStates(tuple(reversed(states)), missing)


def query_keys(dataset: Dataset, table: DeltaTable, keys: Sequence[Row]) -> list[Row]:
    """Return the rows with one of the keys in the opened version of a table, sorted by their content.

    At most ``ROWS_MAX`` rows are returned; an empty key selects any rows.

    :raises DataError: if the table cannot be read.
    """
    where = " OR ".join(render_key(key, list_types(table)) for key in keys)
    rows = query_rows(dataset, table, f"SELECT * FROM target WHERE {where} LIMIT {ROWS_MAX}")
    return sorted(rows, key=lambda row: json.dumps(to_json_value(row)))


def open_input(offset: SourceOffset) -> tuple[Dataset, DeltaTable]:
    """Open an input at the version that a run read.

    :raises DataError: if the input is not the Delta table that the run read, or can no longer be read.
    """
    if offset.uri.startswith("table:") or offset.version is None or offset.table_id is None:
        raise DataError(f"{offset.uri} is not a Delta table at a location, so its rows cannot be read again")
    dataset = Dataset(offset.uri, path=offset.uri)
    table = open_version(dataset, offset.version)
    if offset.table_id != str(table.metadata().id):
        raise DataError(f"{offset.uri} is another table than the one that the run read")
    return dataset, table


def read_input_rows(
    offset: SourceOffset, key: Row, convert: Callable[..., Row] | None = None
) -> tuple[Row, list[Row]]:
    """Return a key by the names of its columns, and the rows that an input of a run had with it.

    :param convert: what makes values of texts; None if the key has values, which may be of other types.
    :raises ConfigError: if the input has no such column, or a text is no value.
    :raises DataError: if the input is not the Delta table that the run read, or can no longer be read.
    """
    dataset, table = open_input(offset)
    types = list_types(table)
    values: dict[str, Any] = {}
    for name, value in key.items():
        column = find_column(name, types)
        if column is None:
            message = f"{offset.uri} has no column {name!r} at version {offset.version}"
            hint = suggest_name(name, types, "columns")
            raise ConfigError.from_problems([Problem("key", "unknown", message, hint)])
        values[column] = value
    row = values if convert is None else convert(values, types)
    return row, query_keys(dataset, table, [row])


def find_column(name: str, columns: Iterable[str]) -> str | None:
    """Return the column of a name; names that differ only in case match too. None if there is none."""
    names = list(columns)
    if name in names:
        return name
    return next((column for column in names if column.casefold() == name.casefold()), None)


def query_rows(
    dataset: Dataset,
    table: DeltaTable,
    query: str,
    names: Sequence[str] | None = None,
    other: DeltaTable | None = None,
) -> Iterator[Row]:
    """Yield the rows of a query, which supports deletion vectors; ``to_pyarrow_table`` does not.

    The query refers to the tables as ``target`` and ``other``.
    """
    from deltalake import QueryBuilder

    try:
        builder = QueryBuilder().register("target", table)
        for batch in (builder if other is None else builder.register("other", other)).execute(query):
            columns = read_columns(batch, names)
            yield from (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    # delta-rs raises errors of queries and of missing files as plain exceptions.
    except Exception as error:
        raise DataError(f"{dataset.uri} cannot be read: {error}") from error


def list_types(table: DeltaTable) -> dict[str, str]:
    """Return the type of each column as Delta names it; nested types are ``struct``, ``array`` or ``map``."""
    return {field.name: _name_type(field.type) for field in table.schema().fields}


def list_parquet_types(path: str) -> dict[str, str]:
    """Return the type of each column of a Parquet file on this machine, as Delta names it.

    :raises ValueError: if the file is not valid.
    """
    from deltalake import QueryBuilder, Schema
    from deltalake.exceptions import DeltaError

    try:
        query = QueryBuilder()
        # delta-rs takes characters such as * in a path for a pattern, but not in a URI.
        location = quote_text(Path(path).absolute().as_uri())
        query.execute(f"CREATE EXTERNAL TABLE f STORED AS PARQUET LOCATION {location}").read_all()
        schema = Schema.from_arrow(query.execute("SELECT * FROM f LIMIT 0").schema)
    except DeltaError as error:
        raise ValueError(str(error)) from None
    return {field.name: _name_type(field.type) for field in schema.fields}


def quote_text(value: str) -> str:
    """Return a string as a literal of a query."""
    return "'" + value.replace("'", "''") + "'"


def quote_name(name: str) -> str:
    """Return the name of a column, as a query refers to it."""
    return '"' + name.replace('"', '""') + '"'


def _read_version(dataset: Dataset, entry: HistoryEntry, keys: Sequence[Row]) -> list[Row]:
    table = open_version(dataset, entry.version)
    # A column that was added later holds no value of the key yet.
    columns = set(list_types(table))
    present_keys = [key for key in keys if set(key) <= columns]
    return query_keys(dataset, table, present_keys) if present_keys else []


def open_version(dataset: Dataset, version: int) -> DeltaTable:
    """Open a table at a version.

    :raises DataError: if the version cannot be read any more.
    """
    from deltalake.exceptions import DeltaError

    try:
        return open_table(str(dataset.path), version)
    except DeltaError as error:
        raise DataError(f"{dataset.uri} cannot be read at version {version}: {error}") from error


def refuse_unknown_key(dataset: Dataset, states: KeyStates, values: Row, hint: str = "") -> DataError:
    """Return the error of a key that no readable version of a table has.

    :param hint: what else is known, if all versions can be read.
    """
    first, last = states.states[0].commit.version, states.newest.commit.version
    message = f"{dataset.uri} has no row with {format_row(values)} in versions {first} to {last}"
    hint = f"check the value; {states.missing}" if states.missing else hint or "check the value"
    return DataError.from_problems([Problem("key", "unknown", message, hint)])


def _refuse_many_rows(dataset: Dataset, entry: HistoryEntry) -> DataError:
    message = f"{ROWS_MAX} rows or more of {dataset.uri} have this key in version {entry.version}"
    hint = "name more columns in a JSON object"
    return DataError.from_problems([Problem("key", "too-many-rows", message, hint)])


def _explain_unreadable(entry: HistoryEntry, error: DataError) -> str:
    text = str(error).splitlines()[0]
    reason = "files of it were deleted" if "not found" in text.lower() else text
    return f"version {entry.version} can no longer be read: {reason}"


def _explain_end(lineage: Lineage) -> str:
    if lineage.is_complete or not lineage.entries:
        return ""
    oldest = lineage.entries[-1]
    if oldest.effect == "restore" and oldest.restored_version is None:
        return f"version {oldest.version} restored the table to a timestamp"
    return f"the log no longer describes the commits before version {oldest.version}"


def render_key(key: Row, types: Mapping[str, str], alias: str = "target") -> str:
    """Return the condition on the rows with a key; ``alias`` names the table in the query.

    :param types: the type of each column, as Delta names it; the values may be of other types.
    """
    return (
        " AND ".join(
            _render_condition(f"{quote_name(alias)}.{quote_name(name)}", value, types[name])
            for name, value in key.items()
        )
        or "true"
    )


def _render_condition(column: str, value: Any, kind: str) -> str:
    if value is None:
        return f"{column} IS NULL"
    fitting = fit_value(value, kind)
    if fitting is None:
        # The type of the column does not have this value.
        return "false"
    if isinstance(fitting, float):
        literal = f"arrow_cast({quote_text(format_value(fitting))}, 'Float{32 if kind == 'float' else 64}')"
        if fitting == 0:
            # delta-rs takes -0.0 for another number than 0.0.
            return f"abs({column}) = {literal.replace('-', '')}"
        return f"isnan({column})" if math.isnan(fitting) else f"{column} = {literal}"
    if isinstance(fitting, Decimal):
        precision, scale = read_digits(kind)
        if precision > _EXACT_DIGITS_MAX:
            # delta-rs writes statistics of decimals as doubles, by which it skips files with longer ones.
            return f"CAST({column} AS VARCHAR) = {quote_text(f'{fitting:.{scale}f}')}"
    return f"{column} = {render_literal(fitting, kind)}"


def render_literal(value: Any, kind: str) -> str:
    """Return a value as a literal of a query.

    :param kind: the type of the column, as Delta names it.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        zone = "None" if value.tzinfo is None else 'Some("UTC")'
        micros = (value.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
        return f"arrow_cast({micros}, 'Timestamp(Microsecond, {zone})')"
    if isinstance(value, DistantTime):
        zone = 'Some("UTC")' if kind == "timestamp" else "None"
        arrow_type = "Date32" if kind == "date" else f"Timestamp(Microsecond, {zone})"
        return f"arrow_cast({value.number}, '{arrow_type}')"
    if isinstance(value, date):
        return f"CAST('{value.isoformat()}' AS DATE)"
    if isinstance(value, Decimal):
        return f"CAST('{value:f}' AS {kind.upper()})"
    return quote_text(value) if isinstance(value, str) else str(value)


def _name_type(kind: Any) -> str:
    # A primitive type has its name as its type; the others are named by what they are.
    return str(kind.type)


class Folder:
    """A folder of small files, such as a ledger; names are relative to it.

    :raises SetupError: if no library for this kind of location is installed.
    """

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        self._files, self._root = open_folder(self.location, complete_arguments(self.location))

    def list_names(self, folder: str = "") -> list[str]:
        """Return the names of the files and folders in a subfolder; an empty list if it does not exist."""
        path = f"{self._root}/{folder}".rstrip("/")
        try:
            entries = self._files.ls(path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(str(entry).rstrip("/").rpartition("/")[2] for entry in entries)

    def read_file(self, name: str) -> bytes:
        """Return the content of a file."""
        content: bytes = self._files.cat_file(f"{self._root}/{name}")
        return content

    def get_modification_time(self, name: str) -> datetime:
        """Return the time at which a file was written, in UTC."""
        at: datetime = self._files.modified(f"{self._root}/{name}")
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
