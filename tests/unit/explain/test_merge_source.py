"""Tests of explaining an output of a target table, by function and by command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_merge_provider.cli import main as cli
from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.core.merge_source.explanation import EntityRef, Link
from airflow_merge_provider.explain.merge_source import (
    explain_between,
    explain_entity,
    explain_output,
    list_all_links,
)
from tests.explanations import check_examples

KEY = pa.struct({"rule": pa.string(), "side": pa.string(), "value": pa.string()})
MEMBER = pa.struct({"dataset": pa.string(), "id": pa.string(), "hash": pa.int64(), "keys": pa.list_(KEY)})
SCHEMA = pa.schema({
    "_id": pa.string(), "_deleted": pa.bool_(), "$ids": pa.list_(pa.string()), "$replaced": pa.bool_(),
    "_members": pa.list_(MEMBER),
})  # fmt: skip
CLUSTER = "0|a1|1|b1|2|c1"


def build_member(dataset: Any, id_: Any, *keys: Any) -> Any:
    held = [dict(zip(("rule", "side", "value"), key, strict=True)) for key in keys]
    return {"dataset": dataset, "id": id_, "hash": 1, "keys": held}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Write the target table of the worked example with an ID that was replaced."""
    folder = tmp_path_factory.mktemp("lake")
    a_b, b_c = "a.f1 = b.f1", "b.f2 = lower(c.f3)"
    members = [
        build_member("A", "a1", (a_b, "left", "n:1")),
        build_member("B", "b1", (a_b, "right", "n:1"), (b_c, "left", "s:x")),
        build_member("C", "c1", (b_c, "right", "s:x")),
    ]
    rows = [
        (CLUSTER, False, ["a1", "b1", "c1"], False, members),
        ("0|a2", False, ["a2"], False, [build_member("A", "a2", (a_b, "left", "n:2"))]),
        ("2|c2", True, ["c2"], False, [build_member("C", "c2")]),
        ("0|a1", True, None, True, []),
        # The source has a column $ids, whose values replace the IDs of the members.
        ("0|a3|1|b3", False, ["foreign"], False, [build_member("A", "a3"), build_member("B", "b3")]),
    ]
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
    ]
    write_deltalake(str(folder / "golden"), pa.table(columns, SCHEMA))
    write_deltalake(str(folder / "other"), pa.table({"_id": ["x"]}))
    return str(folder)


def test_the_links_reach_every_member_from_the_first(lake: Any) -> None:
    """Each further member of an output is linked by one rule and one value, in the order of the chain."""
    explanation = explain_output("golden", CLUSTER, warehouse=lake)

    assert explanation.members == (EntityRef("A", "a1"), EntityRef("B", "b1"), EntityRef("C", "c1"))
    assert [(link.reached, link.value) for link in explanation.links] == [
        (("B", "b1"), "n:1"),
        (("C", "c1"), "s:x"),
    ]
    assert list(explanation.format_lines()) == [
        f"{CLUSTER}: 3 entities",
        "  A/a1",
        "  B/b1  1 by a.f1 = b.f1, with A/a1",
        '  C/c1  "x" by b.f2 = lower(c.f3), with B/b1',
    ]


@pytest.mark.parametrize(
    ("output_id", "status", "first_line"),
    [
        ("0|a2", "live", "0|a2: 1 entity"),
        ("2|c2", "deleted", "2|c2: 1 entity, deleted"),
        ("0|a1", "replaced", "0|a1: replaced; it no longer has members"),
    ],
)
def test_outputs_of_one_or_no_entity_are_explained_too(
    lake: Any, output_id: Any, status: Any, first_line: Any
) -> None:
    """Outputs of one or no entity are explained too; they have no links."""
    explanation = explain_output("golden", output_id, warehouse=lake)

    assert (explanation.status, explanation.links) == (status, ())
    assert next(explanation.format_lines()) == first_line


def test_a_chain_between_two_members_is_the_shortest(lake: Any) -> None:
    """A chain between two members is the shortest one from the first to the second, in any order."""
    assert explain_between("golden", CLUSTER, "C/c1", "B/b1", warehouse=lake) == [
        Link(EntityRef("C", "c1"), EntityRef("B", "b1"), "b.f2 = lower(c.f3)", "s:x")
    ]
    with pytest.raises(DataError, match=r"'C/c9' is not a member \(members: A/a1, B/b1, C/c1\)"):
        explain_between("golden", CLUSTER, "A/a1", "C/c9", warehouse=lake)


