"""Statements that change a Delta table, each of them one commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.population import FLAG, WRITER
from airflow_merge_provider.core.protocol import JobRequest
from airflow_merge_provider.core.run.table_log import DELETION_VECTORS
from airflow_merge_provider.jobs.delta.log import read_history, read_partition_columns, read_properties
from airflow_merge_provider.jobs.delta.stored_values import prepare_rows
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.causes import error_condition as reason
from airflow_merge_provider.jobs.spark.session import override_settings

COLUMN_MAPPING = "delta.columnMapping.mode"
_SPECIAL_CHARACTERS = frozenset(" ,;{}()\n\t=")

# Aliases of the two sides in conditions and clauses: no column has such a name, so Delta cannot confuse them.
NEW, OLD = "__merge_new", "__merge_old"

_TAKEN = "TABLE_OR_VIEW_ALREADY_EXISTS"
# A Delta that supports replacements has a setting that enables them; an older one overwrites the table.
_ALLOWED = "spark.databricks.delta.replaceOn.dataframe.writer.enabled"
# The commit is not tried again after another one.
_COMMITS_FIRST = {"spark.databricks.delta.maxCommitAttempts": "0"}
# Readers of these features see which row became which, and a replacement does not record that.
_FOLLOWED = ("delta.enableChangeDataFeed", "delta.enableRowTracking")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a run writes its target and the tables beside it.

    ``deletion_vectors`` says whether tables that the run creates have them, ``is_populated`` whether such
    tables are populated from their first commit on. ``flagged_uri`` is the target that, if it exists, becomes
    populated before the commit of the run.
    """

    deletion_vectors: bool = True
    is_populated: bool = False
    flagged_uri: str | None = None

    @classmethod
    def from_request(cls, request: JobRequest) -> Self:
        """Return what a request asks for, and what its job has determined."""
        return cls(request.deletion_vectors, request.creates_populated, request.flagged_uri)


DEFAULT_OPTIONS = WriteOptions()


def create_table(
    target: Dataset,
    rows: DataFrame,
    capability: str,
    properties: Mapping[str, str] | None = None,
    partition_by: Sequence[str] = (),
    *,
    options: WriteOptions = DEFAULT_OPTIONS,
) -> None:
    """Create the target from rows, with its properties and partitions, in one commit."""
    rows = prepare_rows(rows, partition_by, with_types=True)
    writer = rows.writeTo(sql.quote_table(target)).using("delta").tableProperty(WRITER, capability)
    if partition_by:
        writer = writer.partitionedBy(*map(sql.quote_column, partition_by))
    if any(map(has_special_characters, list_field_names(rows.schema))):
        writer = writer.tableProperty(COLUMN_MAPPING, "name")
    population = {FLAG: "true"} if options.is_populated else {}
    vectors = {DELETION_VECTORS: str(options.deletion_vectors).lower()}
    for key, value in {**vectors, **population, **(properties or {})}.items():
        writer = writer.tableProperty(key, value)
    try:
        writer.create()
    except AnalysisException as error:
        if reason(error) != _TAKEN or read_history(rows.sparkSession, target, 1):
            raise
        # A first write that was killed leaves a folder with a log without commits.
        writer.createOrReplace()


def set_owner(spark: SparkSession, target: Dataset, capability: str) -> None:
    """Name the capability that writes a table in its properties, in a commit of its own."""
    _set_property(spark, target, WRITER, capability)


def set_flag(spark: SparkSession, target: Dataset) -> None:
    """Mark a table as populated, in a commit of its own that changes no rows; do nothing if it is."""
    if read_properties(spark, target).get(FLAG) != "true":
        _set_property(spark, target, FLAG, "true")


def unset_flag(spark: SparkSession, target: Dataset) -> None:
    """Remove the mark, in a commit of its own that changes no rows; do nothing if there is none."""
    if FLAG in read_properties(spark, target):
        spark.sql(f"ALTER TABLE {sql.quote_table(target)} UNSET TBLPROPERTIES ('{FLAG}')").collect()


def change_flag(spark: SparkSession, target: Dataset, *, is_set: bool) -> None:
    """Set or remove the mark of a table that exists; do nothing if there is no table."""
    if read_history(spark, target, 1):
        (set_flag if is_set else unset_flag)(spark, target)


def _set_property(spark: SparkSession, target: Dataset, name: str, value: str) -> None:
    spark.sql(f"ALTER TABLE {sql.quote_table(target)} SET TBLPROPERTIES ('{name}' = '{value}')").collect()


def list_field_names(schema: StructType) -> Iterator[str]:
    """Yield the names of all columns and of the fields inside them."""
    for field in schema.fields:
        yield field.name
        yield from _list_nested_names(field.dataType)


