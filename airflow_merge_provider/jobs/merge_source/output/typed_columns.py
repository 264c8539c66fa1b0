"""Choose the shape of the target, and merge properties into its columns: lists, or the surviving value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StructType,
    VariantType,
)

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.survivorship import (
    LATEST,
    SurvivorshipRule,
    apply_default,
    parse_choices,
)
from airflow_merge_provider.jobs.merge_source.output.content import (
    PROPERTY,
    Content,
    ListContent,
    MapContent,
    TypedContent,
)
from airflow_merge_provider.jobs.merge_source.output.survivorship import Name, Survivors
from airflow_merge_provider.jobs.merge_source.scan.sources import Source
from airflow_merge_provider.jobs.merge_source.scan.variants import (
    VARIANT,
    VARIANTS,
    as_items,
    as_variant,
    check_variant_type,
    convert_items,
)
from airflow_merge_provider.jobs.spark.exact_text import exact_row
from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.sql import quote_column

_INTEGER_TYPES = (ByteType, ShortType, IntegerType, LongType)


@dataclass(frozen=True)
class _Property:
    """A column of the target: its parts, and whether values arrive one by one or in lists.

    ``kind`` is the type of a value; None if the datasets do not agree, or hold types that only VARIANT can
    hold.
    """

    column: str
    kind: DataType | None
    listed: bool
    chosen: bool

    @property
    def sent(self) -> DataType | str:
        """The type of the value that a member contributes."""
        if self.listed:
            return VARIANTS if self.kind is None else ArrayType(self.kind)
        return VARIANT if self.kind is None else self.kind


class ColumnsContent(Content):
    """Every property in a column: ``ARRAY`` of all values, or of its own type if one value is chosen."""

    def __init__(
        self,
        sources: Sequence[Mapping[str, DataType]],
        choices: Sequence[SurvivorshipRule],
        names: Sequence[str],
    ) -> None:
        properties = sorted({name for source in sources for name in source})
        rules = apply_default(choices, properties)
        chosen = {name for rule in rules for name in rule.properties}
        _check_names(properties)
        self._properties = {
            name: definition
            for number, name in enumerate(properties)
            if (definition := _find_property(name, f"{PROPERTY}{number}", sources, chosen=name in chosen))
            is not None
        }
        kinds = {name: definition.kind for name, definition in self._properties.items() if definition.chosen}
        super().__init__(Survivors(rules, self._read, kinds, names))
        self.values_names = tuple(definition.column for definition in self._properties.values())
        self.columns = tuple(self._properties)

    def project_values(self, source: Source) -> list[Column]:
        source_kinds = source.properties or {}
        return [
            _project_column(name, source_kinds.get(name), definition).alias(definition.column)
            for name, definition in self._properties.items()
        ]

    def collect_members(self) -> list[Column]:
        columns = [definition.column for definition in self._properties.values() if not definition.chosen]
        return [F.collect_list(name).alias(name) for name in columns]

    def project_singleton(self) -> list[Column]:
        values = (
            (name, _project_singleton(F.col(definition.column), definition))
            for name, definition in self._properties.items()
        )
        return [self.survivors.non_null(value, name).alias(name) for name, value in values]

    def project_cluster(self) -> list[Column]:
        values = self.survivors.read_values()
        return [
            (
                values[name] if definition.chosen else _unite_values(F.col(definition.column), definition)
            ).alias(name)
            for name, definition in self._properties.items()
        ]

    def content_json(self, outputs: DataFrame) -> Column:
        return exact_row(outputs, self.columns) if self.columns else F.lit("{}")

    def _read(self, member: Column, name: Name) -> Column:
        return member[self._properties[str(name)].column]

    def read_property(self, name: str) -> Column:
        return F.col(self._properties[name].column)


def _find_property(
    name: str, internal: str, sources: Sequence[Mapping[str, DataType]], *, chosen: bool
) -> _Property | None:
    """Return the type that all datasets can give a property; None if no dataset gives it any value."""
    source_kinds = [source[name] for source in sources if name in source]
    source_kinds = [kind for kind in source_kinds if not isinstance(kind, NullType)]
    if not source_kinds:
        return None
    listed = not chosen and any(isinstance(kind, ArrayType) for kind in source_kinds)
    kinds = [kind.elementType if listed and isinstance(kind, ArrayType) else kind for kind in source_kinds]
    kind = _find_common_type(kinds)
    if kind is None and (unsupported := next(filter(None, map(check_variant_type, kinds)), "")):
        raise _refuse_type(name, source_kinds, unsupported)
    return _Property(internal, kind, listed or (kind is None and not chosen), chosen)


def _refuse_type(name: str, kinds: Sequence[DataType], unsupported: str) -> DataError:
    """Return the error about a property that VARIANT would have to hold."""
    types = " and ".join(dict.fromkeys(kind.simpleString().upper() for kind in kinds))
    message = f"property {name!r} is {types}, and VARIANT does not support {unsupported}"
    hint = "cast it to the same type in all datasets"
    return DataError.from_problems([Problem("values", "column-type", message, hint)])


def _find_common_type(kinds: Sequence[DataType]) -> DataType | None:
    """Return the type of all, or the widest of integer types."""
    if all(isinstance(kind, _INTEGER_TYPES) for kind in kinds):
        return max(kinds, key=lambda kind: _INTEGER_TYPES.index(type(kind)))
    first = kinds[0]
    alike = all(kind.simpleString() == first.simpleString() for kind in kinds)
    return None if not alike or isinstance(first, VariantType | NullType) else first


def _project_column(name: str, kind: DataType | None, definition: _Property) -> Column:
    """Return the column of a dataset as the target's values, or lists of them."""
    value_kind = VARIANT if definition.kind is None else definition.kind
    if kind is None or isinstance(kind, NullType):
        return (
            cast_to(F.lit(None), VARIANTS if definition.kind is None else ArrayType(definition.kind))
            if definition.listed
            else cast_to(F.lit(None), value_kind)
        )
    value = quote_column(name)
    if not definition.listed:
        return as_variant(value, kind) if definition.kind is None else cast_to(value, definition.kind)
    if definition.kind is not None:
        listed = value if isinstance(kind, ArrayType) else F.when(value.isNotNull(), F.array(value))
        return cast_to(listed, definition.sent)
    if isinstance(kind, ArrayType):
        return convert_items(value, kind)
    variant = as_variant(value, kind)
    return F.when(value.isNotNull(), F.coalesce(as_items(variant), F.array(variant)))