def test_links_of_all_outputs_are_rows(lake: Any) -> None:
    """N members have n - 1 link rows, with the side of the rule that each of the two is on."""
    assert list(list_all_links("golden", warehouse=lake)) == [
        {"output_id": CLUSTER, "left": "A/a1", "right": "B/b1", "rule": "a.f1 = b.f1", "key": "1"},
        {"output_id": CLUSTER, "left": "B/b1", "right": "C/c1", "rule": "b.f2 = lower(c.f3)", "key": '"x"'},
    ]


@pytest.mark.parametrize(
    ("unknown_id", "hint"),
    [
        ("b1", f"'b1' is an entity of '{CLUSTER}'"),
        ("B/b1", f"'B/b1' is an entity of '{CLUSTER}'"),
        ("0|a1|1|b1|2|c9", f"similar IDs: '{CLUSTER}'"),
        ("it's", "see the column _id of the target"),
    ],
)
def test_an_unknown_id_is_refused_with_near_ones(lake: Any, unknown_id: Any, hint: Any) -> None:
    """An unknown ID is rejected with similar IDs. For the ID of an entity the error names its output."""
    with pytest.raises(DataError, match="has no output") as refused:
        explain_output("golden", unknown_id, warehouse=lake)

    assert hint in refused.value.message


def test_only_targets_of_merge_sources_can_be_asked(lake: Any) -> None:
    """Another table, a missing table and a name without location are each rejected with their name."""
    with pytest.raises(DataError, match="is not the target of a merge source"):
        explain_output("other", "x", warehouse=lake)
    with pytest.raises(DataError, match="is not a Delta table"):
        explain_output("nothing", "x", warehouse=lake)
    with pytest.raises(ConfigError, match="set target to the location"):
        explain_output("lake.crm.golden", "x")


def test_the_command_tells_lines_or_json(lake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Text and JSON output have the same content; an unknown ID ends with the exit code of data errors."""
    assert cli.main(["explain", "golden", CLUSTER, "--warehouse", lake]) == 0
    assert capsys.readouterr().out.startswith(f"{CLUSTER}: 3 entities\n  A/a1\n")

    assert cli.main(["explain", "golden", CLUSTER, "--warehouse", lake, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["links"][0] == {
        "known": "A/a1",
        "reached": "B/b1",
        "rule": "a.f1 = b.f1",
        "key": "1",
    }

    assert cli.main(["explain", "golden", CLUSTER, "--warehouse", lake, "--between", "A/a1", "C/c1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2

    check_examples("merge_source.md", Path(lake), capsys)
    assert cli.main(["explain", "golden", "x1", "--warehouse", lake]) == 3
    assert "has no output 'x1'" in capsys.readouterr().err
    assert cli.main(["explain", "other", "x", "--warehouse", lake]) == 3
    assert "other was written by another program" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "dataset"), [("a3", "A"), ("A/a3", "A"), ("b3", "B"), ("B/b3", "B")])
def test_an_entity_with_other_ids_explains_its_output(lake: Any, name: str, dataset: str) -> None:
    """The ID of an entity explains its output, whatever the output has as $ids."""
    ((entity, output),) = explain_entity("golden", name, warehouse=lake).outputs

    assert (entity, output.output_id) == (EntityRef(dataset, name[-2:]), "0|a3|1|b3")
    with pytest.raises(DataError, match=r"is an entity of '0\|a3\|1\|b3'"):
        explain_output("golden", name, warehouse=lake)


@pytest.mark.parametrize("name", ["b1", "B/b1"])
def test_the_id_of_an_entity_explains_its_output(
    lake: Any, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ID of an entity, alone or with its dataset, explains the output that the entity is a member of."""
    explanation = explain_entity("golden", name, warehouse=lake)

    ((entity, output),) = explanation.outputs
    assert (entity, output) == (EntityRef("B", "b1"), explain_output("golden", CLUSTER, warehouse=lake))
    assert cli.main(["explain", "golden", name, "--warehouse", lake]) == 0
    assert capsys.readouterr().out.startswith(f"B/b1 is an entity of {CLUSTER}\n{CLUSTER}: 3 entities\n")
    with pytest.raises(DataError, match="has no output 'A/b1'"):
        explain_entity("golden", "A/b1", warehouse=lake)
