"""Find columns of a table that may identify its rows, from its schema and the statistics in its log.

No rows are read. Statistics can prove that a column is not a key: it has NULLs, or fewer values than rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from airflow_merge_provider.core.errors import ConfigError, Problem, suggest_name
from airflow_merge_provider.delta_rs import read_columns
from airflow_merge_provider.explain.reading import find_column, list_types
from airflow_merge_provider.explain.target import open_target

if TYPE_CHECKING:
    from deltalake import DeltaTable

_INTEGERS = frozenset({"byte", "short", "integer", "long"})
_KEY_TYPES = _INTEGERS | {"string"}
_ID = re.compile(r"_?id", re.IGNORECASE)
# Names that several systems use for the same thing, so that equal values mean the same entity.
_SHARED_ID = re.compile(
    r".*[a-z0-9]_(id|key|code|number|no)|(.*_)?(uuid|guid|isbn|issn|ean|gtin|sku|iban|bic|lei|duns|vat|vat_id|"
    r"tax_id|ssn|iata|icao|phone|mobile|e?_?mail|mail_address|email_address|e_mail_address)",
    re.IGNORECASE,
)
_MAIL = re.compile(r".*mail.*", re.IGNORECASE)
_KEY = re.compile(r"(.*_)?(id|key|code|number|no|uuid|guid|sku|email|isbn|iata|icao)", re.IGNORECASE)
_TIME = re.compile(
    r"_?(updated|modified|changed|last_updated|last_modified|update_time|updated_at|modified_at|changed_at|ts|"
    r"timestamp|event_time|sequence|seq|lsn|version)",
    re.IGNORECASE,
)
_TIME_TYPES = _INTEGERS | {"timestamp", "timestamp_ntz", "date"}
# Delta cuts off the statistics of longer strings.
_EXACT_CHARS = 32


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a source; ``has_nulls`` and ``has_duplicates`` are what the statistics prove."""

    name: str
    type: str
    has_nulls: bool = False
    has_duplicates: bool = False

    @property
    def is_mail(self) -> bool:
        """Whether the name says that the column holds email addresses."""
        return self.type == "string" and bool(_MAIL.fullmatch(self.name))

    @property
    def is_shared_id(self) -> bool:
        """Whether the name says that equal values in two tables mean the same."""
        return self.type in _KEY_TYPES and bool(_SHARED_ID.fullmatch(self.name))

    @property
    def is_time(self) -> bool:
        """Whether the column tells which of two rows is newer."""
        return self.type in _TIME_TYPES and bool(_TIME.fullmatch(self.name))


@dataclass(frozen=True, slots=True)
class SourceTable:
    """The columns of a dataset; ``name`` is the last part of its location."""

    dataset: str
    name: str
    columns: tuple[SourceColumn, ...]

    def find_column(self, name: str) -> SourceColumn | None:
        """Return the column of a name; None if there is none."""
        actual_name = find_column(name, [column.name for column in self.columns])
        return next((column for column in self.columns if column.name == actual_name), None)

    def require_columns(self, names: Iterable[str]) -> list[SourceColumn]:
        """Return the columns that a user names.

        :raises ConfigError: with every name that the table does not have.
        """
        columns = {name: self.find_column(name) for name in names}
        valid_names = [column.name for column in self.columns]
        problems = [
            Problem(
                "--key",
                "unknown",
                f"{self.dataset} has no column {name!r}",
                suggest_name(name, valid_names, "columns"),
            )
            for name, column in columns.items()
            if column is None
        ]
        if problems:
            raise ConfigError.from_problems(problems)
        return [column for column in columns.values() if column is not None]

    def list_keys(self) -> list[SourceColumn]:
        """Return the columns that may be the key, the most likely one first."""
        ranked = sorted(
            (rank, position)
            for position, column in enumerate(self.columns)
            if (rank := self._rank_key(column)) is not None
        )
        return [self.columns[position] for _, position in ranked]

    def find_time(self) -> SourceColumn | None:
        """Return the first column that tells which of two rows is newer; None if there is none."""
        return next((column for column in self.columns if column.is_time), None)

    def _rank_key(self, column: SourceColumn) -> int | None:
        """Return the rank of a column as a key; None if it cannot be one or its name does not say so."""
        if column.type not in _KEY_TYPES or column.has_nulls or column.has_duplicates:
            return None
        name = column.name.casefold()
        own_names = {f"{self.name.casefold().removesuffix('s')}_id", f"{self.name.casefold()}_id"}
        if _ID.fullmatch(name):
            return 0
        if name in own_names:
            return 1
        return 2 if _KEY.fullmatch(name) else None


def read_source(dataset: str, warehouse: str | None) -> SourceTable:
    """Return the columns of a dataset.

    :raises ConfigError: if it has no location.
    :raises DataError: if it is not a Delta table.
    """
    location, table = open_target(dataset, warehouse)
    facts = dict(_read_facts(table))
    columns = [SourceColumn(name, kind, *facts.get(name, ())) for name, kind in list_types(table).items()]
    return SourceTable(dataset, str(location.path).rstrip("/").rpartition("/")[2], tuple(columns))


def _read_facts(table: DeltaTable) -> Iterator[tuple[str, tuple[bool, bool]]]:
    """Yield for each column whether its statistics prove NULLs, and whether they prove duplicates."""
    statistics = read_columns(table.get_add_actions(flatten=True))
    counts = statistics.get("num_records", [])
    for name in list_types(table):
        nulls = statistics.get(f"null_count.{name}", [])
        lows, highs = statistics.get(f"min.{name}", []), statistics.get(f"max.{name}", [])
        files = zip(counts, nulls, lows, highs, strict=False)
        has_nulls = any(count for count in nulls)
        yield name, (has_nulls, any(_has_duplicates(*file) for file in files))


def _has_duplicates(count: int | None, nulls: int | None, low: Any, high: Any) -> bool:
    """Return whether the rows of a file must repeat values: there are fewer values than rows."""
    if count is None or low is None or high is None:
        return False
    rows = count - (nulls or 0)
    if isinstance(low, int) and not isinstance(low, bool):
        return bool(high - low + 1 < rows)
    is_exact = isinstance(low, date) and not isinstance(low, datetime)
    if isinstance(low, str):
        is_exact = len(low) < _EXACT_CHARS
    return is_exact and rows > 1 and bool(low == high)


def group_by_name(tables: Sequence[SourceTable]) -> Mapping[tuple[str, str], list[tuple[SourceTable, str]]]:
    """Return the tables with each column, and its name there, by its name in lower case and its type."""
    groups: dict[tuple[str, str], list[tuple[SourceTable, str]]] = {}
    for table in tables:
        for column in table.columns:
            groups.setdefault((column.name.casefold(), column.type), []).append((table, column.name))
    return groups
