"""The lineage of a join: each column comes from one field, and the compared fields determine the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_merge_provider.core.joiner.config import JoinerConfig
from airflow_merge_provider.core.joiner.plan import JoinPlan, plan_join
from airflow_merge_provider.core.joiner.schema import parse_table_fields
from airflow_merge_provider.core.run.lineage_model import (
    TARGET,
    ColumnLineage,
    DatasetCounts,
    InputColumn,
    Resolve,
    RunDatasets,
    RunSchemas,
    list_direct,
    list_indirect,
)

UNMATCHED = "unmatched"
# A string in a SQL expression.
_TEXT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")


def list_datasets(config: JoinerConfig, resolve: Resolve) -> RunDatasets:
    """Return the inputs by their names, the target, and the table of unmatched rows."""
    inputs = {stage: resolve(ref, at=f"inputs.{stage}") for stage, ref in config.inputs.items()}
    outputs = {TARGET: resolve(config.target or "", at=TARGET)}
    if config.unmatched is not None:
        outputs[UNMATCHED] = resolve(config.unmatched, at=UNMATCHED)
    return RunDatasets(inputs, outputs)


def trace_columns(config: JoinerConfig, schemas: RunSchemas) -> dict[str, ColumnLineage]:
    """Return the lineage of the joined columns; none if the columns of an input are unknown."""
    if config.inputs.keys() - schemas.inputs.keys():
        return {}
    input_schemas = {stage: parse_table_fields(schemas.inputs[stage]) for stage in config.inputs}
    plan = plan_join(config, input_schemas)
    columns: dict[str, list[InputColumn]] = {}
    for position, field in enumerate(plan.key_columns):
        # The key of a row comes from whichever input has the row.
        columns[field.name] = [
            source
            for stage in plan.order
            for source in list_direct(stage, [plan.keys[stage][position]], "IDENTITY")
        ]
    for output in plan.outputs:
        columns[output.field.name] = list_direct(output.stage, [output.source], "IDENTITY")
    rows = [
        source
        for stage, compared_fields in _list_compared_fields(plan)
        for source in list_indirect(stage, compared_fields, "JOIN")
    ]
    return {TARGET: ColumnLineage(columns, rows)}


def count_written(report: Mapping[str, Any]) -> dict[str, DatasetCounts]:
    """Return the number of unmatched rows."""
    return {UNMATCHED: DatasetCounts(rows=report["counts"].get(UNMATCHED))}


def is_overwrite(config: JoinerConfig, *, full_refresh: bool) -> bool:  # noqa: ARG001 - as others
    """Return whether each run replaces all rows."""
    return config.write_mode == "overwrite"


def _list_compared_fields(plan: JoinPlan) -> Iterator[tuple[str, list[str]]]:
    """Yield each input with the fields that decide which of its rows match."""
    if plan.expression is None:
        yield from ((stage, list(plan.keys.get(stage, ()))) for stage in plan.order)
        return
    references = _TEXT.sub("''", plan.expression)
    for stage, schema in plan.schemas.items():
        alias = re.escape(plan.aliases[stage])
        patterns = {
            field.name: rf"(?<![\w.`])`?{alias}`?\.`?{re.escape(field.name)}`?(?!\w)" for field in schema
        }
        yield stage, [name for name, pattern in patterns.items() if re.search(pattern, references)]
