"""Merge properties into typed columns: lists of all members' values, or the surviving value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, functions as F
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    VariantType,
)

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source.survivorship import SurvivorshipRule
from airflow_merge_provider.jobs.merge_source.output.content import PROPERTY, Content
from airflow_merge_provider.jobs.merge_source.output.survivorship import Survivors
from airflow_merge_provider.jobs.merge_source.scan.sources import Source
from airflow_merge_provider.jobs.merge_source.scan.variants import (
    VARIANT,
    VARIANTS,
    as_items,
    as_variant,
    items_of,
)
from airflow_merge_provider.jobs.spark.expressions import cast_to
from airflow_merge_provider.jobs.spark.sql import quote_column

_WIDER = (ByteType, ShortType, IntegerType, LongType)


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
        chosen = {name for choice in choices for name in choice.properties}
        properties = sorted({name for source in sources for name in source})
        _check_names(properties)
        self._properties = {
            name: made
            for number, name in enumerate(properties)
            if (made := _find_property(name, f"{PROPERTY}{number}", sources, chosen=name in chosen))
            is not None
        }
        kinds = {name: made.kind for name, made in self._properties.items() if made.chosen}
        super().__init__(Survivors(choices, self._read, kinds, names))
        self.values_names = tuple(made.column for made in self._properties.values())
        self.kept = {made.column: name for name, made in self._properties.items()}

    def project_values(self, source: Source) -> list[Column]:
        own = source.properties or {}
        return [
            _project_column(name, own.get(name), made).alias(made.column)
            for name, made in self._properties.items()
        ]

    def collect_members(self) -> list[Column]:
        rest = [made.column for made in self._properties.values() if not made.chosen]
        return [F.collect_list(name).alias(name) for name in rest]

    def project_singleton(self) -> list[Column]:
        values = (
            (name, made, _project_singleton(F.col(made.column), made))
            for name, made in self._properties.items()
        )
        return [self.survivors.non_null(value, name).alias(made.column) for name, made, value in values]

    def project_cluster(self) -> list[Column]:
        values = self.survivors.read_values()
        return [
            (values[name] if made.chosen else _unite_values(F.col(made.column), made)).alias(made.column)
            for name, made in self._properties.items()
        ]

    def content_json(self) -> Column:
        whole = [F.col(made.column).alias(name) for name, made in self._properties.items()]
        return F.to_json(F.struct(*whole)) if whole else F.lit("{}")

    def _read(self, member: Column, name: str) -> Column:
        return member[self._properties[name].column]

    def read_property(self, name: str) -> Column:
        return F.col(self._properties[name].column)


def _find_property(
    name: str, internal: str, sources: Sequence[Mapping[str, DataType]], *, chosen: bool
) -> _Property | None:
    """Return the type that all datasets can give a property; None if no dataset gives it any value."""
    found = [source[name] for source in sources if name in source]
    found = [kind for kind in found if not isinstance(kind, NullType)]
    if not found:
        return None
    listed = not chosen and any(isinstance(kind, ArrayType) for kind in found)
    kinds = [kind.elementType if listed and isinstance(kind, ArrayType) else kind for kind in found]
    kind = _find_common_type(kinds)
    return _Property(internal, kind, listed or (kind is None and not chosen), chosen)


def _find_common_type(kinds: Sequence[DataType]) -> DataType | None:
    """Return the type of all, or the widest of integer types."""
    if all(isinstance(kind, _WIDER) for kind in kinds):
        return max(kinds, key=lambda kind: _WIDER.index(type(kind)))
    first = kinds[0]
    alike = all(kind.simpleString() == first.simpleString() for kind in kinds)
    return None if not alike or isinstance(first, VariantType | NullType) else first


def _project_column(name: str, kind: DataType | None, made: _Property) -> Column:
    """Return the column of a dataset as the target's values, or lists of them."""
    one = VARIANT if made.kind is None else made.kind
    if kind is None or isinstance(kind, NullType):
        return (
            cast_to(F.lit(None), VARIANTS if made.kind is None else ArrayType(made.kind))
            if made.listed
            else cast_to(F.lit(None), one)
        )
    value = quote_column(name)
    if not made.listed:
        return as_variant(value, kind) if made.kind is None else cast_to(value, made.kind)
    if made.kind is not None:
        listed = value if isinstance(kind, ArrayType) else F.when(value.isNotNull(), F.array(value))
        return cast_to(listed, made.sent)
    if isinstance(kind, ArrayType):
        return items_of(value, kind)
    variant = as_variant(value, kind)
    return F.when(value.isNotNull(), F.coalesce(as_items(variant), F.array(variant)))


def _project_singleton(value: Column, made: _Property) -> Column:
    if made.chosen or made.listed:
        return value
    return F.when(value.isNotNull(), F.array(value))


def _unite_values(contributed: Column, made: _Property) -> Column:
    return F.when(F.size(contributed) > 0, F.flatten(contributed) if made.listed else contributed)


def _check_names(names: Sequence[str]) -> None:
    problems = list(_is_alike(names))
    if problems:
        raise DataError.from_problems(problems)


def _is_alike(names: Sequence[str]) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            message = f"properties {other!r} and {name!r} differ only in case, which columns do not support"
            yield Problem("values", "case", message, "rename one upstream, or set values to 'entity'")
