"""Tests of the bins against the oracle with random workloads, and of cases that the vectors do not cover."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

import pytest

from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.plan import NewFiles, Plan, next_expiry, plan_merges
from airflow_merge_provider.core.merge_record.schema import Schema
from airflow_merge_provider.core.merge_record.state import State, dissolve_bins, remove_files
from tests.conformance.oracles.merge_record import simulate_runs

SECOND = 1_000_000
SCHEMAS = {"s": Schema(({"name": "id", "type": "int"},))}
SEEDS = 400


def build_file(name: str, records: int = 1, at: float = 0, **attributes: str) -> FlowFile:
    return FlowFile(name, name, round(at * SECOND), records, 10 * records, "s", "1", attributes=attributes)


def run_plan(state: State, *files: FlowFile, at: float = 0, **settings: Any) -> Any:
    config = MergeRecordConfig.parse(settings)
    return plan_merges(state, NewFiles(files, SCHEMAS), round(at * SECOND), config)


def draw_workload(seed: int) -> Any:
    """Return settings for both implementations and up to six triggers."""
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    least = dice.randint(1, 4)
    settings = {
        "min_records": least,
        "max_records": dice.randint(least, 8),
        "max_bins": dice.randint(1, 4),
        "min_bin_size": dice.choice([0, 0, 20]),
        "max_bin_size": dice.choice([None, 40]),
        "max_bin_age": dice.choice([None, "10 secs"]),
        "merge_strategy": dice.choice(["Bin-Packing Algorithm", "Defragment"]),
        "complete_full_enough": dice.choice([True, False]),
        "bin_age_from": "first_seen",
        "correlation_attribute_name": "k",
        "fragment_index_policy": "ignore",
    }
    triggers, at = [], 0
    for number in range(dice.randint(1, 6)):
        at += dice.choice([0, 1, 5, 10, 11, 30])
        files = [
            {
                "name": f"f{number}-{file_number}",
                "group": dice.choice("abc"),
                "records": dice.randint(0, 4),
                "bytes": dice.choice([0, 7, 15, 30]),
                "bad": dice.random() < 0.05,
                "count": dice.choice([None, 2, 2, 2, 3]),
            }
            for file_number in range(dice.randint(0, 6))
        ]
        triggers.append({"at": at, "files": files})
    return settings, triggers


def build_flowfile(file: Any, at: Any) -> Any:
    attributes = {"k": file["group"], "fragment.identifier": file["group"]}
    if file["count"] is not None:
        attributes["fragment.count"] = str(file["count"])
    return FlowFile(
        file["name"], file["name"], at, file["records"], file["bytes"], "s",
        attributes=attributes, malformed="bad" if file["bad"] else None,
    )  # fmt: skip


@pytest.mark.parametrize("start", range(0, SEEDS, 100))
def test_random_workloads_end_as_the_definition_says(start: Any) -> None:
    """Which files are merged together, when and why, equals the slow and simple oracle."""
    for seed in range(start, start + 100):
        settings, triggers = draw_workload(seed)
        expected = simulate_runs(
            {
                "min_records": settings["min_records"],
                "max_records": settings["max_records"],
                "min_bytes": settings["min_bin_size"],
                "max_bytes": settings["max_bin_size"],
                "age": 10 if settings["max_bin_age"] else None,
                "bins": settings["max_bins"],
                "defragment": settings["merge_strategy"] == "Defragment",
                "drain": settings["complete_full_enough"],
            },
            triggers,
        )
        config = MergeRecordConfig.parse(settings)
        state, results = State(), []
        for number, trigger in enumerate(triggers):
            now = trigger["at"] * SECOND
            files = tuple(build_flowfile(file, now) for file in trigger["files"])
            # Serialize and parse the state between two runs, as stored state is.
            plan = plan_merges(State.from_json(state.as_json()), NewFiles(files, SCHEMAS), now, config)
            results += [
                (number, "merged", merge.reason.code, tuple(source.name for source in merge.sources))
                for merge in plan.merges
            ]
            results += [
                (number, "failed", "", tuple(source.name for source in failure.sources))
                for failure in plan.failures
            ]
            state = plan.state
        results += [(-1, "open", "", tuple(source.name for source in bin_.sources)) for bin_ in state.bins]
        without_reasons = [
            (*result[:2], "" if result[1] == "failed" else result[2], result[3]) for result in expected
        ]
        assert sorted(results) == sorted(without_reasons), seed


def test_a_plan_depends_on_nothing_but_its_arguments() -> None:
    """The same state, files, time and configuration give the same IDs.

    The plan does not change its input state.
    """
    before = run_plan(State(), build_file("a"), build_file("b"), min_records=5).state
    stored = before.as_json()

    first, second = (run_plan(before, build_file("c", 5), at=1, min_records=5) for _ in range(2))

    assert [merge.id for merge in first.merges] == [merge.id for merge in second.merges] != []
    assert before.as_json() == stored


def test_old_files_that_waited_together_are_merged_together() -> None:
    """A bin of this run does not end at its second file only because its first file has waited for long."""
    plan = run_plan(
        State(), *(build_file(f"f{n}", at=0) for n in range(5)), at=3600, min_records=9, max_bin_age="1 min"
    )

    (merge,) = plan.merges
    assert (len(merge.sources), merge.reason.code, merge.age_ms) == (5, "AGE", 3_600_000)


def test_a_clock_that_steps_back_expires_nothing() -> None:
    """An age is never negative: a file with a time in the future has age zero."""
    state = run_plan(State(), build_file("a", at=100), at=100, min_records=5, max_bin_age="30 secs").state

    plan = run_plan(
        state, build_file("b", 4, at=900), at=50, min_records=5, max_records=5, max_bin_age="30 secs"
    )

    (merge,) = plan.merges
    assert (merge.reason.code, merge.age_ms) == ("FULL", 0)


def test_thresholds_apply_at_once_to_open_bins() -> None:
    """An open bin of an earlier run ends by the currently configured thresholds."""
    state = run_plan(State(), build_file("a"), build_file("b"), min_records=5).state

    (merge,) = run_plan(state, at=1, min_records=2).merges

    assert merge.reason.code == "FULL_ENOUGH"


def test_a_flush_ends_every_bin() -> None:
    """A flush ends every bin: bins below the minimums are merged, and incomplete fragment sets fail."""
    state = run_plan(
        State(), build_file("a", k="1"), build_file("b", k="2"), min_records=5, correlation_attribute_name="k"
    ).state
    plan = run_plan(state, at=1, min_records=5, flush=True, correlation_attribute_name="k")
    assert [merge.reason.code for merge in plan.merges] == ["FLUSH", "FLUSH"]

    fragment = build_file("a", **{"fragment.identifier": "1", "fragment.count": "2"})
    (failure,) = run_plan(State(), fragment, merge_strategy="Defragment", flush=True).failures
    assert failure.reason.code == "INCOMPLETE"
    assert "1 of 2 fragments" in failure.reason.text


@pytest.mark.parametrize(
    ("indexes", "code"), [(("0", None), "FRAGMENT_INDEX_MISSING"), (("1", "1"), "FRAGMENT_INDEX_REPEATED")]
)
def test_the_strict_policy_wants_every_index_once(indexes: Any, code: Any) -> None:
    """The strict policy requires every fragment index exactly once.

    Otherwise the complete set fails, and the error names the wrong fragment.
    """
    files = [
        build_file(
            f"f{file_number}",
            **{"fragment.identifier": "1", "fragment.count": "2"},
            **({} if index is None else {"fragment.index": index}),
        )
        for file_number, index in enumerate(indexes)
    ]

    (failure,) = run_plan(
        State(), *files, merge_strategy="Defragment", fragment_index_policy="strict"
    ).failures

    assert (failure.reason.code, failure.culprit) == (code, "f1")
    assert [source.name for source in failure.sources] == ["f0", "f1"]


def test_fragments_stay_as_they_came_where_the_index_is_ignored() -> None:
    """With the policy ignore, which is NiFi's own, fragments stay in order of arrival."""
    files = [
        build_file(
            f"f{index}", **{"fragment.identifier": "1", "fragment.count": "2", "fragment.index": str(index)}
        )
        for index in (1, 0)
    ]

    (merge,) = run_plan(State(), *files, merge_strategy="Defragment", fragment_index_policy="ignore").merges

    assert [source.name for source in merge.sources] == ["f1", "f0"]


