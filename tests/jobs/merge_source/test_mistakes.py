"""Test configuration mistakes that the data shows: which are rejected, and which give a warning."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.errors import DataError
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import build_table

ONE = build_table({"_id": ["a1"], "mail": ["m"], "phone": ["p"], "_updated": [1]})
OTHER = build_table({"_id": ["b1"], "mail": ["m"], "_updated": [1]})


def test_a_rule_on_a_column_that_does_not_exist_is_refused(make_memory_pipe: MakePipe) -> None:
    """Rules on missing columns are rejected with similar names; nothing is written.

    The error lists all of these columns, because none of them would match.
    """
    rules = [["eq", ["lower", "a.mial"], "b.mail"], ["eq", "a.phone", "b.phone"], ["eq", "a._id", "b._id"]]
    pipe = make_memory_pipe("AB", equality=rules)
    pipe.write_rows("A", ONE)
    pipe.write_rows("B", OTHER)

    with pytest.raises(DataError) as refused:
        pipe.run_job()

    second, first = refused.value.problems
    assert first.message == "lower(a.mial) = b.mail: dataset 'A' has no column 'mial'"
    assert first.hint == "did you mean 'mail'?"
    assert second.message.endswith("dataset 'B' has no column 'phone'")
    assert pipe.read_version() is None


@pytest.mark.parametrize("argument", ["sequence_column", "deleted_column"])
def test_a_column_that_no_dataset_has_is_refused(make_memory_pipe: MakePipe, argument: str) -> None:
    """A column that no dataset has is rejected; some datasets may lack it if another one has it."""
    pipe = make_memory_pipe("AB", equality=[["eq", "a.mail", "b.mail"]], **{argument: "_upd"})
    pipe.write_rows("A", ONE)
    pipe.write_rows("B", OTHER)

    with pytest.raises(DataError, match=f"{argument}: no dataset has a column '_upd'"):
        pipe.run_job()


def test_entities_without_columns_may_lack_a_property(make_memory_pipe: MakePipe) -> None:
    """JSON entities may lack a property of a rule; a rule that links no entities gives a warning."""
    pipe = make_memory_pipe("AB", equality=[["eq", "a.mial", "b.mail"]])
    pipe.write_json("A", [{"_id": "a1", "mail": "m"}])
    pipe.write_json("B", [{"_id": "b1", "mail": "m"}])

    report = pipe.run_job(entity_column="entity")

    rule = "the rule a.mial = b.mail links nothing: check whether both sides contain the same values"
    assert report["warnings"] == [rule]


def test_a_rule_without_entities_on_one_side_is_not_told_of(make_memory_pipe: MakePipe) -> None:
    """A rule without entities on one side gives no warning, because it cannot match yet."""
    pipe = make_memory_pipe("AB", equality=[["eq", "a.mail", "b.mail"]])
    pipe.write_rows("A", ONE)
    pipe.write_rows("B", OTHER.slice(0, 0))

    assert pipe.run_job()["warnings"] == []


def test_a_rule_whose_values_are_quarantined_is_not_told_of(make_memory_pipe: MakePipe) -> None:
    """A rule with quarantined values gives no warning of missing links.

    It would link too many entities, which has its own warning.
    """
    pipe = make_memory_pipe("A", equality=[["eq", "a.phone", "a.phone"]])
    pipe.write_rows("A", build_people(3, 3))

    report = pipe.run_job(max_key_fanout=2, on_over_merge="quarantine")

    assert not [warning for warning in report["warnings"] if "links nothing" in warning]
    assert report["details"]["quarantined"]["keys"] == 1


def build_people(count: int, shared: int) -> Any:
    """Build people of whom some share a phone number."""
    phones = ["none" if number < shared else str(number) for number in range(count)]
    return build_table({"_id": [f"p{number:05}" for number in range(count)], "phone": phones})


@pytest.mark.parametrize(("shared", "warned"), [(130, True), (100, False)])
def test_a_cluster_that_swallows_a_share_of_all_is_told_of(
    make_memory_pipe: MakePipe, shared: int, warned: bool
) -> None:
    """A cluster with a large share of all entities gives the first warning, with the rule and the value.

    This holds in later runs too.
    """
    pipe = make_memory_pipe("A", equality=[["eq", "a.phone", "a.phone"]])
    pipe.write_rows("A", build_people(1000, shared))

    first = pipe.run_job()
    pipe.write_rows("A", build_table({"_id": ["late"], "phone": ["none"]}))
    later = pipe.run_job()

    prefix = (
        f"one cluster contains {shared} of 1000 entities (13%), {shared} of them linked by"
        ' "none" in a.phone = a.phone'
    )
    assert [warning.startswith(prefix) for warning in first["warnings"]] == [True] * warned
    assert any("one cluster contains 131 of 1000" in warning for warning in later["warnings"]) is warned


@pytest.mark.parametrize("again", [{}, {"full_refresh": True}], ids=["incremental", "full"])
def test_a_column_that_a_dataset_has_lost_is_refused(
    make_memory_pipe: MakePipe, again: dict[str, Any]
) -> None:
    """A column that a dataset has lost is rejected, with a similar name and a remedy.

    Otherwise the golden records would silently lose a property.
    """
    pipe = make_memory_pipe("AB", equality=[["eq", "a.mail", "b.mail"]])
    pipe.write_rows("A", ONE)
    pipe.write_rows("B", OTHER)
    pipe.run_job()
    written = pipe.read_version()
    pipe.write_rows(
        "A", build_table({"_id": ["a1"], "mail": ["m"], "phones": ["p"], "_updated": [2]}), mode="overwrite"
    )

    with pytest.raises(DataError) as refused:
        pipe.run_job(**again)

    (problem,) = refused.value.problems
    assert problem.message == "dataset 'A' no longer has column 'phone', which the previous run merged"
    assert problem.hint.startswith("did you mean 'phones'?; restore the column")
    assert pipe.read_version() == written

    assert pipe.run_job(**again, schema_evolution="allow_missing")["changed"]
    assert not pipe.run_job()["changed"]


def test_a_dataset_that_is_written_anew_may_lack_columns(make_memory_pipe: MakePipe) -> None:
    """A reset of the target accepts datasets with missing columns, like a first run."""
    pipe = make_memory_pipe("AB", equality=[["eq", "a.mail", "b.mail"]])
    pipe.write_rows("A", ONE)
    pipe.write_rows("B", OTHER)
    pipe.run_job()
    pipe.write_rows("A", build_table({"_id": ["a1"], "mail": ["m"], "_updated": [2]}), mode="overwrite")

    assert pipe.run_job(reset=True)["changed"]
