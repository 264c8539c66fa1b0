"""Write lists to tables of their own beside the target, and keep them consistent with the target.

A row of the target has the key ``_row_id``, which changes with its lists. A list element has a key of its
own, the key of its parent, the key of the target row at its root, and its index in the list. Elements are
written before the row they belong to and deleted after it, so that a join of the tables by these keys
returns no elements of missing rows, and all elements of existing rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import ArrayType, StructField, StructType

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem, format_count
from airflow_merge_provider.core.merge_load.columns import list_missing
from airflow_merge_provider.core.merge_load.config import AnyLoad
from airflow_merge_provider.core.merge_load.load import (
    LIST_INDEX,
    PARENT_ID,
    ROOT_ID,
    ROW_ID,
    SchemaEvolution,
)
from airflow_merge_provider.core.merge_load.requirements import PREFIX
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from airflow_merge_provider.core.run.previous_run import PreviousRun
from airflow_merge_provider.jobs.delta.side_table import SideTable
from airflow_merge_provider.jobs.delta.writer import NEW, OLD, WriteOptions
from airflow_merge_provider.jobs.merge_load.columns import (
    align_columns,
    content_hash,
    find_layout,
    refer_to_columns,
)
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.expressions import add_columns
from airflow_merge_provider.jobs.spark.sql import quote_column

_NESTED_OWNER = "merge_load_nested"
_IDS = (ROW_ID, PARENT_ID, ROOT_ID, LIST_INDEX)
_ELEMENT_COLUMN = f"{PREFIX}element"
_VALUE_COLUMN, _LIST = "value", "list"


@dataclass(frozen=True, slots=True)
class NestedLists:
    """The lists of a load: its rows without them, and the tables that they become."""

    source: DataFrame
    lists: tuple[str, ...]

    @classmethod
    def from_source(cls, source: DataFrame, config: AnyLoad) -> NestedLists:
        """Split the lists off a source, and add the key of each row.

        :raises DataError: when a column has a name that is needed.
        """
        _require_free(source.schema, str(config.source))
        lists = _find_lists(source.schema)
        # An empty list and NULL are equal: both have no elements.
        rows = add_columns(
            source, {name: F.when(F.size(quote_column(name)) > 0, quote_column(name)) for name in lists}
        )
        return cls(
            rows.withColumn(ROW_ID, content_hash(_find_identity_columns(rows.schema, lists, config))), lists
        )

    @property
    def rows(self) -> DataFrame:
        """The rows with the columns of the target, without lists."""
        return self.source.drop(*self.lists)

    def list_elements(self, written: DataFrame) -> Iterator[tuple[str, DataFrame]]:
        """Yield the list elements by table name suffix; ``written`` has the keys of their rows."""
        wide = self.source.select(ROW_ID, *refer_to_columns(self.lists)).dropDuplicates([ROW_ID])
        wide = wide.join(written.select(ROW_ID).distinct(), ROW_ID, "left_semi")
        yield from _explode_lists(wide.withColumn(ROOT_ID, quote_column(ROW_ID)), self.lists, "")


def list_null_warnings(source: DataFrame, names: Sequence[str]) -> list[str]:
    """Return a warning for each column that has NULL and empty lists, which its table cannot tell apart."""
    counters = [
        F.count_if(condition)
        for name in names
        for column in [quote_column(name)]
        for condition in (column.isNull(), F.size(column) == 0)
    ]
    counts = list(source.agg(*counters).collect()[0]) if counters else []
    return [
        f"column {name!r} has {format_count(nulls, 'NULL list')} and {format_count(empty, 'empty list')}, "
        "which are one value in the table of its elements (use nested='columns' to keep the difference)"
        for name, nulls, empty in zip(names, counts[::2], counts[1::2], strict=True)
        if nulls and empty
    ]


class ListTables:
    """The list tables of one target, as one run finds and writes them."""

    def __init__(
        self, spark: SparkSession, target: Dataset, previous: PreviousRun | None, options: WriteOptions
    ) -> None:
        self._spark, self._target, self._previous, self._options = spark, target, previous, options
        self._tables: dict[str, SideTable] = {}
        self._known: tuple[str, ...] = tuple(previous.state.get("nested", ())) if previous else ()

    @property
    def tails(self) -> list[str]:
        """The name suffixes of the list tables that belong to the target."""
        return sorted({*self._known, *self._tables})

    @property
    def versions(self) -> dict[str, int]:
        """The table versions that the run has written and that its commit has to record."""
        return {tail: table.version for tail, table in self._tables.items() if table.version is not None}

    def require_lists(self, lists: NestedLists, evolution: SchemaEvolution) -> None:
        """Raise an error if the source no longer has a list that has a table, unless that is allowed.

        :raises DataError: with every such list.
        """
        if evolution.allows_missing:
            return
        outer = [
            tail
            for tail in self._known
            if not any(tail.startswith(f"{outer_tail}__") for outer_tail in self._known)
        ]
        names = [tail.removeprefix("__") for tail in outer]
        if problems := list_missing(lists.source.schema.names, names, self._target.id):
            raise DataError.from_problems(problems)

    def add_elements(
        self, lists: NestedLists, written: DataFrame, evolution: SchemaEvolution
    ) -> dict[str, int]:
        """Append the elements of rows that are about to be written, and count the new ones per table.

        :raises DataError: if they do not fit the stored elements.
        :raises ConflictError: if another attempt has written to a table.
        """
        number = self._previous.number + 1 if self._previous else 1
        added = {}
        for tail, elements in lists.list_elements(written):
            self._tables[tail] = self._open_table(tail, number)
            added[tail] = _append_elements(self._tables[tail], elements, evolution)
        return added

    def clear_elements(self, number: int) -> dict[str, int]:
        """Delete the elements whose row is no longer in the target, and count them per table.

        :param number: the run whose rows the target holds now.
        """
        roots = self._spark.table(sql.quote_table(self._target)).select(quote_column(ROW_ID).alias(ROOT_ID))
        tables = {tail: self._tables.get(tail) or self._open_table(tail, number) for tail in self.tails}
        return {tail: _delete_elements(table, roots) for tail, table in tables.items()}

    def restore_tables(self) -> None:
        """Restore the list tables if the target was restored."""
        if self._previous is not None and self._previous.is_restored:
            for tail in self._known:
                self._open_table(tail, self._previous.run_number).restore()

    def _open_table(self, tail: str, number: int) -> SideTable:
        """Open a list table; ``number`` is that of the run for which it is written."""
        dataset = self._target.with_suffix(tail)
        return SideTable.open(
            self._spark,
            dataset,
            _NESTED_OWNER,
            tail,
            self._previous,
            next_number=number,
            options=self._options,
        )


def _append_elements(table: SideTable, elements: DataFrame, evolution: SchemaEvolution) -> int:
    table.restore()
    stored = table.read_rows()
    fields = find_layout(
        elements.schema, None if stored is None else stored.schema, (), evolution, table.dataset.id
    )
    if stored is not None:
        elements = elements.join(stored.select(ROOT_ID).distinct(), ROOT_ID, "left_anti")
    new = elements.select(*align_columns(elements, fields)).persist()
    try:
        count = new.count()
        if count or stored is None:
            table.append_rows(new, new_columns=True)
        return count
    finally:
        new.unpersist()


def _delete_elements(table: SideTable, roots: DataFrame) -> int:
    table.restore()
    stored = table.read_rows()
    if stored is None:
        return 0
    orphans = stored.join(roots, ROOT_ID, "left_anti").select(ROOT_ID).persist()
    try:
        count = orphans.count()
        if count:
            table.delete_rows(
                orphans.distinct(), f"{sql.quote_name(OLD, ROOT_ID)} = {sql.quote_name(NEW, ROOT_ID)}"
            )
        return count
    finally:
        orphans.unpersist()


def _find_identity_columns(schema: StructType, lists: Sequence[str], config: AnyLoad) -> list[StructField]:
    """Return the columns that identify a row: its key and its lists, or all if there is no key."""
    key = config.natural_key if isinstance(config, Scd2Config) else config.primary_key
    if key is None or any(name not in schema.names for name in key):
        return list(schema.fields)
    return [schema[name] for name in (*key, *lists)]


def _explode_lists(parents: DataFrame, lists: Sequence[str], head: str) -> Iterator[tuple[str, DataFrame]]:
    for name in lists:
        tail = f"{head}__{name}"
        elements = parents.select(
            ROOT_ID,
            quote_column(ROW_ID).alias(PARENT_ID),
            F.posexplode(quote_column(name)).alias(LIST_INDEX, _ELEMENT_COLUMN),
        )
        key = F.md5(F.concat_ws("|", PARENT_ID, F.lit(tail), quote_column(LIST_INDEX).cast("string")))
        columns = _list_element_columns(elements.schema[_ELEMENT_COLUMN])
        elements = elements.select(key.alias(ROW_ID), PARENT_ID, ROOT_ID, LIST_INDEX, *columns)
        inner = _find_lists(elements.schema)
        yield tail, elements.drop(*inner)
        yield from _explode_lists(elements.select(ROW_ID, ROOT_ID, *refer_to_columns(inner)), inner, tail)


def _list_element_columns(element: StructField) -> list[Column]:
    kind = element.dataType
    if isinstance(kind, StructType):
        _require_free(kind, "an element of a list")
        return [quote_column(_ELEMENT_COLUMN)[name].alias(name) for name in kind.names]
    return [quote_column(_ELEMENT_COLUMN).alias(_LIST if isinstance(kind, ArrayType) else _VALUE_COLUMN)]


def _find_lists(schema: StructType) -> tuple[str, ...]:
    return tuple(field.name for field in schema.fields if isinstance(field.dataType, ArrayType))


def _require_free(schema: StructType, container: str) -> None:
    reserved_names = [name for name in schema.names if name in _IDS]
    if reserved_names:
        message = f"{container} has a column {reserved_names[0]!r}, which is reserved for nested tables"
        raise DataError.from_problems(
            [Problem(reserved_names[0], "column", message, "rename it, or use nested='columns'")]
        )
