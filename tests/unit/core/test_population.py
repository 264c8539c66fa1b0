"""Tests of which datasets the populated flag of an output depends on, for all operators."""

from __future__ import annotations

from typing import Any

from airflow_merge_provider.core.capabilities import CAPABILITIES
from airflow_merge_provider.core.population import build_population, list_unpopulated

MERGE = {"version": 2, "target": "golden", "datasets": ["A a", "B b"], "equality": []}


def build_wish(job: Any, raw: Any, **options: Any) -> Any:
    config = CAPABILITIES[job].config.parse(raw)
    return build_population(config, set_initial_offset="if-source-populated", **options)


def test_a_merge_source_depends_on_its_initial_datasets() -> None:
    """A merge source depends on its initial datasets: all its datasets by default.

    Manual marks are included.
    """
    everything = build_wish("merge_source", MERGE, marked=["B"])
    some = build_wish(
        "merge_source", {**MERGE, "initial_datasets": ["B"], "ignore_non_existent_datasets": False}
    )

    assert (everything.target, everything.datasets, everything.marked) == ("golden", ("A", "B"), ("B",))
    assert (some.datasets, some.ignore_non_existent_datasets) == (("B",), False)


def test_other_operators_depend_on_all_they_read() -> None:
    """Other operators depend on all datasets they read, not on those they write, such as change logs."""
    keys = "a.id = b.id"
    join = {"inputs": {"a": "A", "b": "B"}, "target": "both", "join_keys": keys, "unmatched": "left_over"}
    join["join_type"] = "innerjoin"
    engine = {"source": "S", "target": "T", "primary_key": ["id"], "changelog": "log"}
    engine["merge_engine"] = "deduplicate"

    assert build_wish("joiner", join).datasets == ("A", "B")
    assert build_wish("merge_engine", engine).datasets == ("S",)


def test_files_carry_no_flag() -> None:
    """A target that is not a Delta table has no flag and is populated as soon as it exists."""
    folders = {"source": "in", "merged": "merged", "state_path": "state", "original_action": "delete"}

    assert build_wish("merge_record", folders) is None


def test_a_dataset_is_waited_for_once() -> None:
    """Each dataset is waited for once; a missing dataset only if that is configured."""
    assert list_unpopulated(["A", "B"], {"A": "populated"}) == ()
    assert list_unpopulated(["A", "B"], {"A": "populated"}, ignore_non_existent=False) == ("B",)
