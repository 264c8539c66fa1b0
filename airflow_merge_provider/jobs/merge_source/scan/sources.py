"""Open inputs as entities: their IDs, deletions, own IDs, and properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame, SparkSession, Window, functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source.columns import (
    ENTITY,
    FILTERED,
    IDS,
    REPLACED_COLUMN,
    find_column_problems,
    find_entity_column,
    find_order_problems,
    is_property,
    list_property_names,
)
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.overrides import SAME_LEFT, SAME_RIGHT
from airflow_merge_provider.core.run.table_log import PinnedDataset
from airflow_merge_provider.jobs.delta.table import read_dataset
from airflow_merge_provider.jobs.merge_source.scan.variants import check_variant_type, properties_map
from airflow_merge_provider.jobs.spark.exact_text import exact_text
from airflow_merge_provider.jobs.spark.expressions import combine_columns, drop_collations
from airflow_merge_provider.jobs.spark.sql import quote_column, quote_name

# The columns that every opened source has; no property can have these names.
SCAN_ID, SCAN_DELETED, OWN_IDS, OWN_REPLACED = (
    "__merge_id",
    "__merge_deleted",
    "__merge_ids",
    "__merge_replaced",
)
_REJECTED, _ENTITY_LATE = "__merge_rejected", "__merge_late"
SCAN_CONTENT, TEXT, JSON = "__merge_content", "__merge_text", "__merge_json"
_INTERNAL_PREFIX = "__merge_"
_INTEGER_TYPES = (ByteType, ShortType, IntegerType, LongType)
# In the schema of a VARIANT: types whose JSON is a text.
_NOT_OF_JSON = r"\b(DATE|TIMESTAMP|TIMESTAMP_NTZ|BINARY|UUID)\b"
_TIME_TYPES = (DateType, TimestampType, TimestampNTZType)


@dataclass(frozen=True)
class Source:
    """One opened input: ``frame`` has the columns above besides its own.

    ``properties`` are the typed columns that are merged; None if the entity is one VARIANT, which is then
    in CONTENT as a map without system properties, and in TEXT as JSON. ``several`` is true if an entity may
    have more than one row, its versions. If it ``is_json``, the VARIANT
    was parsed from the text in JSON.
    """

    offset: int
    name: str
    frame: DataFrame
    properties: Mapping[str, DataType] | None
    sequence: str | None
    several: bool = False
    is_json: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns of the table itself."""
        return [name for name in self.frame.columns if not name.startswith(_INTERNAL_PREFIX)]

    def reject_rows(self, rejection: Column) -> Source:
        """Merge rows that do not meet an expectation as deleted entities, in full and in incremental runs."""
        frame = self.frame.withColumn(_REJECTED, rejection)
        return replace(self, frame=frame.withColumn(SCAN_DELETED, F.col(SCAN_DELETED) | F.col(_REJECTED)))

    def drop_rejected(self) -> Source:
        """Drop rejected rows that have no ID: they are no entities."""
        if _REJECTED not in self.frame.columns:
            return self
        is_unknown = F.col(SCAN_ID).isNull() | (F.col(SCAN_ID).cast("string") == "")
        return replace(self, frame=self.frame.where(~(F.col(_REJECTED) & is_unknown)))

    def keep_latest(self) -> Source:
        """Keep the last version of every entity; keep all versions that tie, for the caller to refuse."""
        if self.sequence is None or not self.several:
            return self
        newest = Window.partitionBy(SCAN_ID).orderBy(quote_column(self.sequence).desc_nulls_last())
        rank = "__merge_rank"
        frame = self.frame.withColumn(rank, F.rank().over(newest)).where(F.col(rank) == 1).drop(rank)
        return replace(self, frame=frame, several=False)

    @property
    def place(self) -> Column | None:
        """The position of a row in the order of versions, as a number; None if it cannot be determined."""
        if self.sequence is None:
            return None
        kind = self.frame.schema[self.sequence].dataType
        if isinstance(kind, _INTEGER_TYPES):
            return quote_column(self.sequence).cast("bigint")
        if isinstance(kind, TimestampType):
            return F.unix_micros(quote_column(self.sequence))
        return None

    @property
    def has_text_order(self) -> bool:
        """Whether versions are ordered by a text."""
        return self.sequence is not None and _is_text(self.frame.schema[self.sequence].dataType)

    @property
    def has_recency(self) -> bool:
        """Whether rows have the time at which they were written."""
        if self.sequence is None:
            return False
        return isinstance(self.frame.schema[self.sequence].dataType, (*_INTEGER_TYPES, *_TIME_TYPES))

    @property
    def recency(self) -> Column:
        """The time at which a row was written, as an increasing number: microseconds for a date or time."""
        if self.sequence is None:
            return F.lit(None).cast("bigint")
        value = quote_column(self.sequence)
        if isinstance(self.frame.schema[self.sequence].dataType, _TIME_TYPES):
            return F.unix_micros(value.cast("timestamp"))
        return value.cast("bigint")

    def is_after(self, position: int) -> Column:
        """Whether a row has a place above a position; NULL if it has none."""
        kind = self.frame.schema[self.sequence or ""].dataType
        bound = F.timestamp_micros(F.lit(position)) if isinstance(kind, TimestampType) else F.lit(position)
        return quote_column(self.sequence or "") > bound

    def keep_after(self, position: int, late: DataFrame | None) -> Source:
        """Keep the rows above the position of an earlier run, and all rows of the entities in ``late``.

        ``late`` has the hash of each entity once.
        """
        if late is None:
            return replace(self, frame=self.frame.where(self.is_after(position)))
        marked = self.frame.join(
            F.broadcast(late.withColumn(_ENTITY_LATE, F.lit(True))), late.columns, "left"
        )
        frame = marked.where(self.is_after(position) | F.col(_ENTITY_LATE)).drop(_ENTITY_LATE)
        return replace(self, frame=frame)

    def content_hash(self) -> Column:
        """Hash the content of an entity, independent of the order of its columns and of how many are NULL.

        Overrides of the entity are included: such an entity is evaluated again if its override changes.
        """
        if self.properties is None:
            content = [F.xxhash64(F.col(TEXT)), *([] if self.is_json else [_hash_types(F.col(ENTITY))])]
        else:
            content = [_hash_property(name, kind) for name, kind in self.properties.items()]
        content += [
            F.when(F.col(SCAN_DELETED), F.xxhash64(F.lit(SCAN_DELETED))).otherwise(F.lit(0).cast("bigint"))
        ]
        if IDS in self.frame.columns:
            content += [_hash_property(IDS, self.frame.schema[IDS].dataType)]
        override_columns = [name for name in (SAME_LEFT, SAME_RIGHT) if name in self.frame.columns]
        content += [_hash_property(name, self.frame.schema[name].dataType) for name in override_columns]
        return combine_columns(Column.bitwiseXOR, content, F.lit(0))


