"""Tests of a partly published plan: the unpublished part is planned again as new."""

from __future__ import annotations

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile, flowfile_uuid
from airflow_merge_provider.core.merge_record.plan import NewFiles, Plan, plan_merges, reduce_plan
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.core.merge_record.state import State

SCHEMA = Schema(({"name": "id", "type": "long"},))
CONFIG = MergeRecordConfig.parse(
    {
        "source": "/in", "merged": "/m", "failure": "/f", "original": "/o", "state_path": "/s",
        "reader": "json", "min_records": 2, "max_records": 2, "correlation_attribute_name": "k",
    }
)  # fmt: skip


def make_file(name: str, group: str, part: str | None = None, *, malformed: str | None = None) -> FlowFile:
    uri = f"/in/{name}"
    return FlowFile(
        uri, flowfile_uuid(uri, "1", part), 0, 1, 9, SCHEMA.build_key(), "1", 9, {"k": group}, part,
        malformed=malformed,
    )  # fmt: skip


def make_plan(state: State, *files: FlowFile) -> Plan:
    return plan_merges(state, NewFiles(files, {SCHEMA.build_key(): SCHEMA}), 1, CONFIG)


def list_waiting(state: State) -> list[str]:
    return [f"{source.name}{source.part or ''}" for source in state.sources]


def test_open_bins_keep_their_files_and_new_files_are_new_again() -> None:
    """Unpublished files and bins return to their previous state, and their numbers are not used again."""
    before = make_plan(State(), make_file("a", "1")).state
    plan = make_plan(
        before, make_file("b", "1"), make_file("c", "2"), make_file("d", "2"), make_file("e", "3")
    )
    second = next(merge for merge in plan.merges if merge.sources[0].name == "c")

    reduced_plan = reduce_plan(plan, before, {second.id}, CONFIG)

    assert [merge.id for merge in reduced_plan.merges] == [second.id]
    assert list_waiting(reduced_plan.state) == ["a"]
    assert set(reduced_plan.finished) == {"/in/c", "/in/d"}
    assert reduced_plan.state.generation == plan.state.generation
    again = make_plan(reduced_plan.state, make_file("b", "1"), make_file("e", "3"))
    (merge,) = again.merges
    assert [source.name for source in merge.sources] == ["a", "b"]
    assert merge.id not in {planned_merge.id for planned_merge in plan.merges}


def test_parts_of_a_file_that_is_merged_in_part_are_offered_again() -> None:
    """Only the unmerged parts of a partly merged file are planned again, not the whole file."""
    parts = [make_file("a", group, part) for group, part in (("1", "x"), ("2", "y"), ("3", "z"))]
    plan = make_plan(State(), *parts, make_file("b", "1"), make_file("c", "2"))
    first = next(merge for merge in plan.merges if merge.sources[0].part == "x")

    reduced_plan = reduce_plan(plan, State(), {first.id}, CONFIG)

    assert list_waiting(reduced_plan.state) == ["ay", "az"]
    assert reduced_plan.state.partial == {"/in/a": (first.id,)}
    assert set(reduced_plan.finished) == {"/in/b"}
    assert State.from_json(reduced_plan.state.as_json()) == reduced_plan.state
    again = make_plan(reduced_plan.state, make_file("c", "2"))
    (merge,) = again.merges
    assert [(source.name, source.part) for source in merge.sources] == [("a", "y"), ("c", None)]
    assert list_waiting(again.state) == ["az"]
    assert again.state.returned == ()


def test_a_file_with_a_failed_part_goes_to_failure_and_not_to_original() -> None:
    """A file with a failed part goes to failure only and not to original."""
    plan = make_plan(
        State(), make_file("a", "1", "x"), make_file("b", "1"), make_file("a", "2", "y", malformed="bad")
    )

    assert [failure.sources[0].part for failure in plan.failures] == ["y"]
    assert set(plan.finished) == {"/in/b"}
