"""Merge the members' properties into the properties of the output, by each strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
)

from airflow_merge_provider.core.merge_source.columns import ENTITY, IDS, REPLACED_COLUMN
from airflow_merge_provider.core.merge_source.dtl import values
from airflow_merge_provider.core.merge_source.survivorship import (
    SurvivorshipRule,
    apply_default,
    split_default,
)
from airflow_merge_provider.jobs.merge_source.output.survivorship import PICKED_BY_NAME, RECENCY, Survivors
from airflow_merge_provider.jobs.merge_source.scan import typed_rows
from airflow_merge_provider.jobs.merge_source.scan.sources import OWN_IDS, SCAN_CONTENT, SCAN_ID, Source
from airflow_merge_provider.jobs.merge_source.scan.variants import (
    PROPERTIES,
    VARIANT,
    as_items,
    as_variant,
    build_field_properties,
    build_properties,
    drop_missing,
    splice_variants,
)
from airflow_merge_provider.jobs.spark.pickling import pickle_once
from airflow_merge_provider.jobs.spark.sql import quote_column

PROPERTY, POSITIONS, CONTENT_JSON = "__merge_property", "__merge_positions", "__merge_content_json"
# Values of these types have the same JSON, whether they are written from a column or from VARIANT.
_PLAIN_COLUMN_TYPES = (StringType, BooleanType, ByteType, ShortType, IntegerType, LongType)


class Content(ABC):
    """The properties of entities in the form in which they are carried to an output."""

    values_names: Sequence[str]
    # The columns of the target that hold the content.
    columns: Sequence[str] = (ENTITY,)

    def __init__(self, survivors: Survivors | None = None) -> None:
        self._survivors = survivors

    @property
    def survivors(self) -> Survivors:
        """The survivorship choices; empty if no value is chosen."""
        return self._survivors or Survivors((), _build_empty, {}, ())

    @property
    def names(self) -> list[str]:
        """The columns that rows carry to the output."""
        return [*self.values_names, *([RECENCY] if self.survivors.by_recency else [])]

    @abstractmethod
    def project_values(self, source: Source) -> list[Column]:
        """Return the values that a source's rows carry, under ``values_names``."""

    def project_source(self, source: Source) -> list[Column]:
        """Return all columns that a source's rows carry, under ``names``."""
        recency = [source.recency.alias(RECENCY)] if self.survivors.by_recency else []
        return [*self.project_values(source), *recency]

    def collect_members(self) -> list[Column]:
        """Return the lists of what the members of a cluster contribute, as aggregates of their rows."""
        return [F.collect_list(name).alias(name) for name in self.values_names]

    @abstractmethod
    def project_singleton(self) -> list[Column]:
        """Return the ``columns`` for a row whose output has one member."""

    @abstractmethod
    def project_cluster(self) -> list[Column]:
        """Return the ``columns`` for a cluster from what its members contribute."""

    def read_property(self, name: str) -> Column:
        """Return a property of a row whose output has one member."""
        raise NotImplementedError(name)

    def non_null(self, name: str) -> Column:
        """Return whether the row of an output with one member has a value of a property that may survive."""
        return self.survivors.non_null(self.read_property(name), name).isNotNull()

    def list_default_properties(self) -> Column:
        """Return the sorted names that the default rule applies to, for an output of one member."""
        raise NotImplementedError

    def content_json(self, outputs: DataFrame) -> Column:
        """Return the content of outputs as JSON."""
        return F.to_json(F.col(ENTITY))

    def finish_outputs(self, outputs: DataFrame) -> DataFrame:
        """Apply the last steps that both kinds of outputs need, after they are combined."""
        return outputs


class EntityContent(Content):
    """The merged properties as one VARIANT."""

    @abstractmethod
    def build_singleton_entity(self) -> Column:
        """Return the entity of a row whose output has one member."""

    @abstractmethod
    def build_cluster_entity(self) -> Column:
        """Return the entity of a cluster from what its members contribute."""

    def project_singleton(self) -> list[Column]:
        return [self.build_singleton_entity().alias(ENTITY)]

    def project_cluster(self) -> list[Column]:
        return [self.build_cluster_entity().alias(ENTITY)]


