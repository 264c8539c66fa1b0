"""Choose the surviving values among the members of a cluster, in Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, functions as F
from pyspark.sql.types import ArrayType, AtomicType, BinaryType, DataType, StringType, VariantType

from airflow_merge_provider.core.merge_source.survivorship import (
    FIRST,
    LATEST,
    LONGEST,
    MOST_COMMON,
    MOST_COMPLETE,
    Preference,
    SurvivorshipRule,
)
from airflow_merge_provider.jobs.merge_source.scan.variants import as_variant
from airflow_merge_provider.jobs.spark.expressions import combine_columns, combine_with_or

OFFSET = "__merge_offset"
PICKED, RECENCY, PROVENANCE = "__merge_picked", "__merge_recency", "$provenance"
# The members by property, for properties whose names only the data has.
PICKED_BY_NAME = "__merge_picked_by_name"
# The name of a property: a column where only the data has it.
Name = str | Column
# Reads the value of a property from a member, or from a row.
Read = Callable[[Column, Name], Column]


class Survivors:
    """The survivorship choices over members that are structs; ``read`` reads a property from a member.

    ``kinds`` are the types of the properties; a property without one is a VARIANT. ``names`` are the datasets
    by their offsets. Properties that no dataset has are not chosen. ``default`` is the rule of properties
    whose names only the data has; ``list_names`` reads these names from a member.
    """

    def __init__(
        self,
        choices: Sequence[SurvivorshipRule],
        read: Read,
        kinds: Mapping[str, DataType | None],
        names: Sequence[str],
        *,
        default: SurvivorshipRule | None = None,
        list_names: Callable[[Column], Column] | None = None,
    ) -> None:
        self._default, self._list_names = default, list_names
        self._read, self._kinds, self._names = read, kinds, names
        present_choices = [
            (choice, [name for name in choice.properties if name in kinds]) for choice in choices
        ]
        self._choices = [
            (choice, present_names) for choice, present_names in present_choices if present_names
        ]

    @property
    def by_recency(self) -> bool:
        """Return whether a choice depends on which member is the latest."""
        rules = [*(choice for choice, _ in self._choices), *filter(None, [self._default])]
        return any(preference.kind == LATEST for rule in rules for preference in rule.preferences)

    @property
    def has_rules(self) -> bool:
        """Whether the value of any property is chosen."""
        return bool(self._choices) or self.has_default

    @property
    def has_default(self) -> bool:
        """Whether the values of properties are chosen whose names only the data has."""
        return self._default is not None

    @property
    def properties(self) -> list[str]:
        """The properties that are chosen by a rule with their name."""
        return [name for _, names in self._choices for name in names]

    def pick_members(self, members: Column) -> list[Column]:
        """Return for every choice the chosen member; NULL if no member qualifies."""
        picked = [
            self._find_best_member(members, choice, names).alias(f"{PICKED}{number}")
            for number, (choice, names) in enumerate(self._choices)
        ]
        if self._default is not None:
            picked.append(self._pick_by_name(members, self._default).alias(PICKED_BY_NAME))
        return picked

    def read_values(self) -> dict[str, Column]:
        """Return the values of the members that ``picked`` has chosen."""
        return {
            name: self.non_null(self._read(F.col(f"{PICKED}{number}"), name), name)
            for number, (_, names) in enumerate(self._choices)
            for name in names
        }

    def non_null(self, value: Column, name: Name) -> Column:
        """Return a value that may survive; a null inside VARIANT counts as NULL."""
        if isinstance(name, str) and (name not in self.properties or not self._is_variant(name)):
            return value
        return F.when(~F.is_variant_null(value), value)

    def read_variants(self) -> dict[str, Column]:
        """Return the values of the members that ``picked`` has chosen, as VARIANT."""
        return {
            name: value if (kind := self._kinds[name]) is None else as_variant(value, kind)
            for name, value in self.read_values().items()
        }

    def build_origin(self, named: Callable[[Column], Column]) -> Callable[[str], Column]:
        """Return for a surviving value the member it comes from; ``named`` formats a chosen member."""
        values = self.read_values()
        picked = {
            name: F.col(f"{PICKED}{number}")
            for number, (_, names) in enumerate(self._choices)
            for name in names
        }
        return lambda name: F.when(values[name].isNotNull(), named(picked[name]))

    def _pick_by_name(self, members: Column, rule: SurvivorshipRule) -> Column:
        """Return the map of properties without a rule of their own to their chosen members."""
        if self._list_names is None:
            raise TypeError(rule)
        # Sorted, because the order of the map's keys is part of the hash of an output.
        names = F.array_sort(F.array_distinct(F.flatten(F.transform(members, self._list_names))))
        entries = F.transform(
            F.array_except(names, F.array(*map(F.lit, self.properties)).cast("array<string>")),
            lambda name: F.struct(name, self._find_best_member(members, rule, [name])),
        )
        return F.map_filter(F.map_from_entries(entries), lambda _, member: member.isNotNull())

    def _find_best_member(self, members: Column, choice: SurvivorshipRule, names: Sequence[Name]) -> Column:
        def has_any(member: Column) -> Column:
            return combine_with_or(self._has_value(member, name) for name in names)

        candidates = F.filter(members, has_any)

        def rank_member(member: Column, position: Column) -> Column:
            ranks = [
                self._rank_member(preference, member, candidates, names) for preference in choice.preferences
            ]
            named = [rank.alias(f"r{number}") for number, rank in enumerate(ranks) if rank is not None]
            return F.struct(*named, position.alias("place"))

        best = F.array_min(F.transform(candidates, rank_member))
        return F.get(candidates, best["place"])

    def _rank_member(
        self, preference: Preference, member: Column, candidates: Column, names: Sequence[Name]
    ) -> Column | None:
        """Return a rank of a member, where smaller is better; candidates are in their order."""
        if preference.kind == FIRST:
            return None
        if preference.kind == LATEST:
            # Unlike the negative number, the complement exists of every number.
            return F.coalesce(F.bitwise_not(member[RECENCY]), F.lit(2**63 - 1))
        if preference.kind == MOST_COMPLETE:
            has_values = (self._has_value(member, name).cast("int") for name in names)
            return -combine_columns(Column.__add__, has_values, F.lit(0))
        if preference.kind == MOST_COMMON:
            own_value = self._build_comparable(member, names[0])
            return -F.size(
                F.filter(
                    candidates, lambda candidate: self._build_comparable(candidate, names[0]) == own_value
                )
            )
        if preference.kind == LONGEST:
            return -self._measure_length(member, names[0])
        ranks = {self._names.index(name): rank for rank, name in enumerate(preference.datasets)}
        last = F.lit(len(ranks))
        return reduce(
            lambda fallback, pair: F.when(member[OFFSET] == pair[0], F.lit(pair[1])).otherwise(fallback),
            ranks.items(),
            last,
        )

    def _has_value(self, member: Column, name: Name) -> Column:
        return self.non_null(self._read(member, name), name).isNotNull()

    def _build_comparable(self, member: Column, name: Name) -> Column:
        """Return an expression that is equal for equal values; maps and VARIANT do not support equality."""
        value = self._read(member, name)
        return (
            value
            if isinstance(self._find_kind(name), AtomicType) and not self._is_variant(name)
            else self._format_json(value, name)
        )

    def _measure_length(self, member: Column, name: Name) -> Column:
        """Return the length of a string or list, or of another value's JSON in characters."""
        value, kind = self._read(member, name), self._find_kind(name)
        if isinstance(kind, StringType | BinaryType):
            return F.length(value)
        if isinstance(kind, ArrayType):
            return F.size(value)
        if self._is_variant(name):
            return F.length(F.coalesce(F.try_variant_get(value, "$", "string"), F.to_json(value)))
        is_plain = isinstance(kind, AtomicType)
        return F.length(value.cast("string") if is_plain else self._format_json(value, name))

    def _format_json(self, value: Column, name: Name) -> Column:
        """Return a value as JSON, in which the entries of a map are sorted and times have all digits."""
        kind = self._find_kind(name)
        return F.to_json(value if kind is None else as_variant(value, kind))

    def _is_variant(self, name: Name) -> bool:
        kind = self._find_kind(name)
        return kind is None or isinstance(kind, VariantType)

    def _find_kind(self, name: Name) -> DataType | None:
        return self._kinds[name] if isinstance(name, str) else None


def list_provenance(origins: Mapping[str, Column]) -> Column:
    """Build the map of properties to the members they come from; properties without a member are left out."""
    if not origins:
        return F.create_map().cast("map<string,string>")
    pairs = [part for name, origin in origins.items() for part in (F.lit(name), origin)]
    return F.map_filter(F.create_map(*pairs), lambda _, origin: origin.isNotNull())
