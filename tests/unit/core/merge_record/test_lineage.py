"""Tests of the lineage of merged files."""

from __future__ import annotations

from typing import Any

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.lineage import trace_columns
from airflow_merge_provider.core.run.lineage_model import TARGET, RunSchemas
from tests.unit.core.columns_shown import build_fields, show_columns, show_sources

FOLDERS = {"source": "in", "merged": "out", "failure": "bad", "original": "done", "state_path": "state"}


def build_config(**config: Any) -> MergeRecordConfig:
    return MergeRecordConfig.parse({**FOLDERS, "reader": "json", **config})


def test_a_merged_file_has_the_fields_of_its_sources() -> None:
    """Fields keep their values; a field of the writer that no source has gets none."""
    schemas = RunSchemas({"source": build_fields("id", "v")}, {TARGET: build_fields("id", "added")})

    lineage = trace_columns(build_config(partition_by={"day": "v"}), schemas)[TARGET]

    assert show_columns(lineage) == {"id": ["source.id IDENTITY"]}
    assert show_sources(lineage.rows) == ["source.v GROUP_BY"]


def test_a_run_without_merges_has_no_columns() -> None:
    """The fields are known only if files were merged."""
    assert trace_columns(build_config(), RunSchemas()) == {}
