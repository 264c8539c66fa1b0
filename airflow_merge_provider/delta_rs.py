"""Read the logs of Delta tables with delta-rs, in the task itself and without a JVM."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_merge_provider.core.change_plan.shown_rows import mask_value
from airflow_merge_provider.core.child_process import make_work_folder
from airflow_merge_provider.core.dataset import Dataset, format_table_uri
from airflow_merge_provider.core.errors import DataError, Problem, SetupError
from airflow_merge_provider.core.object_store.clients import complete_options, find_store_error
from airflow_merge_provider.core.run.decision import RequiresSparkError
from airflow_merge_provider.core.run.table_log import Fields, PinnedDataset, TableVersion
from airflow_merge_provider.core.table_history import HistoryEntry
from airflow_merge_provider.core.value_text import Float32, format_value, read_day, read_micros
from airflow_merge_provider.core.variant import decode_variants

if TYPE_CHECKING:
    from deltalake import DeltaTable

DIGEST_CHARS = 16
# Who committed, in the histories of Spark and delta-rs: the user, or else the program.
_AUTHORS = ("userName", "engineInfo", "clientVersion")
# delta-rs returns deletion vectors as one boolean per row of the files that have one.
_VECTORS_MAX_ROWS = 200_000_000
# delta-rs decodes names of folders twice: %20 becomes a blank, and on a disk, a backslash a slash.
_DECODED_TWICE = re.compile(r"%[0-9A-Fa-f]{2}|(?<=^/).*\\")
# Of dates and times that Python does not have, arro3 returns NULL, or it fails: their numbers are read.
_NUMBER_TYPES = {"date": "integer", "timestamp": "long", "timestamp_ntz": "long"}
_CONVERTERS: Mapping[str, Callable[[Any], Any]] = {
    "date": read_day,
    "timestamp": partial(read_micros, in_utc=True),
    "timestamp_ntz": partial(read_micros, in_utc=False),
    "float": Float32,
}
_INNER_TYPES = ("elementType", "keyType", "valueType")

Answer = TypeVar("Answer")


class DeltaRsLog:
    """The logs of Delta tables as delta-rs reads them; each table is read at the version first found.

    Every method raises ``RequiresSparkError`` if delta-rs cannot answer.
    """

    def __init__(
        self,
        storage_options: Mapping[str, str] | None = None,
        *,
        local_files: bool = True,
        object_stores: bool = True,
        is_local: bool = False,
    ) -> None:
        """Create a reader.

        :param storage_options: the credentials of object stores, as delta-rs takes them.
        :param local_files: whether absolute paths are those of this machine.
        :param object_stores: whether there are credentials; without them, delta-rs searches for some seconds.
        :param is_local: whether Spark runs on this machine, so that it cannot reach a store that this process
            cannot reach.
        """
        self._options = dict(storage_options or {})
        self._local_files, self._object_stores, self._is_local = local_files, object_stores, is_local
        self._tables: dict[str, DeltaTable | None] = {}

    def find_newest_version(self, dataset: Dataset) -> TableVersion | None:
        return self._query_if_exists(
            dataset, lambda table: TableVersion(table.version(), str(table.metadata().id), str(dataset.path))
        )

    def read_history(self, dataset: Dataset, limit: int | None) -> Sequence[HistoryEntry]:
        if self._find_table(dataset) is None:
            return []
        history = self._query(dataset, lambda table: read_history(table, limit))
        if history is None:
            raise RequiresSparkError(f"delta-rs cannot read the whole history of {dataset.uri}")
        return history

    def find_restored_version(self, dataset: Dataset, entry: HistoryEntry) -> int | None:
        raise RequiresSparkError(f"{dataset.uri} was restored to a timestamp")

    def read_commit_id(self, location: str, version: int) -> str | None:
        if location.startswith("/"):
            return read_commit_id(Path(location), version)
        return _call(location, lambda: read_remote_commit_id(location, version, self._options))

    def read_properties(self, dataset: Dataset) -> Mapping[str, str]:
        return self._query(dataset, lambda table: table.metadata().configuration)

    def read_transaction(self, dataset: Dataset, app_id: str) -> int | None:
        return self._query(dataset, lambda table: table.transaction_version(app_id) or 0)

    def count_rows(self, dataset: Dataset, version: int) -> int | None:
        return self._query(dataset, lambda table: count_rows(table, version, live=True))

    def find_properties(self, dataset: Dataset) -> Mapping[str, str] | None:
        return self._query_if_exists(dataset, lambda table: table.metadata().configuration)

    def read_fields(self, pinned: PinnedDataset) -> Fields:
        return self._query(pinned.dataset, lambda table: read_fields(table, pinned.version))

    def read_example(self, pinned: PinnedDataset, name: str) -> str | None:
        return self._query(pinned.dataset, lambda table: read_example(table, pinned.version, name))

    def find_files_version(self, dataset: Dataset) -> int | None:
        raise RequiresSparkError(f"{dataset.uri} consists of files without a log")

    def has_rows(self, dataset: Dataset) -> bool:
        row_count = self._query(dataset, lambda table: count_rows(table, table.version(), live=False))
        if row_count is None:
            raise RequiresSparkError(f"the log of {dataset.uri} does not count the rows of every file")
        return row_count > 0

    def _query(self, dataset: Dataset, query: Callable[[DeltaTable], Answer]) -> Answer:
        table = self._find_table(dataset)
        if table is None:
            raise RequiresSparkError(f"{dataset.uri} does not exist")
        return _call(dataset.uri, lambda: query(table))

    def _query_if_exists(self, dataset: Dataset, query: Callable[[DeltaTable], Answer]) -> Answer | None:
        return None if self._find_table(dataset) is None else self._query(dataset, query)

    def _find_table(self, dataset: Dataset) -> DeltaTable | None:
        path = dataset.path
        if path is None:
            raise RequiresSparkError(f"{dataset.table} is a catalog table")
        if dataset.format != "delta":
            raise RequiresSparkError(f"{dataset.uri} consists of files without a log")
        if not (self._local_files if path.startswith("/") else self._object_stores):
            raise RequiresSparkError(f"this process cannot read {path}")
        if path not in self._tables:
            self._tables[path] = self._open_table(dataset, path)
        return self._tables[path]

    def _open_table(self, dataset: Dataset, path: str) -> DeltaTable | None:
        if path.startswith("/") and not Path(path, "_delta_log").is_dir():
            if _has_files(Path(path)):
                raise refuse_other_format(dataset)
            return None
        try:
            return _call(path, lambda: find_table(path, self._options))
        except SetupError as error:
            if self._is_local:
                raise
            raise RequiresSparkError(error.message) from error


def find_table(path: str, storage_options: Mapping[str, str] | None = None) -> DeltaTable | None:
    """Open the newest version of a table; return None if there is no table."""
    from deltalake.exceptions import TableNotFoundError

    try:
        return open_table(path, storage_options=storage_options)
    except TableNotFoundError as error:
        # delta-rs also raises this error for an unknown URI scheme.
        if str(error).startswith("Unknown scheme"):
            raise
        return None


def open_table(
    path: str, version: int | None = None, *, storage_options: Mapping[str, str] | None = None
) -> DeltaTable:
    """Open a table at a version; the environment adds the address of its store to the options.

    :raises SetupError: if the object store cannot be reached, or has no such bucket.
    :raises TableNotFoundError: if there is no table.
    """
    with _refuse_store_errors(path):
        return load_table(path, version, complete_options(path, storage_options))


def load_table(
    path: str, version: int | None = None, storage_options: Mapping[str, str] | None = None
) -> DeltaTable:
    """Open a table at a version with the errors of delta-rs, for callers that have another way to read it.

    The files of the table can be read until it is garbage-collected.

    :raises DataError: if delta-rs cannot read tables with such a name.
    """
    from deltalake import DeltaTable

    unreadable = _DECODED_TWICE.search(path)
    if unreadable and not path.startswith("/"):
        hint = "rename the folder; only Spark can read it"
        message = f"delta-rs cannot read a table in an object store with {unreadable[0]} in its name"
        raise DataError.from_problems([Problem(path, "unreadable", message, hint)])
    if unreadable is None:
        options = dict(storage_options or {}) or None
        return DeltaTable(format_table_uri(path), version=version, storage_options=options)
    with ExitStack() as stack:
        folder = str(stack.enter_context(make_work_folder()) / "table")
        Path(folder).mkdir()
        _link_entries(path, folder)
        table = DeltaTable(folder, version=version)
        # Writers add files before they commit: now every file of the opened version is there.
        _link_entries(path, folder)
        weakref.finalize(table, stack.pop_all().close)
    return table


def _link_entries(path: str, folder: str) -> None:
    """Link what a table consists of in a folder; what is linked already is skipped."""
    for entry in Path(path).iterdir() if Path(path).is_dir() else ():
        with suppress(FileExistsError):
            Path(folder, entry.name).symlink_to(entry)


def is_table(path: str) -> bool:
    """Return whether a location contains a Delta table."""
    from deltalake import DeltaTable

    with _refuse_store_errors(path):
        return DeltaTable.is_deltatable(format_table_uri(path), complete_options(path))


@contextmanager
def _refuse_store_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if refused := find_store_error(path, str(error)):
            raise refused from error
        raise


def read_history(table: DeltaTable, limit: int | None) -> list[HistoryEntry] | None:
    """Return the commits of a table, newest first; None if delta-rs leaves out the newest one."""
    entries = [parse_entry(line) for line in table.history(limit)]
    # The history of delta-rs leaves out commits without commit information.
    return entries if entries and entries[0].version == table.version() else None


def parse_entry(line: Mapping[str, Any]) -> HistoryEntry:
    """Parse an entry of a history; its time is in milliseconds (delta-rs) or a driver timestamp (Spark)."""
    row_count = (line.get("operationMetrics") or {}).get("numOutputRows")
    stamp = line["timestamp"]
    return HistoryEntry(
        version=int(line["version"]),
        operation=line.get("operation") or "",
        parameters=line.get("operationParameters") or {},
        user_metadata=line.get("userMetadata"),
        rows=None if row_count is None else int(row_count),
        timestamp=int(stamp.timestamp() * 1000) if isinstance(stamp, datetime) else int(stamp or 0),
        author=str(next(filter(None, map(line.get, _AUTHORS)), "")),
    )


def read_fields(table: DeltaTable, version: int | None) -> Fields:
    """Return the columns of a table at a version, in Spark's JSON form; None is the version of the table."""
    if version is not None and table.version() != version:
        table.load_as_version(version)
    fields: Fields = json.loads(table.schema().to_json())["fields"]
    return fields


