"""Choose the shape of the target: how properties are carried to it, and whether its columns accept them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import StructType

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.survivorship import LATEST, parse_choices
from airflow_merge_provider.jobs.merge_source.output.content import (
    Content,
    ListContent,
    MapContent,
    TypedContent,
)
from airflow_merge_provider.jobs.merge_source.output.typed_columns import ColumnsContent
from airflow_merge_provider.jobs.merge_source.scan.sources import Source

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
