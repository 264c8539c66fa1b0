"""The lineage of a fold: columns take a value of one record, or aggregate those of several."""

from __future__ import annotations

from airflow_merge_provider.core.merge_engine.checks import plan_fold
from airflow_merge_provider.core.merge_engine.columns import parse_columns
from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.functions import FUNCTIONS
from airflow_merge_provider.core.merge_engine.plan import ColumnRule, Plan
from airflow_merge_provider.core.run.lineage_model import (
    TARGET,
    ColumnLineage,
    InputColumn,
    RunSchemas,
    list_direct,
    list_indirect,
    list_names,
)

SOURCE, CHANGELOG = "source", "changelog"


def trace_columns(config: MergeEngineConfig, schemas: RunSchemas) -> dict[str, ColumnLineage]:
    """Return the lineage of the target and of its change log, which has the same columns.

    It is empty if the columns of the target are unknown.
    """
    target = schemas.outputs.get(TARGET)
    if target is None:
        return {}
    plan = plan_fold(config, parse_columns(target))
    # Names are compared as in Spark, ignoring case.
    source_fields = schemas.inputs.get(SOURCE, target)
    source_names = {name.casefold(): name for name in list_names(source_fields)}
    columns = {
        rule.name: _trace_rule(rule, plan, source_names)
        for rule in plan.rules
        if rule.name.casefold() in source_names
    }
    lineage = ColumnLineage(columns, _list_row_columns(config, plan, source_names))
    return {TARGET: lineage} | ({} if config.changelog is None else {CHANGELOG: lineage})


def _trace_rule(rule: ColumnRule, plan: Plan, source_names: dict[str, str]) -> list[InputColumn]:
    column = source_names[rule.name.casefold()]
    ordering = () if rule.group is None else plan.groups[rule.group].order
    ordering_columns = [
        source_names[name.casefold()]
        for name in ordering
        if name.casefold() in source_names and name != rule.name
    ]
    function = None if rule.function is None else FUNCTIONS[rule.function]
    return [
        *list_direct(
            SOURCE,
            [column],
            "IDENTITY" if function is None or function.chooses else "AGGREGATION",
            is_masking=function is not None and function.masking,
        ),
        *list_indirect(SOURCE, ordering_columns, "SORT"),
    ]


def _list_row_columns(
    config: MergeEngineConfig, plan: Plan, source_names: dict[str, str]
) -> list[InputColumn]:
    """Return the columns that group the records, order them, and say what each does."""

    def find_names(*names: str | None) -> list[str]:
        return [source_names.get(name.casefold(), name) for name in names if name is not None]

    ordering_columns = dict.fromkeys(find_names(*plan.sequence, *config.order_by))
    return [
        *list_indirect(SOURCE, find_names(*plan.key), "GROUP_BY"),
        *list_indirect(SOURCE, ordering_columns, "SORT"),
        *list_indirect(
            SOURCE,
            find_names(config.row_kind_column, plan.options.row_kind_field, config.clear_column),
            "CONDITIONAL",
        ),
    ]
