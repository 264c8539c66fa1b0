"""Represent the changes of a load to stored rows as rows, each an insert, update or delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import StructField, StructType

from airflow_merge_provider.core.merge_load.requirements import PREFIX
from airflow_merge_provider.jobs.delta.writer import NEW, OLD
from airflow_merge_provider.jobs.merge_load.columns import comparable_text, refer_to_columns, to_comparable
from airflow_merge_provider.jobs.run.change_set import (
    COLUMNS,
    DELETED,
    INSERTED,
    PAIRED_BY,
    UPDATED,
    ChangeSet,
    build_change,
    find_row_type,
    insert_rows,
    pack_row,
    pair_rows,
)
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.exact_text import exact_text
from airflow_merge_provider.jobs.spark.expressions import combine_with_and, combine_with_or
from airflow_merge_provider.jobs.spark.sql import quote_column

ACTION = f"{PREFIX}action"
COUNTED = f"{PREFIX}counted"
WEIGHT = f"{PREFIX}weight"
MARKS = (ACTION, COUNTED, WEIGHT)
INSERT, UPDATE, DELETE, NOTHING = "insert", "update", "delete", "nothing"
Remembers = Literal["never", "unchanged", "always"]


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows with one action each, all columns of the target, and the columns that match stored rows.

    ``address`` are the columns that match stored rows, never NULL unless they are ``nullable``; inserts
    match no stored rows, except such as are deleted. Each row has the name under which the report counts
    it, and its weight there; a deletion without such a name is one whose row is replaced. ``updated`` are
    the columns that updates set, all if empty; the others do not change. ``only`` is a condition on the
    target (OLD) that all affected stored rows satisfy, so that Delta can skip files. ``times`` are the load
    times to record for a history, always or if nothing changed; ``sequences`` are the sequence values that
    later loads need. ``replaces_rows`` is set if a row may be deleted and inserted with the same address.
    """

    rows: DataFrame
    address: Sequence[StructField]
    columns: Sequence[str]
    updated: Sequence[str] = ()
    only: str | None = None
    nullable: bool = False
    times: DataFrame | None = None
    remembers: Remembers = "never"
    sequences: DataFrame | None = None
    replaces_rows: bool = False

    @property
    def written_rows(self) -> DataFrame:
        """The rows that are inserted or that replace stored rows."""
        return self.rows.where(
            quote_column(ACTION) == INSERT if self.updated else quote_column(ACTION) != DELETE
        )

    @property
    def replacement_rows(self) -> DataFrame:
        """The inserted and updated rows, with the columns of the target."""
        rows = self.rows.where(quote_column(ACTION).isin(INSERT, UPDATE))
        return rows.select(*refer_to_columns(self.columns))

    @property
    def match_condition(self) -> str:
        """The SQL condition that matches rows with stored rows."""
        only = [] if self.only is None else [f"({self.only})"]
        return " AND ".join([*only, *map(self._build_equality, self.address)])

    @property
    def merge_condition(self) -> str:
        """The condition of the MERGE."""
        return f"{sql.quote_name(NEW, ACTION)} <> '{INSERT}' AND {self.match_condition}"

    def _build_equality(self, address: StructField) -> str:
        """Return the equality of one address column as SQL."""
        equal = "<=>" if self.nullable else "="
        return f"{comparable_text(address, OLD)} {equal} {comparable_text(address, NEW)}"

    @property
    def merge_clauses(self) -> list[str]:
        """The clauses of the MERGE; columns are unqualified, because the target may not have them yet."""
        sets = ", ".join(
            f"{sql.quote_name(name)} = {sql.quote_name(NEW, name)}" for name in self.updated or self.columns
        )
        names = sql.quote_names(self.columns)
        values = ", ".join(sql.quote_name(NEW, name) for name in self.columns)
        action = sql.quote_name(NEW, ACTION)
        return [
            f"WHEN MATCHED AND {action} = '{DELETE}' THEN DELETE",
            f"WHEN MATCHED AND {action} = '{UPDATE}' THEN UPDATE SET {sets}",
            f"WHEN NOT MATCHED AND {action} = '{INSERT}' THEN INSERT ({names}) VALUES ({values})",
        ]