def test_a_malformed_file_fails_alone_where_asked() -> None:
    """With failure_scope flowfile only the malformed file fails and the bin continues without it."""
    bad = FlowFile("bad", "bad", 0, 1, 1, "s", malformed="no JSON")

    plan = run_plan(State(), build_file("a"), bad, build_file("b"), failure_scope="flowfile", min_records=2)

    assert [[source.name for source in failure.sources] for failure in plan.failures] == [["bad"]]
    assert [[source.name for source in merge.sources] for merge in plan.merges] == [["a", "b"]]


@pytest.mark.parametrize(
    ("kind", "code"), [("json", "FLUSH"), ("json-array", "FLUSH"), ("parquet", "UNWRITABLE")]
)
def test_a_file_without_fields_is_json(kind: str, code: str) -> None:
    """A bin without fields fails by name unless files of the format may have none."""
    empty = replace(build_file("a", 0), schema=Schema().build_key())

    plan = run_plan(State(), empty, flush=True, writer=kind)

    (reason,) = (ended.reason for ended in (*plan.merges, *plan.failures))
    assert reason.code == code
    assert code == "FLUSH" or "there are no fields" in reason.text


def test_a_file_that_changed_leaves_its_bin() -> None:
    """A changed file leaves its bin.

    Sums and the expected number of fragments are those of the remaining files; an empty bin is removed.
    """
    state = run_plan(State(), build_file("a", 2), build_file("b", 3), min_records=9).state

    (bin_,) = remove_files(state, ["b"]).bins
    assert (bin_.records, bin_.bytes) == (2, 20)
    assert remove_files(state, ["a", "b"]).bins == ()


