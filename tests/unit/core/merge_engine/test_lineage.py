"""Tests of the lineage of a fold."""

from __future__ import annotations

from typing import Any

from airflow_merge_provider.core.merge_engine.config import MergeEngineConfig
from airflow_merge_provider.core.merge_engine.lineage import CHANGELOG, trace_columns
from airflow_merge_provider.core.run.lineage_model import TARGET, RunSchemas
from tests.unit.core.columns_shown import build_fields, show_columns, show_sources

TABLE = build_fields("k", amount="long", n="long", last="string", at="timestamp")


def trace(config: dict[str, Any], source: list[dict[str, Any]] | None = None) -> Any:
    schemas = RunSchemas({} if source is None else {"source": source}, {TARGET: TABLE})
    parsed_config = MergeEngineConfig.parse({"source": "s", "target": "t", "primary_key": "k", **config})
    return trace_columns(parsed_config, schemas)


def test_aggregates_combine_records_and_other_columns_take_a_value() -> None:
    """A sum aggregates, a count does not show its values, and last_value takes the value of one record."""
    options = {
        "fields.amount.aggregate-function": "sum",
        "fields.n.aggregate-function": "count",
        "fields.last.aggregate-function": "last_value",
        "sequence.field": "at",
    }

    lineage = trace({"merge_engine": "aggregation", "options": options})[TARGET]

    assert show_columns(lineage) == {
        "k": ["source.k IDENTITY"],
        "amount": ["source.amount AGGREGATION"],
        "n": ["source.n AGGREGATION*"],
        "last": ["source.last IDENTITY"],
        "at": ["source.at IDENTITY"],
    }
    assert show_sources(lineage.rows) == ["source.k GROUP_BY", "source.at SORT"]


def test_a_sequence_group_orders_the_columns_that_it_protects() -> None:
    """The ordering field of a group affects the columns of the group, and no other column."""
    options = {"fields.at.sequence-group": "last,amount"}

    lineage = trace({"merge_engine": "partial-update", "options": options})[TARGET]

    columns = show_columns(lineage)
    assert columns["last"] == ["source.last IDENTITY", "source.at SORT"]
    assert columns["n"] == ["source.n IDENTITY"]
    assert columns["at"] == ["source.at IDENTITY"]


def test_columns_that_are_read_and_not_stored_affect_the_rows() -> None:
    """Row kinds and the order of arrival affect the rows; names are compared ignoring case."""
    source = build_fields("K", "LAST", "kind", amount="long", n="long", at="timestamp")

    lineage = trace({"row_kind_column": "kind", "order_by": "At"}, source)[TARGET]

    assert show_columns(lineage)["last"] == ["source.LAST IDENTITY"]
    assert show_sources(lineage.rows) == ["source.K GROUP_BY", "source.at SORT", "source.kind CONDITIONAL"]


def test_a_column_that_the_source_lacks_has_no_lineage() -> None:
    """A partial update may lack columns."""
    lineage = trace({"merge_engine": "partial-update"}, build_fields("k", "last"))[TARGET]

    assert show_columns(lineage) == {"k": ["source.k IDENTITY"], "last": ["source.last IDENTITY"]}


def test_the_change_log_has_the_lineage_of_the_table() -> None:
    """The change log has the columns of the target."""
    lineage = trace({"changelog": "log"})

    assert lineage[CHANGELOG] == lineage[TARGET]


def test_without_a_schema_there_is_no_lineage() -> None:
    """The columns of a table that Spark alone can read may be unknown."""
    config = MergeEngineConfig.parse({"source": "s", "target": "t", "primary_key": "k"})

    assert trace_columns(config, RunSchemas({"source": TABLE})) == {}
