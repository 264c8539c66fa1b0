"""The lineage of merged entities: the properties of all datasets, joined by the columns of match rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_merge_provider.core.merge_source.columns import ENTITY, IDS, find_entity_column, is_property
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.dtl.expressions import list_properties
from airflow_merge_provider.core.merge_source.equality import plan_rules
from airflow_merge_provider.core.merge_source.survivorship import LATEST, apply_default, parse_choices
from airflow_merge_provider.core.run.columns import list_types
from airflow_merge_provider.core.run.lineage_model import (
    TARGET,
    ColumnLineage,
    InputColumn,
    RunSchemas,
    list_direct,
    list_indirect,
    list_names,
)
from airflow_merge_provider.core.run.table_log import Fields

OVERRIDES, METRICS = "overrides", "metrics"
_ID_COLUMN, _DELETED, _HASH, _MEMBERS, _PROVENANCE = "_id", "_deleted", "_hash", "_members", "$provenance"

Columns = dict[str, list[InputColumn]]


@dataclass(frozen=True, slots=True)
class _SourceColumns:
    """The columns of a dataset; ``entity`` holds whole entities, None if each property is a column."""

    dataset: str
    names: Sequence[str]
    entity: str | None
    properties: Sequence[str]

    @classmethod
    def from_fields(cls, dataset: str, fields: Fields, config: MergeSourceConfig) -> _SourceColumns:
        names, entity = list_names(fields), find_entity_column(list_types(fields), config)
        properties = [] if entity else [name for name in names if is_property(name, config)]
        return cls(dataset, names, entity, properties)

    @property
    def content(self) -> Sequence[str]:
        """The columns with everything that is merged."""
        return [self.entity] if self.entity else self.properties

    def find_columns(self, *names: str) -> list[str]:
        """Return the columns that hold system fields or properties; whole entities may hold them, too."""
        columns = [name if name in self.names or self.entity is None else self.entity for name in names]
        return [name for name in dict.fromkeys(columns) if name in self.names]


def trace_columns(config: MergeSourceConfig, schemas: RunSchemas) -> dict[str, ColumnLineage]:
    """Return the lineage of the target, from the datasets whose columns are known."""
    sources = {
        position: _SourceColumns.from_fields(name, schemas.inputs[name], config)
        for position in range(len(config.datasets))
        if (name := _name_source(position)) in schemas.inputs
    }
    if not sources:
        return {}
    rows = list(dict.fromkeys(_list_rule_columns(config, sources)))
    known_sources = list(sources.values())
    columns = _trace_system_columns(config, known_sources, rows)
    columns |= _trace_properties(config, known_sources)
    target = schemas.outputs.get(TARGET)
    target_names = columns if target is None else list_names(target)
    columns = {name: columns[name] for name in target_names if columns.get(name)}
    return {TARGET: ColumnLineage(columns, rows)}


def is_overwrite(config: MergeSourceConfig, *, full_refresh: bool) -> bool:  # noqa: ARG001 - rows are compared
    """Return whether the run rewrites its target."""
    return config.reset


def _trace_properties(config: MergeSourceConfig, sources: Sequence[_SourceColumns]) -> Columns:
    if config.values != "columns":
        return {
            ENTITY: [
                column
                for source in sources
                for column in list_direct(source.dataset, source.content, "AGGREGATION")
            ]
        }
    properties = list(dict.fromkeys(name for source in sources for name in source.properties))
    choices = apply_default(parse_choices(config.survivorship), properties)
    rules = {name: rule for rule in choices for name in rule.properties}
    columns: Columns = {}
    for source in sources:
        for name in source.properties:
            rule = rules.get(name)
            # Without a rule, the column lists the values of all members.
            column = columns.setdefault(name, [])
            column += list_direct(source.dataset, [name], "IDENTITY" if rule else "AGGREGATION")
            if rule and any(preference.kind == LATEST for preference in rule.preferences):
                sequence_columns = source.find_columns(config.sequence_column)
                column += list_indirect(source.dataset, sequence_columns, "SORT")
    return columns


def _trace_system_columns(
    config: MergeSourceConfig, sources: Sequence[_SourceColumns], rule_columns: Sequence[InputColumn]
) -> Columns:
    columns: Columns = {name: [] for name in (_ID_COLUMN, _DELETED, IDS, _HASH, _MEMBERS, _PROVENANCE)}
    for source in sources:
        dataset, ids = source.dataset, source.find_columns(config.id_column)
        compared = [column.column for column in rule_columns if column.dataset == dataset]
        columns[_ID_COLUMN] += list_direct(
            dataset, ids, "IDENTITY" if config.identity == "first" else "TRANSFORMATION"
        )
        columns[IDS] += list_direct(dataset, ids, "AGGREGATION")
        columns[_DELETED] += list_direct(dataset, source.find_columns(config.deleted_column), "AGGREGATION")
        columns[_HASH] += list_direct(dataset, source.content, "TRANSFORMATION", is_masking=True)
        columns[_MEMBERS] += list_direct(dataset, dict.fromkeys([*ids, *compared]), "AGGREGATION")
        if config.survivorship:
            columns[_PROVENANCE] += list_direct(dataset, ids, "AGGREGATION")
    return columns


def _list_rule_columns(
    config: MergeSourceConfig, sources: Mapping[int, _SourceColumns]
) -> Iterator[InputColumn]:
    """Yield the columns by whose values entities are merged."""
    for rule in plan_rules(config):
        for side in (rule.left, rule.right):
            source = sources.get(side.dataset)
            if source is not None:
                names = source.find_columns(*list_properties(side.expression))
                yield from list_indirect(source.dataset, names, "JOIN")


def _name_source(position: int) -> str:
    return f"datasets[{position}]"
