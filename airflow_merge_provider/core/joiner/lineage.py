"""The lineage of a join: each column comes from one field, and the compared fields determine the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.plan import JoinPlan, plan_join
from airflow_merge_provider.core.joiner.schema import parse_table_fields
from airflow_merge_provider.core.report import Report
from airflow_merge_provider.core.run.lineage_model import (
    TARGET,
    ColumnLineage,
    DatasetCounts,
    InputColumn,
    RunSchemas,
    list_direct,
    list_indirect,
)

UNMATCHED = "unmatched"
# A string in a SQL expression.
_TEXT_LITERAL = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


def trace_columns(config: JoinerConfig, schemas: RunSchemas) -> dict[str, ColumnLineage]:
    """Return the lineage of the joined columns; none if the columns of an input are unknown."""
    names = {stage: _name_input(stage) for stage in config.inputs}
    if set(names.values()) - schemas.inputs.keys():
        return {}
    input_schemas = {stage: parse_table_fields(schemas.inputs[name]) for stage, name in names.items()}
    plan = plan_join(config, input_schemas)
    columns: dict[str, list[InputColumn]] = {}
    for position, field in enumerate(plan.key_columns):
        # The key of a row comes from whichever input has the row.
        columns[field.name] = [
            source
            for stage in plan.order
            for source in list_direct(names[stage], [plan.keys[stage][position]], "IDENTITY")
        ]
    for output in plan.outputs:
        columns[output.field.name] = list_direct(names[output.stage], [output.source], "IDENTITY")
    rows = [
        source
        for stage, compared_fields in _list_compared_fields(plan)
        for source in list_indirect(names[stage], compared_fields, "JOIN")
    ]
    return {TARGET: ColumnLineage(columns, rows)}


def _name_input(stage: str) -> str:
    return f"inputs.{stage}"


def count_written(report: Report) -> dict[str, DatasetCounts]:
    """Return the number of unmatched rows."""
    return {UNMATCHED: DatasetCounts(rows=report.counts.get(UNMATCHED))}


def is_overwrite(config: JoinerConfig, *, full_refresh: bool) -> bool:  # noqa: ARG001 - as others
    """Return whether each run replaces all rows."""
    return config.write_mode == "overwrite"


def _list_compared_fields(plan: JoinPlan) -> Iterator[tuple[str, list[str]]]:
    """Yield each input with the fields that decide which of its rows match."""
    if plan.expression is None:
        yield from ((stage, list(plan.keys.get(stage, ()))) for stage in plan.order)
        return
    references = _TEXT_LITERAL.sub("''", plan.expression)
    for stage, schema in plan.schemas.items():
        alias = re.escape(plan.aliases[stage])
        patterns = {
            field.name: rf"(?<![\w.`])`?{alias}`?\.`?{re.escape(field.name)}`?(?!\w)" for field in schema
        }
        yield stage, [name for name, pattern in patterns.items() if re.search(pattern, references)]