def list_changed_rows(changes: Changes, stored: DataFrame) -> ChangeSet:
    """Return the changes with the stored rows that they affect."""
    if not changes.address:
        return insert_rows(
            changes.rows.where(quote_column(ACTION) == INSERT).select(*refer_to_columns(changes.columns)),
            stored,
        )
    affected = changes.rows.where(quote_column(ACTION).isin(UPDATE, DELETE)).alias(NEW)
    matches = stored.alias(OLD).join(affected, F.expr(changes.match_condition))
    counted = F.col(sql.quote_name(NEW, COUNTED))
    is_update = F.col(sql.quote_name(NEW, ACTION)) == UPDATE
    images = {
        "before": pack_row(stored.columns, OLD),
        "after": F.when(is_update, _pack_updated_row(changes, stored)),
    }
    kind = F.when(is_update, F.lit(UPDATED)).otherwise(F.lit(DELETED))
    overwritten = matches.select(*build_change(kind, counted, **images), *_refer_to_address(changes, OLD))
    new_images = {
        "before": F.lit(None).cast(find_row_type(stored)),
        "after": pack_row(changes.columns),
    }
    inserted = changes.rows.where(quote_column(ACTION) == INSERT).select(
        *build_change(INSERTED, quote_column(COUNTED), **new_images), *_refer_to_address(changes)
    )
    rows = overwritten.unionByName(inserted)
    return ChangeSet(pair_rows(rows) if changes.replaces_rows else rows.select(*COLUMNS))


def _pack_updated_row(changes: Changes, stored: DataFrame) -> Column:
    """Return the row after an update; columns that the target does not have yet are NULL unless set."""

    def find_value(name: str) -> Column:
        if name in (changes.updated or changes.columns):
            return F.col(sql.quote_name(NEW, name))
        if name in stored.columns:
            return F.col(sql.quote_name(OLD, name))
        return F.lit(None).cast(changes.rows.schema[name].dataType)

    return F.struct(*(find_value(name).alias(name) for name in changes.columns))


def _refer_to_address(changes: Changes, alias: str | None = None) -> list[Column]:
    """Return the address of a row as one column, by which a deletion is paired with its insertion."""
    if not changes.replaces_rows:
        return []
    pairs = (
        f"{sql.quote_text(field.name)}, {sql.quote_name(*([alias] if alias else []), field.name)}"
        for field in changes.address
    )
    address = exact_text(f"named_struct({', '.join(pairs)})", StructType(list(changes.address)))
    return [address.alias(PAIRED_BY)]


def add_action(
    rows: DataFrame, action: Column | str, counted: Column | str | None, weight: int = 1
) -> DataFrame:
    """Return rows with an action and the name under which the report counts them."""
    return rows.select(
        "*",
        _to_column(action).alias(ACTION),
        _to_column(counted).cast("string").alias(COUNTED),
        F.lit(weight).cast("bigint").alias(WEIGHT),
    )


def complete_rows(new_values: DataFrame, stored: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return complete stored rows, with ``new_values`` in their columns."""
    new_columns = [name for name in new_values.columns if name not in by]
    return stored.drop(*new_columns).join(new_values, list(by))


def map_values(mapping: Mapping[str, str], column: Column) -> Column:
    """Return the value that a mapping assigns to a column's value."""
    return F.create_map(*[F.lit(value) for pair in mapping.items() for value in pair])[column]


def union_rows(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the union of DataFrames; columns that are missing in one of them are NULL there."""
    return reduce(lambda union, frame: union.unionByName(frame, allowMissingColumns=True), frames)


def is_same(names: Sequence[str], left_alias: str, right_alias: str) -> Column:
    """Return whether columns of two aliased DataFrames are equal; NULL equals NULL."""
    pairs = zip(refer_to_columns(names, left_alias), refer_to_columns(names, right_alias), strict=True)
    return combine_with_and(left.eqNullSafe(right) for left, right in pairs)


def is_differing(fields: Sequence[StructField], left_alias: str, right_alias: str) -> Column:
    """Return whether two aliased DataFrames differ in any of the columns."""
    return combine_with_or(
        ~to_comparable(field, left_alias).eqNullSafe(to_comparable(field, right_alias)) for field in fields
    )


def _to_column(value: Column | str | None) -> Column:
    return value if isinstance(value, Column) else F.lit(value)