def read_example(table: DeltaTable, version: int | None, name: str) -> str | None:
    """Return a value of a column of a table at a version as text; None if it has none but NULL."""
    from deltalake import QueryBuilder

    if version is not None and table.version() != version:
        table.load_as_version(version)
    column = '"' + name.replace('"', '""') + '"'
    query = f"SELECT {column} AS v FROM t WHERE {column} IS NOT NULL LIMIT 1"
    for batch in QueryBuilder().register("t", table).execute(query):
        for value in read_columns(batch)["v"]:
            return mask_value(format_value(value), [name])
    return None


def read_columns(batch: Any, names: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """Return the values of the columns of an Arrow table, of some or all, in any year and exactly."""
    from arro3.core import Table  # noqa: PLC0415 - a dependency of deltalake
    from deltalake import Schema

    table = Table.from_arrow(batch)
    schema = json.loads(Schema.from_arrow(table.schema).to_json())
    numbers = Schema.from_json(json.dumps(_replace_times(schema))).to_arrow()
    columns = {}
    for position, field in enumerate(schema["fields"]):
        name, kind = field["name"], field["type"]
        if names is None or name in names:
            column = table.column(position)
            if _replace_times(kind) != kind:
                column = column.cast(numbers.field(position).type)
            columns[name] = [decode_variants(_convert_value(value, kind)) for value in column.to_pylist()]
    return columns


def _replace_times(kind: Any) -> Any:
    """Return a type, as Delta names it in JSON, with integers instead of dates and times."""
    if isinstance(kind, str):
        return _NUMBER_TYPES.get(kind, kind)
    if kind["type"] == "struct":
        fields = [{**field, "type": _replace_times(field["type"])} for field in kind["fields"]]
        return {**kind, "fields": fields}
    inner = {name: _replace_times(kind[name]) for name in _INNER_TYPES if name in kind}
    return {**kind, **inner}


def _convert_value(value: Any, kind: Any) -> Any:
    """Return a value of a type, as Delta names it in JSON, whose dates and times are numbers."""
    if value is None:
        return None
    if isinstance(kind, str):
        return _CONVERTERS[kind](value) if kind in _CONVERTERS else value
    if kind["type"] == "struct":
        types = {field["name"]: field["type"] for field in kind["fields"]}
        return {name: _convert_value(item, types[name]) for name, item in value.items()}
    if kind["type"] == "array":
        return [_convert_value(item, kind["elementType"]) for item in value]
    key_kind, value_kind = kind["keyType"], kind["valueType"]
    return [(_convert_value(key, key_kind), _convert_value(item, value_kind)) for key, item in value]


def read_commit_id(location: Path, version: int) -> str | None:
    """Return a digest of the commit that made a version; None if the log does not hold the commit any more.

    A copy of a table keeps the table ID and the commits. If the digests of two logs are equal, the logs share
    that commit and all commits before it.
    """
    path = location / "_delta_log" / f"{version:020d}.json"
    return sha256(path.read_bytes()).hexdigest()[:DIGEST_CHARS] if path.is_file() else None


def read_remote_commit_id(location: str, version: int, options: Mapping[str, str]) -> str | None:
    """Return the digest of a commit of a table in an object store, as ``read_commit_id``."""
    content = read_log_entry(location, version, options)
    return None if content is None else sha256(content).hexdigest()[:DIGEST_CHARS]


def read_log_entry(location: str, version: int, options: Mapping[str, str]) -> bytes | None:
    """Return the log entry of a version of a table in an object store; None if there is none any more."""
    from deltalake.fs import DeltaStorageHandler

    handler = DeltaStorageHandler(format_table_uri(location), complete_options(location, options))
    try:
        return bytes(handler.open_input_file(f"_delta_log/{version:020d}.json").read())
    except FileNotFoundError:
        return None


def count_rows(table: DeltaTable, version: int, *, live: bool) -> int | None:
    """Return how many rows the files of a version hold; None if the log does not tell.

    ``live`` leaves out rows that deletion vectors mark as deleted. If the table is so large that reading the
    deletion vectors takes long, they are not read.
    """
    if table.version() != version:
        table.load_as_version(version)
    counts = table.get_add_actions().column("num_records").to_pylist()
    if None in counts:
        return None
    if not live or "deletionVectors" not in (table.protocol().reader_features or ()):
        return int(sum(counts))
    return int(sum(counts)) - _count_deleted(table) if sum(counts) <= _VECTORS_MAX_ROWS else None


def refuse_other_format(dataset: Dataset) -> DataError:
    """Return the error of a path or name that holds something other than a Delta table."""
    hint = 'set the format of an input: {"dataset": …, "format": "parquet"}; use another folder for a target'
    return DataError.from_problems(
        [Problem(dataset.id, "not-delta", f"{dataset.uri} is not a Delta table", hint)]
    )


def _count_deleted(table: DeltaTable) -> int:
    """Count the rows that deletion vectors mark as deleted; a vector has a False for each of them."""
    from arro3.core import list_flatten  # noqa: PLC0415 - a dependency of deltalake

    vectors = (list_flatten(batch.column("selection_vector")) for batch in table.deletion_vectors())
    return sum(len(vector) - int(vector.to_numpy().sum()) for vector in vectors)


def _call(location: str, query: Callable[[], Answer]) -> Answer:
    try:
        return query()
    except SetupError:
        raise
    # Whatever stops delta-rs (an unsupported feature, missing credentials): Spark may be able to read it.
    except Exception as error:
        raise RequiresSparkError(f"delta-rs cannot read {location}: {error}") from error


def _has_files(folder: Path) -> bool:
    return folder.is_file() or any(path.is_file() for path in folder.rglob("*"))
