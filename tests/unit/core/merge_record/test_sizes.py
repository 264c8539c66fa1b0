"""What earlier merges teach of the size of an output."""

from __future__ import annotations

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.plan import Arrivals
from airflow_merge_provider.core.merge_record.sizes import estimated, taught
from airflow_merge_provider.core.merge_record.state import State

PARQUET = {"reader": "json", "writer": "parquet", "size_basis": "estimated_output"}
ARRIVALS = Arrivals((FlowFile("a", "a", 0, 10, 1000, "s"),))


def sizes(state: State, **settings) -> list[int]:
    config = MergeRecordConfig.parse(settings)
    return [each.bytes for each in estimated(ARRIVALS, state, config).flowfiles]


def test_bytes_are_those_of_the_records_written_before():
    """The sums of all merges: 300 bytes of 100 records are 30 of 10."""
    config = MergeRecordConfig.parse(PARQUET)
    state = taught(taught(State(), config, 60, 100), config, 40, 200)

    assert sizes(state, **PARQUET) == [30]
    assert State.of(state.as_json()) == state


def test_nothing_learned_leaves_the_bytes_of_the_input():
    """Before the first merge, with another writer, and where the input is what counts."""
    state = taught(State(), MergeRecordConfig.parse(PARQUET), 100, 300)

    assert sizes(State(), **PARQUET) == [1000]
    assert sizes(state, **{**PARQUET, "writer": "orc"}) == [1000]
    assert sizes(state, **{**PARQUET, "size_basis": "input"}) == [1000]


def test_another_writer_begins_anew_and_nothing_teaches_nothing():
    """An output without records says nothing of their size."""
    parquet, orc = (MergeRecordConfig.parse({**PARQUET, "writer": kind}) for kind in ("parquet", "orc"))
    state = taught(State(), parquet, 100, 300)

    assert taught(state, parquet, 0, 12) == state
    assert taught(state, orc, 1, 7).learned["bytes"] == 7