def list_property_columns(spark: SparkSession, pinned: Sequence[PinnedDataset]) -> dict[str, list[str]]:
    """Return the columns of each dataset that hold properties, by the ids of the datasets that exist."""
    return {
        table.dataset.id: list_property_names(read_dataset(spark, table).columns)
        for table in pinned
        if table.exists
    }


def open_source(frame: DataFrame, offset: int, config: MergeSourceConfig) -> Source:
    """Open a table as entities.

    :raises DataError: if it has no ID, or a column that cannot be part of an entity.
    """
    name, frame = config.dataset_ids[offset], drop_collations(frame)
    types = _list_types(frame)
    entity = find_entity_column(types, config)
    sequence = config.sequence_column if config.sequence_column in frame.columns else None
    problems = list(find_order_problems(types, name, config))
    if entity is None:
        problems += _find_problems(frame, name, config)
    if problems:
        raise DataError.from_problems(problems)
    if entity is None:
        return _open_typed(frame, offset, name, config, sequence)
    if isinstance(frame.schema[entity].dataType, VariantType):
        return _open_entities(frame.withColumn(ENTITY, quote_column(entity)), offset, name, config, sequence)
    parsed = frame.withColumns({JSON: quote_column(entity), ENTITY: F.try_parse_json(quote_column(entity))})
    return replace(_open_entities(parsed, offset, name, config, sequence), is_json=True)


def _list_types(frame: DataFrame) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in frame.schema}


def _find_problems(frame: DataFrame, name: str, config: MergeSourceConfig) -> Iterator[Problem]:
    yield from find_column_problems(_list_types(frame), name, config)
    if config.entity_column is not None:
        return
    at = f"dataset {name!r}"
    if config.values == "columns":
        return
    for field in frame.schema:
        if is_property(field.name, config) and (unsupported := check_variant_type(field.dataType)):
            yield Problem(
                at,
                "column-type",
                f"column {field.name!r} contains {unsupported}, which VARIANT does not support",
                "drop or cast it",
            )