def test_dissolved_bins_leave_their_files_to_the_queue() -> None:
    """The files of dissolved bins return to the queue.

    A bin that holds the rest of a partly merged file stays.
    """
    state = run_plan(State(), build_file("a"), min_records=5).state
    split = State.from_json({**state.as_json(), "partial": {"a": ["m"]}})

    assert dissolve_bins(state).bins == ()
    assert len(dissolve_bins(split).bins) == 1


def test_kept_sources_are_remembered_once_all_their_parts_are_merged() -> None:
    """A kept source file is recorded as merged only after all its parts are merged."""
    parts = [
        FlowFile("f", f"f#{part}", 0, size, 1, "s", "v1", attributes={"k": part}, part=part)
        for part, size in (("x", 5), ("y", 1))
    ]
    settings = {"min_records": 5, "correlation_attribute_name": "k", "original_action": "keep"}
    state = run_plan(State(), *parts, **settings).state
    assert (dict(state.done), list(state.partial)) == ({}, ["f"])

    state = run_plan(state, at=1, **{**settings, "min_records": 1}).state
    assert (state.done, state.partial) == ({"f": "v1"}, {})


def test_the_next_expiry_is_that_of_the_oldest_bin() -> None:
    """The next expiry is that of the oldest bin; it is None without a maximum age or without bins."""
    settings = {"min_records": 5, "max_bin_age": "30 secs", "correlation_attribute_name": "k"}
    config = MergeRecordConfig.parse(settings)
    state = run_plan(
        State(), build_file("a", at=10, k="1"), build_file("b", at=20, k="2"), at=20, **settings
    ).state

    assert next_expiry(state, config) == 40 * SECOND
    assert next_expiry(State(), config) is None
    assert next_expiry(state, MergeRecordConfig.parse({"min_records": 5})) is None


def test_a_full_bin_says_which_maximum_it_reached() -> None:
    """A full bin reports which maximum it reached.

    NiFi's own reason does not distinguish records from bytes.
    """
    (by_records,) = run_plan(State(), build_file("a", 3), max_records=2).merges
    (by_bytes,) = run_plan(State(), build_file("a", 3), max_bin_size=30).merges

    assert by_records.threshold == {"records": 3, "max_records": 2}
    assert by_bytes.threshold == {"bytes": 30, "max_bin_size": 30}


def test_a_bin_with_a_broken_file_fails_when_it_would_be_merged() -> None:
    """A bin with a broken file fails only when it would be merged.

    Files that arrive after the broken file fail with it, as they would have been merged with it.
    """
    files = [build_file(name) for name in "abc"]
    config = MergeRecordConfig.parse({"min_records": 3, "validate": "on_merge"})

    plan = plan_merges(State(), NewFiles(tuple(files), SCHEMAS), 0, config, broken={"b": "no number"})

    (failed,) = plan.failures
    assert [source.name for source in failed.sources] == ["a", "b", "c"]
    assert (failed.culprit, failed.reason.code, plan.merges) == ("b", "MALFORMED", ())
    assert not plan.finished


def test_a_broken_file_fails_alone_where_that_is_asked_for() -> None:
    """With failure_scope flowfile a broken file fails alone, also in an open bin.

    The bin continues without it and keeps its age.
    """
    settings = {"min_records": 3, "failure_scope": "flowfile", "max_bin_age": "1 hour"}
    before = run_plan(State(), build_file("a"), build_file("b"), **settings).state
    config = MergeRecordConfig.parse(settings)

    plan = plan_merges(
        before, NewFiles((build_file("c"),), SCHEMAS), SECOND, config, broken={"b": "no number"}
    )

    assert [[source.name for source in failure.sources] for failure in plan.failures] == [["b"]]
    assert plan.merges == ()
    (open_bin,) = plan.state.bins
    assert [source.name for source in open_bin.sources] == ["a", "c"]
    assert open_bin.created_at == 0


def test_ten_thousand_files_of_three_hundred_groups_evict_each_other() -> None:
    """With ten bins, every further group ends the oldest bin.

    All files are counted, and ten times as many files take less than forty times as long.
    """

    def plan_files(count: int) -> tuple[Plan, float]:
        files = [build_file(f"f{number}", k=str(number * 7919 % 300)) for number in range(count)]
        began = time.process_time()
        plan = run_plan(State(), *files, correlation_attribute_name="k", min_records=100, max_bins=10)
        return plan, time.process_time() - began

    shortest = min(plan_files(1_000)[1] for _ in range(3))
    plan, seconds = plan_files(10_000)

    assert seconds < 40 * shortest
    assert plan.reasons == {"EVICTED": 9990}
    assert len(plan.state.bins) == 10
    assert sum(len(merge.sources) for merge in plan.merges) == 9990
