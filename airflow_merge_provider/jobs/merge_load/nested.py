"""How lists become tables of their own beside the target, and stay in step with it.

A row of the target has the key ``_row_id``, which changes with its lists; an element of a list has one of its
own, that of its parent, that of the target's row at its root, and its place in the list. Elements are written
before the row they belong to and deleted after it: whoever joins the tables by their keys sees no element of
a row that is not there. Source: merge_load spec §7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession, functions as F
from pyspark.sql.types import ArrayType, StructField, StructType

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_load.config import AnyLoad
from airflow_merge_provider.core.merge_load.load import LIST_INDEX, PARENT_ID, ROOT_ID, ROW_ID
from airflow_merge_provider.core.merge_load.scd2 import Scd2Config
from airflow_merge_provider.jobs.delta.table import pin_dataset, read_dataset
from airflow_merge_provider.jobs.delta.writer import NEW, OLD, append_rows, create_table, merge_rows
from airflow_merge_provider.jobs.merge_load.changes import PREFIX
from airflow_merge_provider.jobs.merge_load.columns import aligned, content_hash, layout, refer
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.sql import column

_WRITER = "merge_load_nested"
_IDS = (ROW_ID, PARENT_ID, ROOT_ID, LIST_INDEX)
_ELEMENT = f"{PREFIX}element"
_VALUE, _LIST = "value", "list"


@dataclass(frozen=True, slots=True)
class Nested:
    """The lists of a load: its rows without them, and the tables that they become."""

    source: DataFrame
    lists: tuple[str, ...]

    @classmethod
    def of(cls, source: DataFrame, config: AnyLoad) -> Nested:
        """Take the lists out of a source, and give each row its key.

        :raises DataError: when a column has a name that is needed.
        """
        _require_free(source.schema, str(config.source))
        lists = _lists(source.schema)
        # An empty list and none leave the same rows.
        kept = source.withColumns({name: F.when(F.size(column(name)) > 0, column(name)) for name in lists})
        return cls(kept.withColumn(ROW_ID, content_hash(_identity(kept.schema, lists, config))), lists)

    @property
    def rows(self) -> DataFrame:
        """The rows as the target has them."""
        return self.source.drop(*self.lists)

    def elements(self, written: DataFrame) -> Iterator[tuple[str, DataFrame]]:
        """Give the elements of rows by the tail of their table's name; ``written`` has the rows' keys."""
        wide = self.source.select(ROW_ID, *refer(self.lists)).dropDuplicates([ROW_ID])
        wide = wide.join(written.select(ROW_ID).distinct(), ROW_ID, "left_semi")
        yield from _exploded(wide.withColumn(ROOT_ID, column(ROW_ID)), self.lists, "")


def beside(target: Dataset, tail: str) -> Dataset:
    """Name the table of a list."""
    path = None if target.path is None else f"{target.path}{tail}"
    table = None if target.table is None else f"{target.table}{tail}"
    return replace(target, id=f"{target.id}{tail}", path=path, table=table)


def add(spark: SparkSession, target: Dataset, tail: str, elements: DataFrame, evolution: str) -> int:
    """Write the elements of rows that their table does not know yet; gives how many.

    :raises DataError: when they do not fit what is stored.
    """
    dataset = beside(target, tail)
    pinned = pin_dataset(spark, dataset)
    if not pinned.exists:
        fields = layout(elements.schema, None, (), evolution, dataset.id)
        create_table(dataset, elements.select(*aligned(elements, fields)), _WRITER)
        return spark.table(sql.table(dataset)).count()
    stored = read_dataset(spark, pinned)
    fields = layout(elements.schema, stored.schema, (), evolution, dataset.id)
    new = elements.join(stored.select(ROOT_ID).distinct(), ROOT_ID, "left_anti")
    new = new.select(*aligned(new, fields)).persist()
    try:
        count = new.count()
        if count:
            append_rows(dataset, new, new_columns=True)
        return count
    finally:
        new.unpersist()


def clear(spark: SparkSession, target: Dataset, tail: str) -> int:
    """Delete the elements whose row is not in the target any more; gives how many."""
    dataset = beside(target, tail)
    pinned = pin_dataset(spark, dataset)
    if not pinned.exists:
        return 0
    roots = spark.table(sql.table(target)).select(column(ROW_ID).alias(ROOT_ID))
    gone = read_dataset(spark, pinned).join(roots, ROOT_ID, "left_anti").select(ROOT_ID).persist()
    try:
        count = gone.count()
        if count:
            found = f"{sql.name(OLD, ROOT_ID)} = {sql.name(NEW, ROOT_ID)}"
            merge_rows(spark, dataset, gone.distinct(), found, ["WHEN MATCHED THEN DELETE"])
        return count
    finally:
        gone.unpersist()


def require_form(stored: StructType, config: AnyLoad, target: str) -> None:
    """Refuse a target whose lists lie where this load does not look for them.

    :raises DataError: when they do.
    """
    has_tables = ROW_ID in stored.names
    if has_tables != (config.nested == "tables"):
        was, hint = ("tables" if has_tables else "columns"), "or write it anew with full_refresh=True"
        message = f"the target was written with nested={was!r}"
        raise DataError.of([Problem(target, "nested", message, f"ask for nested={was!r}, {hint}")])


def _identity(schema: StructType, lists: Sequence[str], config: AnyLoad) -> list[StructField]:
    """Give the columns that say which row it is: its key and its lists, or all where there is no key."""
    key = config.natural_key if isinstance(config, Scd2Config) else config.primary_key
    if key is None or any(name not in schema.names for name in key):
        return list(schema.fields)
    return [schema[name] for name in (*key, *lists)]


def _exploded(parents: DataFrame, lists: Sequence[str], head: str) -> Iterator[tuple[str, DataFrame]]:
    for name in lists:
        tail = f"{head}__{name}"
        found = parents.select(
            ROOT_ID, column(ROW_ID).alias(PARENT_ID), F.posexplode(column(name)).alias(LIST_INDEX, _ELEMENT)
        )
        key = F.md5(F.concat_ws("|", PARENT_ID, F.lit(tail), column(LIST_INDEX).cast("string")))
        columns = _columns(found.schema[_ELEMENT])
        found = found.select(key.alias(ROW_ID), PARENT_ID, ROOT_ID, LIST_INDEX, *columns)
        inner = _lists(found.schema)
        yield tail, found.drop(*inner)
        yield from _exploded(found.select(ROW_ID, ROOT_ID, *refer(inner)), inner, tail)


def _columns(element: StructField) -> list[Column]:
    kind = element.dataType
    if isinstance(kind, StructType):
        _require_free(kind, "an element of a list")
        return [column(_ELEMENT)[name].alias(name) for name in kind.names]
    return [column(_ELEMENT).alias(_LIST if isinstance(kind, ArrayType) else _VALUE)]


def _lists(schema: StructType) -> tuple[str, ...]:
    return tuple(field.name for field in schema.fields if isinstance(field.dataType, ArrayType))


def _require_free(schema: StructType, what: str) -> None:
    taken = [name for name in schema.names if name in _IDS]
    if taken:
        message = f"{what} has a column {taken[0]!r}, which tables of lists need"
        raise DataError.of(
            [Problem(taken[0], "column", message, "rename it, or leave lists in their columns")]
        )
