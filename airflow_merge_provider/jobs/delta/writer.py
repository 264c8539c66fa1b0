"""The statements that change a table, each of them one commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.population import FLAG
from airflow_merge_provider.jobs.delta.log import read_history, read_properties
from airflow_merge_provider.jobs.spark import sql
from airflow_merge_provider.jobs.spark.errors import error_condition as reason

CAPABILITY = "merge.capability"
# A setting of the session: what is made while it is "true" is populated from its first commit on.
BORN_POPULATED = "airflow.merge.bornPopulated"

COLUMN_MAPPING = "delta.columnMapping.mode"
_SPECIAL_CHARACTERS = frozenset(" ,;{}()\n\t=")

# What conditions and clauses call the sides: no column has such a name, and Delta would take it for one.
NEW, OLD = "__merge_new", "__merge_old"

_TAKEN = "TABLE_OR_VIEW_ALREADY_EXISTS"
# Where Delta knows replacements there is a setting that allows them; an older one would overwrite the table.
_ALLOWED = "spark.databricks.delta.replaceOn.dataframe.writer.enabled"
# Who reads these is told which row became which, and a replacement does not say that.
_FOLLOWED = ("delta.enableChangeDataFeed", "delta.enableRowTracking")


def create_table(
    target: Dataset,
    rows: DataFrame,
    capability: str,
    properties: Mapping[str, str] | None = None,
    partition_by: Sequence[str] = (),
) -> None:
    """Create the target from rows, with its properties and partitions, in one commit."""
    writer = rows.writeTo(sql.quote_table(target)).using("delta").tableProperty(CAPABILITY, capability)
    if partition_by:
        writer = writer.partitionedBy(*map(sql.quote_column, partition_by))
    if any(map(has_special_characters, list_field_names(rows.schema))):
        writer = writer.tableProperty(COLUMN_MAPPING, "name")
    born = {FLAG: "true"} if rows.sparkSession.conf.get(BORN_POPULATED, "false") == "true" else {}
    for key, value in {"delta.enableDeletionVectors": "true", **born, **(properties or {})}.items():
        writer = writer.tableProperty(key, value)
    try:
        writer.create()
    except AnalysisException as error:
        if reason(error) != _TAKEN or read_history(rows.sparkSession, target, 1):
            raise
        # A first write that was killed has left a folder with a log that holds no commit.
        writer.createOrReplace()


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
    """Return whether Delta takes a column name only in a table whose columns are mapped to other names."""
    return bool(_SPECIAL_CHARACTERS & set(name))


def overwrite_table(target: Dataset, rows: DataFrame) -> None:
    """Replace all rows and the schema; the table, its properties and its history stay."""
    rows.writeTo(sql.quote_table(target)).option("overwriteSchema", "true").overwrite(lit(True))


def append_rows(target: Dataset, rows: DataFrame, *, new_columns: bool = False) -> None:
    """Add rows by the names of their columns; columns that the table lacks only where they may be new."""
    writer = rows.writeTo(sql.quote_table(target))
    if new_columns:
        writer = writer.option("mergeSchema", "true")
    writer.append()


def restore_table(spark: SparkSession, target: Dataset, version: int) -> None:
    """Return the target the rows that it had at a version, in a commit of its own."""
    spark.sql(f"RESTORE TABLE {sql.quote_table(target)} TO VERSION AS OF {version}").collect()


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rows that change in a table, as each statement that can write them needs them.

    ``changes`` are what the ``clauses`` of a MERGE read, which calls the sides OLD and NEW and finds pairs by
    ``condition``. ``inserted`` are the rows if all of them are new, else None. ``replacing`` are the whole
    rows that come, alone or in the place of those that they meet by ``matching``; None if rows are deleted
    whose place nothing takes. ``new_columns`` says that the table may lack columns.
    """

    changes: DataFrame
    condition: str
    clauses: Sequence[str]
    inserted: DataFrame | None = None
    replacing: DataFrame | None = None
    matching: str = ""
    new_columns: bool = False


def upsert_rows(spark: SparkSession, target: Dataset, upsert: Upsert) -> None:
    """Write changed rows in one commit, by the statement that costs least.

    New rows alone are appended, so that the table is not read. Whole rows replace those that they meet, if
    the table allows it. All else is a MERGE.
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
    """Fold changes into the target with one MERGE; ``condition`` and ``clauses`` call the sides OLD and NEW.

    Columns that the clauses name and the target lacks are added where they may be new.
    """
    view = f"merge_{uuid.uuid4().hex}"
    changes.createOrReplaceTempView(view)
    try:
        into = "MERGE WITH SCHEMA EVOLUTION INTO" if new_columns else "MERGE INTO"
        words = [f"{into} {sql.quote_table(target)} AS {OLD} USING {view} AS {NEW} ON {condition}", *clauses]
        spark.sql(" ".join(words)).collect()
    finally:
        spark.catalog.dropTempView(view)


def can_replace_rows(spark: SparkSession, target: Dataset) -> bool:
    """Return whether rows may be replaced.

    Not where readers follow each row from what it was to what it is, nor by a Delta that does not know how.
    """
    try:
        if spark.conf.get(_ALLOWED) != "true":
            return False
    except PySparkException:
        return False
    told = read_properties(spark, target)
    return not any(told.get(each, "false").lower() == "true" for each in _FOLLOWED)


def replace_rows(target: Dataset, rows: DataFrame, condition: str, *, new_columns: bool = False) -> None:
    """Put whole rows in the place of those that they meet, and add the others.

    ``condition`` calls the sides OLD and NEW. Delta does this in half the time of a ``MERGE``: rows that go
    are marked, rows that come are appended. Columns that the table lacks are added where they may be new.
    """
    writer = rows.alias(NEW).write.format("delta").mode("overwrite")
    writer = writer.option("replaceOn", condition).option("targetAlias", OLD)
    if new_columns:
        writer = writer.option("mergeSchema", "true")
    writer.saveAsTable(sql.quote_table(target))