def _project_singleton(value: Column, definition: _Property) -> Column:
    if definition.chosen or definition.listed:
        return value
    return F.when(value.isNotNull(), F.array(value))


def _unite_values(contributed: Column, definition: _Property) -> Column:
    return F.when(F.size(contributed) > 0, F.flatten(contributed) if definition.listed else contributed)


def _check_names(names: Sequence[str]) -> None:
    problems = list(_is_alike(names))
    if problems:
        raise DataError.from_problems(problems)


def _is_alike(names: Sequence[str]) -> Iterator[Problem]:
    name_by_lower: dict[str, str] = {}
    for name in names:
        earlier = name_by_lower.setdefault(name.lower(), name)
        if earlier != name:
            message = f"properties {earlier!r} and {name!r} differ only in case, which columns do not support"
            yield Problem("values", "case", message, "rename one upstream, or set values to 'entity'")


# Characters that a column name may have only with column mapping.
_MAPPED = set(" ,;{}()\n\t=")


def choose_content(sources: Sequence[Source], config: MergeSourceConfig) -> Content:
    """Choose how properties are carried: as typed columns if that is possible, which is much faster.

    :raises DataError: if a dataset cannot provide what the configuration requires.
    """
    chosen, names = parse_choices(config.survivorship), config.dataset_ids
    if any(preference.kind == LATEST for choice in chosen for preference in choice.preferences):
        _check_recency(sources)
    typed = [source.properties for source in sources if source.properties is not None]
    if config.values == "columns":
        _check_typed(sources)
        return ColumnsContent(typed, chosen, names)
    if config.strategy == "list":
        return ListContent(include_internal=config.include_internal_properties)
    if config.strategy == "default" and len(typed) == len(sources):
        return TypedContent(typed, chosen, names)
    return MapContent(compact=config.strategy == "compact", choices=chosen, names=names)


def list_new_columns(rows: StructType, target: StructType) -> list[str]:
    """Return the columns that the target does not have yet.

    :raises DataError: if a column of the target has another type, or the target has another shape.
    """
    target_kinds = {field.name: field.dataType.simpleString() for field in target}
    problems = [
        Problem(
            "target",
            "type",
            f"column {field.name!r} is {target_kinds[field.name]} and would be {kind}",
            _ANEW,
        )
        for field in rows
        if (kind := field.dataType.simpleString()) != target_kinds.get(field.name, kind)
    ]
    if ("entity" in target_kinds) != ("entity" in rows.names) and not problems:
        problems = [
            Problem("values", "shape", "the target was written with another setting of this option", _ANEW)
        ]
    if problems:
        raise DataError.from_problems(problems)
    return [name for name in rows.names if name not in target_kinds]


def build_properties(names: Sequence[str]) -> dict[str, str]:
    """Return the table properties that names of columns need."""
    if any(_MAPPED & set(name) for name in names):
        return {"delta.columnMapping.mode": "name"}
    return {}


_ANEW = "rewrite the target with reset=True; its readers must start over"


def _check_typed(sources: Sequence[Source]) -> None:
    hint = "use a dataset with typed columns, or set values to 'entity'"
    problems = [
        Problem(f"dataset {source.name!r}", "values", "contains whole entities, which have no columns", hint)
        for source in sources
        if source.properties is None
    ]
    if problems:
        raise DataError.from_problems(problems)


def _check_recency(sources: Sequence[Source]) -> None:
    hint = "set sequence_column to a column of integers, dates or timestamps"
    problems = [
        Problem(
            f"dataset {source.name!r}",
            "latest",
            "has no usable sequence column, which survivorship 'latest' requires",
            hint,
        )
        for source in sources
        if not source.has_recency
    ]
    if problems:
        raise DataError.from_problems(problems)
