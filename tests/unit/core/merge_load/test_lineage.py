"""Tests of the lineage of loads."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.merge_load.config import load_config
from airflow_merge_provider.core.merge_load.lineage import trace_columns
from airflow_merge_provider.core.run.lineage_model import TARGET, RunSchemas
from tests.unit.core.columns_shown import build_fields, show_columns, show_sources

DATASETS = {"source": "s", "target": "t"}
SOURCE = build_fields("id", "name", "at", "gone", "region")


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        ({"strategy": "upsert", "primary_key": "id"}, ["source.id JOIN"]),
        (
            {"strategy": "upsert", "primary_key": "id", "sequence_by": "at", "hard_delete": "gone"},
            ["source.id JOIN", "source.gone FILTER", "source.at SORT"],
        ),
        (
            {"strategy": "upsert", "primary_key": "id", "row_version_column_name": "at"},
            ["source.id JOIN", "source.at CONDITIONAL"],
        ),
        (
            {"primary_key": "id", "merge_key": "region", "dedup_sort": {"at": "desc"}},
            ["source.id JOIN", "source.region JOIN", "source.at SORT"],
        ),
        ({"dispatch_by": "region"}, ["source.region FILTER"]),
    ],
    ids=["upsert", "sequence", "row version", "delete-insert", "dispatch"],
)
def test_a_load_keeps_values(config: dict[str, Any], rows: list[str]) -> None:
    """Each column of the target has the values of the source's column with its name."""
    lineage = trace_columns(load_config({**DATASETS, **config}), RunSchemas({"source": SOURCE}))[TARGET]

    assert show_columns(lineage) == {field["name"]: [f"source.{field['name']} IDENTITY"] for field in SOURCE}
    assert show_sources(lineage.rows) == rows


def test_only_columns_of_both_sides_are_traced() -> None:
    """A column that the source has lost, or that the target ignores, has no lineage."""
    schemas = RunSchemas({"source": build_fields("id", "new")}, {TARGET: build_fields("id", "old")})

    lineage = trace_columns(load_config({**DATASETS, "primary_key": "id"}), schemas)[TARGET]

    assert show_columns(lineage) == {"id": ["source.id IDENTITY"]}


def test_a_source_without_a_schema_has_the_columns_of_the_target() -> None:
    """If the columns of the source are unknown, as of csv files, those of the target have the same names."""
    schemas = RunSchemas({}, {TARGET: build_fields("id", "_row_id")})

    lineage = trace_columns(load_config({**DATASETS, "nested": "tables"}), schemas)[TARGET]

    assert show_columns(lineage) == {"id": ["source.id IDENTITY"]}


def test_a_history_describes_versions() -> None:
    """The added columns depend on the effective time, the natural key, the flag and the tracked columns."""
    config = load_config(
        {
            **DATASETS,
            "strategy": "scd2",
            "natural_key": "id",
            "mode": "changes",
            "effective_from": "at",
            "hard_delete": "gone",
            "on_delete": "mark",
            "track_except": "region",
            "current_column": "is_current",
            "surrogate_key_column": "sk",
        }
    )
    target = build_fields(
        "id", "name", "at", "region", "valid_from", "valid_to", "is_current", "is_deleted", "sk", "_row_hash"
    )

    lineage = trace_columns(config, RunSchemas({"source": SOURCE}, {TARGET: target}))[TARGET]

    columns = show_columns(lineage)
    assert {name: columns[name] for name in ("id", "name", "at", "region")} == {
        name: [f"source.{name} IDENTITY"] for name in ("id", "name", "at", "region")
    }
    assert {name: columns[name] for name in columns if name not in {"id", "name", "at", "region"}} == {
        "valid_from": ["source.at IDENTITY"],
        "valid_to": ["source.at TRANSFORMATION", "source.id WINDOW"],
        "is_current": ["source.at CONDITIONAL", "source.id WINDOW"],
        "is_deleted": ["source.gone CONDITIONAL"],
        "sk": ["source.id TRANSFORMATION*", "source.at TRANSFORMATION*"],
        "_row_hash": ["source.name TRANSFORMATION*"],
    }


def test_versions_without_a_key_are_identified_by_their_content() -> None:
    """Without a natural key, the hash covers all columns, and the validity comes from the run alone."""
    config = load_config({**DATASETS, "strategy": "scd2"})
    target = build_fields("id", "name", "valid_from", "valid_to", "_row_hash")

    lineage = trace_columns(config, RunSchemas({"source": build_fields("id", "name")}, {TARGET: target}))[
        TARGET
    ]

    assert show_columns(lineage) == {
        "id": ["source.id IDENTITY"],
        "name": ["source.name IDENTITY"],
        "_row_hash": ["source.id TRANSFORMATION*", "source.name TRANSFORMATION*"],
    }
    assert lineage.rows == []


def test_a_check_writes_no_columns() -> None:
    """A check only reads."""
    config = load_config({"strategy": "scd2-check", "target": "t"})

    assert trace_columns(config, RunSchemas({TARGET: SOURCE})) == {}