def _list_nested_names(kind: DataType) -> Iterator[str]:
    if isinstance(kind, StructType):
        yield from list_field_names(kind)
    elif isinstance(kind, ArrayType):
        yield from _list_nested_names(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _list_nested_names(kind.keyType)
        yield from _list_nested_names(kind.valueType)


def has_special_characters(name: str) -> bool:
    """Return whether Delta accepts a column name only in a table with column mapping."""
    return bool(_SPECIAL_CHARACTERS & set(name))


def overwrite_table(target: Dataset, rows: DataFrame) -> None:
    """Replace all rows and the schema; the table, its properties and its history are kept."""
    rows = _prepare_for_table(target, rows, with_types=True)
    rows.writeTo(sql.quote_table(target)).option("overwriteSchema", "true").overwrite(lit(True))


def append_rows(
    target: Dataset, rows: DataFrame, *, new_columns: bool = False, is_shared: bool = False
) -> None:
    """Append rows by column name; add columns that the table lacks only with ``new_columns``.

    Delta refuses the commit if another writer commits while the statement executes, unless ``is_shared`` is
    set: an append reads no rows, so that it would follow any other commit.
    """
    rows = _prepare_for_table(target, rows, with_types=new_columns)
    writer = rows.writeTo(sql.quote_table(target))
    if new_columns:
        writer = writer.option("mergeSchema", "true")
    with override_settings(rows.sparkSession, {} if is_shared else _COMMITS_FIRST):
        writer.append()


def _prepare_for_table(target: Dataset, rows: DataFrame, *, with_types: bool) -> DataFrame:
    """Return rows as they are written into a table that exists."""
    partitions = read_partition_columns(rows.sparkSession, target)
    return prepare_rows(rows, partitions, with_types=with_types)


def restore_table(spark: SparkSession, target: Dataset, version: int) -> None:
    """Restore the rows that the target had at a version, in a commit of its own."""
    spark.sql(f"RESTORE TABLE {sql.quote_table(target)} TO VERSION AS OF {version}").collect()


def delete_all_rows(spark: SparkSession, target: Dataset) -> None:
    """Delete all rows, in a commit of its own; the table, its schema and its history are kept."""
    # A DELETE that finds no rows does not commit.
    no_rows = spark.table(sql.quote_table(target)).limit(0)
    no_rows.writeTo(sql.quote_table(target)).overwrite(lit(True))


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows that change in a table, in the form that each statement that can write them needs.

    ``changes`` are the rows that the ``clauses`` of a MERGE read, with the aliases OLD and NEW and the join
    condition ``condition``. ``inserted`` are the rows if all of them are new, else None. ``replacing`` are
    whole rows that are added or replace the rows that they match by ``matching``; None if rows are deleted
    without a replacement. With ``new_columns`` the table may lack columns.
    """

    changes: DataFrame
    condition: str
    clauses: Sequence[str]
    inserted: DataFrame | None = None
    replacing: DataFrame | None = None
    matching: str = ""
    new_columns: bool = False


def upsert_rows(spark: SparkSession, target: Dataset, upsert: Upsert) -> None:
    """Write changed rows in one commit, by the cheapest statement.

    If all rows are new, they are appended, so that the table is not read. Whole rows replace those that they
    match, if the table allows it. Everything else is a MERGE.
    """
    if upsert.inserted is not None:
        append_rows(target, upsert.inserted, new_columns=upsert.new_columns)
    elif upsert.replacing is not None and can_replace_rows(spark, target):
        replace_rows(target, upsert.replacing, upsert.matching, new_columns=upsert.new_columns)
    else:
        changes, condition, clauses = upsert.changes, upsert.condition, upsert.clauses
        merge_rows(spark, target, changes, condition, clauses, new_columns=upsert.new_columns)


def merge_rows(
    spark: SparkSession,
    target: Dataset,
    changes: DataFrame,
    condition: str,
    clauses: Sequence[str],
    *,
    new_columns: bool = False,
) -> None:
    """Merge changes into the target in one MERGE; ``condition`` and ``clauses`` use the aliases OLD and NEW.

    Columns that the clauses name and the target lacks are added if ``new_columns`` is set.
    """
    view = f"merge_{uuid.uuid4().hex}"
    _prepare_for_table(target, changes, with_types=new_columns).createOrReplaceTempView(view)
    try:
        into = "MERGE WITH SCHEMA EVOLUTION INTO" if new_columns else "MERGE INTO"
        parts = [f"{into} {sql.quote_table(target)} AS {OLD} USING {view} AS {NEW} ON {condition}", *clauses]
        spark.sql(" ".join(parts)).collect()
    finally:
        spark.catalog.dropTempView(view)


def can_replace_rows(spark: SparkSession, target: Dataset) -> bool:
    """Return whether rows may be replaced.

    They may not if readers track the changes of each row, or if Delta does not support replacements.
    """
    try:
        if spark.conf.get(_ALLOWED) != "true":
            return False
    except PySparkException:
        return False
    table_properties = read_properties(spark, target)
    return not any(table_properties.get(feature, "false").lower() == "true" for feature in _FOLLOWED)


def replace_rows(target: Dataset, rows: DataFrame, condition: str, *, new_columns: bool = False) -> None:
    """Replace the rows that match by the given whole rows, and append the others.

    ``condition`` uses the aliases OLD and NEW. Delta does this in half the time of a ``MERGE``: replaced rows
    are marked as deleted, new rows are appended. Columns that the table lacks are added with ``new_columns``.
    """
    rows = _prepare_for_table(target, rows, with_types=new_columns)
    writer = rows.alias(NEW).write.format("delta").mode("overwrite")
    writer = writer.option("replaceOn", condition).option("targetAlias", OLD)
    if new_columns:
        writer = writer.option("mergeSchema", "true")
    writer.saveAsTable(sql.quote_table(target))