class TypedContent(EntityContent):
    """Every property in a column: of its own type if all sources agree, else as VARIANT."""

    def __init__(
        self,
        sources: Sequence[Mapping[str, DataType]],
        choices: Sequence[SurvivorshipRule] = (),
        names: Sequence[str] = (),
    ) -> None:
        properties = sorted({name for source in sources for name in source})
        self._kinds: dict[str, DataType | None] = {
            name: _find_common_type(name, sources) for name in properties
        }
        self._columns = {name: f"{PROPERTY}{number}" for number, name in enumerate(properties)}
        self.values_names = tuple(self._columns.values())
        super().__init__(
            Survivors(
                apply_default(choices, properties),
                lambda member, name: member[self._columns[str(name)]],
                self._kinds,
                names,
            )
        )

    def read_property(self, name: str) -> Column:
        return F.col(self._columns[name])

    def project_values(self, source: Source) -> list[Column]:
        return [self._build_column(source, name).alias(self._columns[name]) for name in self._kinds]

    def build_singleton_entity(self) -> Column:
        non_null_values = {
            name: self.survivors.non_null(self.read_property(name), name) for name in self._kinds
        }
        values = {
            name: non_null_values[name].cast(VARIANT) if kind else non_null_values[name]
            for name, kind in self._kinds.items()
        }
        return F.to_variant_object(drop_missing(values, non_null_values))

    def project_singleton(self) -> list[Column]:
        return [*super().project_singleton(), self._format_singleton_json().alias(CONTENT_JSON)]

    def project_cluster(self) -> list[Column]:
        return [*super().project_cluster(), F.lit(None).cast("string").alias(CONTENT_JSON)]

    def content_json(self, outputs: DataFrame) -> Column:
        return F.coalesce(F.col(CONTENT_JSON), super().content_json(outputs))

    def _format_singleton_json(self) -> Column:
        """Return the entity of one member as the JSON that its VARIANT gives, at a fraction of the cost."""
        if not self._kinds or not all(isinstance(kind, _PLAIN_COLUMN_TYPES) for kind in self._kinds.values()):
            return F.lit(None).cast("string")
        # A VARIANT stores its fields in Java's order of strings.
        names = sorted(self._kinds, key=lambda name: name.encode("utf-16-be"))
        return F.to_json(
            F.struct(*(self.read_property(name).alias(name) for name in names)), {"ignoreNullFields": "true"}
        )

    def build_cluster_entity(self) -> Column:
        united = {name: _union_types(F.col(self._columns[name]), kind) for name, kind in self._kinds.items()}
        first = {name: F.get(F.col(self._columns[name]), F.lit(0)) for name in self._kinds}
        chosen = self.survivors
        return F.to_variant_object(
            drop_missing(united | chosen.read_variants(), first | chosen.read_values())
        )

    def _build_column(self, source: Source, name: str) -> Column:
        kind = self._kinds[name]
        source_kind = (source.properties or {}).get(name)
        if source_kind is None:
            return F.lit(None).cast(kind or VARIANT)
        return quote_column(name) if kind else as_variant(quote_column(name), source_kind)


def _find_common_type(name: str, sources: Sequence[Mapping[str, DataType]]) -> DataType | None:
    """Return the type that all sources have for a property, if it is a plain one."""
    kinds = {source[name].simpleString(): source[name] for source in sources if name in source}
    kind = next(iter(kinds.values()))
    return kind if len(kinds) == 1 and isinstance(kind, AtomicType) and kind.typeName() != VARIANT else None


def _union_types(contributed: Column, kind: DataType | None) -> Column:
    """Keep a single contributed value as it is; combine several into a list."""
    several = contributed.cast(VARIANT) if kind else splice_variants(contributed).cast(VARIANT)
    only = F.get(contributed, F.lit(0))
    return F.when(F.size(contributed) > 1, several).otherwise(only.cast(VARIANT) if kind else only)


class MapContent(EntityContent):
    """Properties of any name and type, as a map of VARIANT: for whole entities, and for ``compact``."""

    values_names: Sequence[str] = (SCAN_CONTENT,)

    def __init__(
        self, *, compact: bool, choices: Sequence[SurvivorshipRule] = (), names: Sequence[str] = ()
    ) -> None:
        self._compact = compact
        own_rules, default = split_default(choices)
        kinds = {name: None for rule in own_rules for name in rule.properties}
        super().__init__(
            Survivors(
                own_rules,
                lambda member, name: member[SCAN_CONTENT][F.lit(name)],
                kinds,
                names,
                default=default,
                list_names=lambda member: F.map_keys(member[SCAN_CONTENT]),
            )
        )

    def read_property(self, name: str) -> Column:
        return F.col(SCAN_CONTENT)[F.lit(name)]

    def list_default_properties(self) -> Column:
        own_names = self.survivors.properties
        values = F.map_filter(
            SCAN_CONTENT, lambda name, value: ~F.is_variant_null(value) & ~name.isin(*own_names)
        )
        return F.array_sort(F.map_keys(values))

    def project_values(self, source: Source) -> list[Column]:
        if source.properties is None:
            return [F.col(SCAN_CONTENT)]
        return [build_properties(source.properties).alias(SCAN_CONTENT)]

    def build_singleton_entity(self) -> Column:
        content = F.col(SCAN_CONTENT)
        if self._compact:
            return F.transform_values(content, lambda _, value: splice_variants(F.array(value)))
        if self.survivors.has_default:
            content = F.map_filter(content, lambda _, value: ~F.is_variant_null(value))
        elif chosen := self.survivors.properties:
            content = F.map_filter(
                content, lambda name, value: ~(name.isin(*chosen) & F.is_variant_null(value))
            )
        return F.to_variant_object(content)

    def build_cluster_entity(self) -> Column:
        maps = F.col(SCAN_CONTENT)
        names = F.array_distinct(F.flatten(F.transform(maps, F.map_keys)))

        def collect_values(name: Column) -> Column:
            return F.filter(
                F.transform(maps, lambda properties: properties[name]), lambda value: value.isNotNull()
            )

        if self._compact:
            return _group_by_name(names, lambda name: splice_variants(collect_values(name)))
        chosen = self.survivors.read_variants()
        if self.survivors.has_default:
            other_values = F.transform_values(PICKED_BY_NAME, lambda name, member: member[SCAN_CONTENT][name])
        else:
            united = _group_by_name(names, lambda name: _union_types(collect_values(name), None))
            other_values = F.map_filter(united, lambda name, _: ~name.isin(*chosen)) if chosen else united
        return F.to_variant_object(
            F.map_concat(other_values, drop_missing(chosen)) if chosen else other_values
        )

    def finish_outputs(self, outputs: DataFrame) -> DataFrame:
        """Compact the lists: drop values that equal an earlier one, and empty lists; unwrap lists of one."""
        if not self._compact:
            return outputs
        non_empty = F.map_filter(F.col(ENTITY), lambda _, items: F.size(items) > 0)
        positions = _list_positions()(non_empty)
        distinct = F.transform_values(
            non_empty, lambda name, items: F.transform(F.col(POSITIONS)[name], lambda at: F.get(items, at))
        )
        entity = F.to_variant_object(F.transform_values(distinct, lambda _, items: _unwrap_single(items)))
        return outputs.withColumn(POSITIONS, positions).withColumn(ENTITY, entity).drop(POSITIONS)


