"""The JSON Schema of reports, and the tables of report keys and counts in the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.report import Measure, Report

_NULLABLE = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def build_report_schema(counts: Iterable[tuple[str, Sequence[Measure]]]) -> dict[str, Any]:
    """Return the JSON Schema of the reports of all capabilities.

    :param counts: jobs and the counts of their reports; a job may have several kinds of reports.
    """
    schema = Report.model_json_schema(mode="serialization")
    cases = [
        {"properties": {"job": {"const": job}, "counts": _build_counts_schema(measures)}}
        for job, measures in counts
    ]
    return {**schema, "oneOf": cases}


def _build_counts_schema(measures: Sequence[Measure]) -> dict[str, Any]:
    properties = {
        measure.name: {**_NULLABLE, "description": f"{measure.description} ({measure.unit})"}
        for measure in measures
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(properties),
    }


def render_keys() -> str:
    """Return the keys of a report as a Markdown table."""
    return _render_table(["key", "meaning"], _list_keys(Report.model_json_schema(mode="serialization")))


def render_counts(measures: Sequence[Measure]) -> str:
    """Return the counts of a capability as a Markdown table."""
    rows = ([f"`{measure.name}`", measure.unit, measure.scope, measure.description] for measure in measures)
    return _render_table(["count", "unit", "of the", "meaning"], rows)


def _list_keys(schema: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, key_schema in schema["properties"].items():
        yield [f"`{name}`", key_schema["description"]]
        value_schema = key_schema.get("additionalProperties", key_schema)
        reference = value_schema.get("$ref", "") if isinstance(value_schema, Mapping) else ""
        definition = schema.get("$defs", {}).get(reference.rpartition("/")[2], {})
        path = f"{name}.*" if value_schema is not key_schema else name
        for field, field_schema in definition.get("properties", {}).items():
            yield [f"`{path}.{field}`", field_schema["description"]]


def _render_table(titles: Sequence[str], rows: Iterator[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