def _open_typed(
    frame: DataFrame, offset: int, name: str, config: MergeSourceConfig, sequence: str | None
) -> Source:
    properties = {field.name: field.dataType for field in frame.schema if is_property(field.name, config)}
    own_ids = _get_ids(frame) if IDS in frame.columns else F.lit(None).cast("array<string>")
    frame = frame.withColumns(
        {
            SCAN_ID: quote_column(config.id_column),
            SCAN_DELETED: _get_flag(frame, config.deleted_column) | _get_flag(frame, FILTERED),
            OWN_IDS: own_ids,
            OWN_REPLACED: _get_flag(frame, REPLACED_COLUMN),
        }
    )
    return Source(offset, name, frame, properties, sequence)


def _open_entities(
    frame: DataFrame, offset: int, name: str, config: MergeSourceConfig, sequence: str | None
) -> Source:
    """Take a system field from the table's own column if there is one, else from inside the entity."""
    content_column = "__merge_whole"
    # The row of a merge source for an ID that has ended: it has no entity.
    is_no_more = _get_flag(frame, config.deleted_column) & F.col(ENTITY).isNull()
    nothing = F.create_map().cast("map<string,variant>")
    content = F.try_variant_get(F.col(ENTITY), "$", "map<string,variant>")
    frame = frame.withColumn(content_column, F.when(is_no_more, nothing).otherwise(content))

    def read_inside(field: str) -> Column:
        return F.col(content_column)[F.lit(field)]

    def read_flag(field: str) -> Column:
        return (
            _get_flag(frame, field)
            if field in frame.columns
            else F.to_json(read_inside(field)).eqNullSafe("true")
        )

    text = F.schema_of_variant(read_inside(config.id_column)) == "STRING"
    id_ = F.when(text, F.try_variant_get(read_inside(config.id_column), "$", "string"))
    ids_value = read_inside(IDS)
    own_ids = F.coalesce(
        F.try_variant_get(ids_value, "$", "array<string>"),
        F.when(
            ids_value.isNotNull() & ~F.is_variant_null(ids_value),
            F.array(F.try_variant_get(ids_value, "$", "string")),
        ),
    )
    frame = frame.withColumns(
        {
            SCAN_ID: quote_column(config.id_column) if config.id_column in frame.columns else id_,
            SCAN_DELETED: read_flag(config.deleted_column) | read_flag(FILTERED),
            OWN_IDS: _get_ids(frame) if IDS in frame.columns else own_ids,
            OWN_REPLACED: read_flag(REPLACED_COLUMN),
            SCAN_CONTENT: properties_map(F.col(content_column)),
            TEXT: F.coalesce(F.to_json(F.col(ENTITY)), F.lit("{}")),
        }
    ).drop(content_column)
    return Source(offset, name, frame, None, sequence)


def _is_text(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        kind = kind.elementType
    return isinstance(kind, StringType)


def _get_ids(frame: DataFrame) -> Column:
    return (
        quote_column(IDS) if isinstance(frame.schema[IDS].dataType, ArrayType) else F.array(quote_column(IDS))
    )


def _get_flag(frame: DataFrame, name: str) -> Column:
    return F.coalesce(quote_column(name), F.lit(False)) if name in frame.columns else F.lit(False)


def _hash_property(name: str, kind: DataType) -> Column:
    """Hash a column with its name; a NULL counts like a missing column."""
    value = quote_column(name)
    # xxhash64 does not take maps, and leaves out NULLs in lists.
    is_nested = isinstance(kind, ArrayType | MapType | StructType | VariantType)
    hashed = F.xxhash64(F.lit(name), exact_text(quote_name(name), kind) if is_nested else value)
    if isinstance(kind, VariantType):
        hashed = hashed.bitwiseXOR(_hash_types(value))
    return F.when(value.isNotNull(), hashed).otherwise(F.lit(0).cast("bigint"))


def _hash_types(variant: Column) -> Column:
    """Hash the types of a VARIANT that its JSON does not show; 0 if there are none."""
    kinds = F.schema_of_variant(variant)
    return F.when(kinds.rlike(_NOT_OF_JSON), F.xxhash64(kinds)).otherwise(F.lit(0).cast("bigint"))