class ListContent(EntityContent):
    """The members themselves, in ``$merged``; of names starting with ``_`` only the ID, unless configured."""

    values_names: Sequence[str] = (SCAN_CONTENT,)

    def __init__(self, *, include_internal: bool) -> None:
        super().__init__()
        self._include_internal = include_internal

    def project_values(self, source: Source) -> list[Column]:
        id_ = F.create_map(F.lit("_id"), F.col(SCAN_ID).cast(VARIANT))
        properties = (
            self._read_typed_entity(source) if source.properties is not None else self._read_whole_entity()
        )
        return [F.map_concat(id_, properties).alias(SCAN_CONTENT)]

    def build_singleton_entity(self) -> Column:
        return _merge_lists(F.array(F.col(SCAN_CONTENT)))

    def build_cluster_entity(self) -> Column:
        return _merge_lists(F.col(SCAN_CONTENT))

    def _read_whole_entity(self) -> Column:
        def is_listed(name: Column, _: Column) -> Column:
            if self._include_internal:
                return ~name.isin("_id", "_deleted", "_filtered")
            return ~name.startswith("_")

        return F.map_filter(F.try_variant_get(F.col(ENTITY), "$", PROPERTIES), is_listed)

    def _read_typed_entity(self, source: Source) -> Column:
        schema, kinds = source.frame.schema, dict(source.properties or {})
        if REPLACED_COLUMN in schema.names:
            kinds[REPLACED_COLUMN] = schema[REPLACED_COLUMN].dataType
        if self._include_internal:
            internal = (
                name for name in schema.names if name.startswith("_") and not name.startswith("__merge")
            )
            kinds |= {name: schema[name].dataType for name in internal}
        fields = {name: (quote_column(name), kind) for name, kind in kinds.items()}
        if IDS in schema.names:
            fields[IDS] = F.col(OWN_IDS), ArrayType(StringType())
        dropped = ("_id", "_deleted", "_filtered")
        return build_field_properties({name: field for name, field in fields.items() if name not in dropped})


def _build_empty(_: Column, name: str | Column) -> Column:
    raise KeyError(name)


def _merge_lists(members: Column) -> Column:
    objects = F.transform(members, F.to_variant_object)
    return F.to_variant_object(F.create_map(F.lit("$merged"), objects.cast(VARIANT)))


def _group_by_name(names: Column, value: Callable[[Column], Column]) -> Column:
    return F.map_from_entries(
        F.transform(names, lambda name: F.struct(name.alias("n"), value(name).alias("v")))
    )


def _unwrap_single(items: Column) -> Column:
    """Unwrap a list of one value, unless the value is a list: ``[[1]]`` is one value, a list."""
    only = F.get(items, F.lit(0))
    is_value = (F.size(items) == 1) & as_items(only).isNull()
    return F.when(is_value, only).otherwise(items.cast(VARIANT))


def _list_positions() -> Callable[[Column], Column]:
    """Return which items of each list stay, by the one definition of equal values."""
    read = typed_rows.read_variant

    def list_positions(lists: dict[str, list[Any]] | None) -> dict[str, list[int]] | None:
        if lists is None:
            return None
        positions_by_name: dict[str, list[int]] = {}
        for name, items in dict(lists).items():
            positions: dict[str, int] = {}
            for position, item in enumerate(map(read, items)):
                positions.setdefault(values.build_distinct_key(item, position), position)
            positions_by_name[name] = list(positions.values())
        return positions_by_name

    kind = MapType(StringType(), ArrayType(IntegerType()))
    return F.udf(pickle_once(list_positions, values, typed_rows), kind, useArrow=True)
