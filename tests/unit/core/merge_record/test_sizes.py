"""Tests of estimating the size of an output from earlier merges."""

from __future__ import annotations

from typing import Any

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.plan import NewFiles, estimate_sizes, learn_size
from airflow_merge_provider.core.merge_record.state import State

PARQUET = {"reader": "json", "writer": "parquet", "size_basis": "estimated_output"}
ARRIVALS = NewFiles((FlowFile("a", "a", 0, 10, 1000, "s"),))


def estimate_all(state: State, **settings: Any) -> list[int]:
    config = MergeRecordConfig.parse(settings)
    return [flowfile.bytes for flowfile in estimate_sizes(ARRIVALS, state, config).flowfiles]


def test_bytes_are_those_of_the_records_written_before() -> None:
    """The estimate uses the sums of all merges: after 300 bytes for 100 records, 10 records have 30 bytes."""
    config = MergeRecordConfig.parse(PARQUET)
    state = learn_size(learn_size(State(), config, 60, 100), config, 40, 200)

    assert estimate_all(state, **PARQUET) == [30]
    assert State.from_json(state.as_json()) == state


def test_nothing_learned_leaves_the_bytes_of_the_input() -> None:
    """Without usable output sizes the bytes of the input are used.

    This holds before the first merge, with another writer, and if the input size is configured to count.
    """
    state = learn_size(State(), MergeRecordConfig.parse(PARQUET), 100, 300)

    assert estimate_all(State(), **PARQUET) == [1000]
    assert estimate_all(state, **{**PARQUET, "writer": "orc"}) == [1000]
    assert estimate_all(state, **{**PARQUET, "size_basis": "input"}) == [1000]


def test_another_writer_begins_anew_and_nothing_teaches_nothing() -> None:
    """Another writer starts a new estimate, and an output without records does not change it."""
    parquet, orc = (MergeRecordConfig.parse({**PARQUET, "writer": kind}) for kind in ("parquet", "orc"))
    state = learn_size(State(), parquet, 100, 300)

    assert learn_size(state, parquet, 0, 12) == state
    assert learn_size(state, orc, 1, 7).learned.bytes == 7
