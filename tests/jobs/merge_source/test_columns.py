"""Test typed columns of the target and surviving values, in both shapes and every kind of run."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.explain.merge_source import explain_output
from tests.conformance.merge_source import SCHEMA
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import Pipe, build_table
from tests.long import all_long_but

RULE: dict[str, Any] = {"equality": [["eq", "a.k", "b.k"]]}
COLUMNS = {**RULE, "values": "columns"}
SYSTEM = ("_updated", "_hash", "_previous", "_ts", "_members")


def read_columns(pipe: Pipe, *names: str) -> dict[str, Any]:
    """Return columns of the live outputs by their ids; for one column, its values."""
    rows = pipe.target_rows().where("NOT _deleted")
    chosen = rows.select("_id", *(f"`{name}`" for name in names)).orderBy("_id").collect()
    return {row["_id"]: row[1] if len(names) == 1 else tuple(row[1:]) for row in chosen}


def read_types(pipe: Pipe) -> dict[str, str]:
    schema = pipe.target_rows().schema
    return {field.name: field.dataType.simpleString() for field in schema if field.name not in SYSTEM}


def test_properties_are_lists_of_all_values(make_memory_pipe: MakePipe) -> None:
    """Properties are lists of all values in member order: lists are concatenated, integers widened.

    Values without a common type become VARIANT.
    """
    pipe = make_memory_pipe("AB", **COLUMNS)
    pipe.write_rows(
        "A",
        build_table({
            "_id": ["a1", "a2"], "k": [1, 2], "text": ["x", None], "small": pa.array([1, 2], pa.int32()),
            "list": [["p", None], []], "mixed": ["m", "n"],
        }),
    )  # fmt: skip
    pipe.write_rows(
        "B", build_table({"_id": ["b1"], "k": [1], "text": ["y"], "small": [3], "list": ["q"], "mixed": [7]})
    )

    pipe.run_job()

    assert read_types(pipe) == {
        "_id": "string", "_deleted": "boolean", "$ids": "array<string>", "$replaced": "boolean",
        "k": "array<bigint>", "list": "array<string>", "mixed": "array<variant>", "small": "array<bigint>",
        "text": "array<string>",
    }  # fmt: skip
    assert read_columns(pipe, "k", "text", "small", "list") == {
        "0|a1|1|b1": ([1, 1], ["x", "y"], [1, 3], ["p", None, "q"]),
        "0|a2": ([2], None, [2], []),
    }
    rows = pipe.target_rows().selectExpr("_id", "to_json(mixed) AS mixed")
    assert {row["_id"]: row["mixed"] for row in rows.collect()} == {"0|a1|1|b1": '["m",7]', "0|a2": '["n"]'}


def test_a_column_that_a_dataset_gains_is_added(make_pipe: MakePipe) -> None:
    """A new column is added in the run's commit; older rows have NULL and are not rewritten.

    Columns that a dataset loses stay in the target.
    """
    pipe = make_pipe("AB", **COLUMNS)
    pipe.write_rows("A", build_table({"_id": ["a1", "a2"], "k": [1, 2], "old": [5, 6], "_updated": [1, 2]}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "k": [1], "_updated": [1]}))
    pipe.run_job("first")
    more = build_table({"_id": ["b2"], "k": [2], "fresh": ["n"], "_updated": [2]})
    write_deltalake(str(pipe.folder / "B"), more, mode="append", schema_mode="merge")

    report = pipe.run_job("second")

    assert report["target"]["version"] == 1
    assert report["counts"]["rows_written"] == 1
    assert read_columns(pipe, "old", "fresh") == {"0|a1|1|b1": ([5], None), "0|a2|1|b2": ([6], ["n"])}
    assert pipe.run_job("full", full_refresh=True)["changed"] is False


def test_columns_may_have_any_name(make_pipe: MakePipe) -> None:
    """Columns may have any names; the target uses column mapping where names require it."""
    pipe = make_pipe("A", values="columns")
    frame = pipe.spark.createDataFrame([("a1", 1, 2)], "_id string, `two words` int, `it's; (x)` int")
    location = str(pipe.folder / "A")
    frame.write.format("delta").option("delta.columnMapping.mode", "name").save(location)

    pipe.run_job()

    assert read_columns(pipe, "two words", "it's; (x)") == {"0|a1": ([1], [2])}
    assert explain_output(str(pipe.target), "0|a1").status == "live"


def test_columns_of_another_type_or_shape_are_refused(make_pipe: MakePipe) -> None:
    """A column of another type or shape is rejected and nothing is written; a reset rewrites the target."""
    pipe = make_pipe("AB", **COLUMNS)
    pipe.write_rows("A", build_table({"_id": ["a1"], "k": [1]}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "k": [1]}))
    pipe.run_job("first")

    with pytest.raises(DataError, match="the target was written with another setting of this option"):
        pipe.run_job("second", values="entity")
    with pytest.raises(DataError, match=r"column 'k' is array<bigint> and would be bigint.*reset=True"):
        pipe.run_job("second", survivorship={"k": "first"})

    assert pipe.read_version() == 0
    pipe.run_job("second", survivorship={"k": "first"}, reset=True)
    assert read_columns(pipe, "k") == {"0|a1|1|b1": 1}


def test_whole_entities_have_no_columns(make_pipe: MakePipe) -> None:
    """A dataset of JSON entities is rejected by name, and so are property names that give the same column."""
    pipe = make_pipe("A", values="columns", entity_column="entity")
    pipe.write_json("A", [{"_id": "a1"}])
    with pytest.raises(DataError, match="dataset 'A': contains whole entities, which have no columns"):
        pipe.run_job()

    other = make_pipe("BC", values="columns")
    other.write_rows("B", build_table({"_id": ["b1"], "Name": ["x"]}))
    other.write_rows("C", build_table({"_id": ["c1"], "name": ["x"]}))
    with pytest.raises(DataError, match="properties 'Name' and 'name' differ only in case"):
        other.run_job()


SURVIVORSHIP = {
    "p": "first",
    "q": ["most_common", "latest"],
    "r": {"prefer": ["B"]},
    "s": "longest",
    "pair": {"group": ["t", "u"], "rule": ["most_complete", "latest"]},
    "v": "latest",
}
WITH_DEFAULT = {
    "*": ["most_common", "longest", "latest"],
    "p": "first",
    "r": {"prefer": ["B"]},
    "pair": {"group": ["t", "u"], "rule": ["most_complete", "latest"]},
}
PROPERTIES = ("p", "q", "r", "s", "t", "u", "v")
Row = Mapping[str, Any]


def find_best(members: Sequence[Row], names: Sequence[str], *ranks: Any) -> Row | None:
    """Return the best member that has any of the properties; of equal ones the first."""
    candidates = [member for member in members if any(member[name] is not None for name in names)]
    return min(candidates, key=lambda member: [rank(member, candidates) for rank in ranks], default=None)


def build_expected(members: Sequence[Row], rules: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the surviving values and their sources, computed directly from the definition."""
    when = lambda member, _: -(member["_updated"])  # noqa: E731 - a table of ranks

    def list_ranks(rule: Any, name: str) -> list[Any]:
        ranks = {
            "first": lambda *_: 0,
            "latest": when,
            "longest": lambda member, _: -len(str(member[name])),
            "most_common": lambda member, all_: -sum(other[name] == member[name] for other in all_),
        }
        kinds = rule if isinstance(rule, list) else [rule]
        return [
            ranks[kind] if isinstance(kind, str) else lambda member, _: member["dataset"] != "B"
            for kind in kinds
        ]

    chosen = {
        name: find_best(members, [name], *list_ranks(rules.get(name, rules.get("*")), name))
        for name in PROPERTIES
    }
    pair = find_best(members, "tu", lambda member, _: (member["t"] is None) + (member["u"] is None), when)
    chosen |= {"t": pair, "u": pair}
    values = {name: None if member is None else member[name] for name, member in chosen.items()}
    origins = {
        name: f"{member['dataset']}/{member['_id']}"
        for name, member in chosen.items()
        if member is not None and member[name] is not None
    }
    return values, origins


def write_drawn(pipe: Pipe, shape: str, dataset: str, rows: Sequence[Row]) -> None:
    """Replace the rows of a dataset, as typed columns or as whole entities."""
    if shape == "whole":
        texts = [json.dumps(row) for row in rows]
        table = pa.table({"_updated": [row["_updated"] for row in rows], "entity": texts}, SCHEMA)
    else:
        kinds = {"p": pa.int64(), "v": pa.date32(), "k": pa.int64(), "_updated": pa.int64()}
        names = ("_id", "_updated", "k", *PROPERTIES)
        schema = pa.schema([(name, kinds.get(name, pa.string())) for name in names])
        table = pa.Table.from_pylist([dict(row) for row in rows], schema)
    pipe.write_rows(dataset, table, "overwrite")


@pytest.mark.parametrize(
    ("shape", "rules"),
    [
        pytest.param("columns", SURVIVORSHIP, id="columns-named"),
        pytest.param("entity", WITH_DEFAULT, id="entity-default"),
        pytest.param("whole", SURVIVORSHIP, id="whole-named"),
        pytest.param("columns", WITH_DEFAULT, id="columns-default", marks=pytest.mark.long),
        pytest.param("entity", SURVIVORSHIP, id="entity-named", marks=pytest.mark.long),
        pytest.param("whole", WITH_DEFAULT, id="whole-default", marks=pytest.mark.long),
    ],
)
def test_what_survives_is_what_is_defined(
    make_memory_pipe: MakePipe, shape: str, rules: dict[str, Any]
) -> None:
    """Values and sources equal the definition on random members, in a first run and after a change.

    This holds for both shapes and for whole entities, whose properties have no rule of their own or are
    named.
    """
    draw = random.Random(7)  # noqa: S311 - a workload, no secret
    settings = {"entity_column": "entity"} if shape == "whole" else {"values": shape}
    pipe = make_memory_pipe("AB", **RULE, **settings, survivorship=rules)

    def draw_row(dataset: str, number: int) -> dict[str, Any]:
        day = number if shape == "whole" else dt.date(2026, 1, number + 1)
        special = {"p": number, "v": day}
        row = {"_id": f"{dataset.lower()}{number}", "_updated": draw.randint(1, 9), "k": draw.randint(1, 6)}
        for name in PROPERTIES:
            row[name] = draw.choice((None, special.get(name, "x" * draw.randint(1, 3))))
        return row

    rows = {dataset: [draw_row(dataset, number) for number in range(9)] for dataset in "AB"}

    def check_run(run_id: str) -> None:
        for dataset, content in rows.items():
            write_drawn(pipe, shape, dataset, content)
        pipe.run_job(run_id)
        columns = (*PROPERTIES, "k") if shape == "columns" else ("entity",)
        outputs = read_columns(pipe, *columns, "$provenance", "_members")
        source_rows = {(dataset, row["_id"]): row for dataset in "AB" for row in rows[dataset]}
        for *row_values, provenance, members in outputs.values():
            member_rows = [
                {"dataset": member["dataset"], **source_rows[member["dataset"], member["id"]]}
                for member in members
            ]
            expected, origins = build_expected(member_rows, rules)
            shown = dict(zip(columns, row_values, strict=True))
            shown = shown if shape == "columns" else shown["entity"].toPython()
            assert {name: shown.get(name) for name in PROPERTIES} == expected
            assert isinstance(shown["k"], int) or "*" not in rules
            assert {name: origin for name, origin in provenance.items() if name != "k"} == origins
            assert ("k" in provenance) == ("*" in rules)

    check_run("first")
    late = 50 if shape == "whole" else dt.date(2026, 2, 1)
    rows["B"][3] |= {"k": rows["A"][0]["k"], "_updated": 20, "s": "longest", "v": late}
    check_run("second")
    assert pipe.run_job("full", full_refresh=True)["changed"] is False


@pytest.mark.parametrize("values", all_long_but(["columns", "entity"], "columns"))
def test_a_default_rule_covers_a_column_that_a_dataset_gains(make_memory_pipe: MakePipe, values: str) -> None:
    """A new column has the default rule from its first run on; another default rule computes all outputs."""
    pipe = make_memory_pipe("AB", **RULE, values=values, survivorship={"*": "first", "k": "latest"})
    pipe.write_rows("A", build_table({"_id": ["a1", "a2"], "k": [1, 2], "_updated": [1, 2]}))
    pipe.write_rows("B", build_table({"_id": ["b1", "b2"], "k": [1, 2], "_updated": [1, 2]}))
    pipe.run_job("first")
    gained = {"_id": ["a1", "a2"], "k": [1, 2], "_updated": [3, 4], "n": ["short", "a"]}
    pipe.write_rows("A", build_table(gained), "overwrite")
    gained = {"_id": ["b1", "b2"], "k": [1, 2], "_updated": [3, 2], "n": ["the longest", None]}
    pipe.write_rows("B", build_table(gained), "overwrite")

    assert pipe.run_job("second")["run_mode"] == "incremental"
    assert read_property(pipe, values, "n") == {"0|a1|1|b1": "short", "0|a2|1|b2": "a"}
    assert pipe.run_job("again", full_refresh=True)["changed"] is False

    report = pipe.run_job("third", survivorship={"*": "longest", "k": "latest"})
    assert report["run_mode"] == "full"
    assert read_property(pipe, values, "n") == {"0|a1|1|b1": "the longest", "0|a2|1|b2": "a"}


def read_property(pipe: Pipe, values: str, name: str) -> dict[str, Any]:
    """Return a property of the live outputs by their ids."""
    if values == "columns":
        return read_columns(pipe, name)
    return {id_: entity.toPython().get(name) for id_, entity in read_columns(pipe, "entity").items()}


def test_what_survives_of_whole_entities(make_memory_pipe: MakePipe) -> None:
    """Properties inside VARIANT survive by rules.

    Those without a rule stay lists, and nulls never survive.
    """
    rules = {"p": "first", "n": {"prefer": ["B"]}}
    pipe = make_memory_pipe("AB", **RULE, survivorship=rules, entity_column="entity")
    pipe.write_json("A", [{"_id": "a1", "k": 1, "p": None, "n": [1], "x": 1}, {"_id": "a2", "k": 2, "p": 3}])
    pipe.write_json("B", [{"_id": "b1", "k": 1, "p": "P", "n": {"m": 1}, "x": 2}])

    pipe.run_job()

    (merged, single) = pipe.read_rows()
    assert {name: merged[name] for name in ("p", "n", "x")} == {"p": "P", "n": {"m": 1}, "x": [1, 2]}
    assert single["p"] == 3
    assert read_columns(pipe, "$provenance") == {
        "0|a1|1|b1": {"p": "B/b1", "n": "B/b1"},
        "0|a2": {"p": "A/a2"},
    }


def test_the_latest_needs_to_be_told(make_memory_pipe: MakePipe) -> None:
    """The rule for the latest value needs a sequence column; a dataset without one is named in the error."""
    pipe = make_memory_pipe("AB", **RULE, survivorship={"k": "latest"})
    pipe.write_rows("A", build_table({"_id": ["a1"], "k": [1], "_updated": [1]}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "k": [1]}))

    with pytest.raises(
        DataError, match="dataset 'B': has no usable sequence column, which survivorship 'latest'"
    ):
        pipe.run_job()


@pytest.mark.long
@pytest.mark.parametrize("values", ["columns", "entity"])
def test_an_output_can_be_merged_again(make_pipe: MakePipe, values: str) -> None:
    """The next merge reads outputs as entities: original ids are united, deleted and replaced ids kept."""
    first = make_pipe("AB", **RULE, values=values)
    first.write_rows("A", build_table({"_id": ["a1", "a2"], "k": [1, 2], "_updated": [1, 2]}))
    first.write_rows("B", build_table({"_id": ["b1"], "k": [1], "_updated": [1]}))
    first.run_job("first")
    second = Pipe(first.spark, first.folder, target="again", datasets=[f"{first.target.name} t", "C c"],
                  equality=[["eq", "t.k", "c.k"]], values=values)  # fmt: skip
    second.write_rows("C", build_table({"_id": ["c1"], "k": [1]}))
    second.run_job("first")

    def read_ids() -> dict[str, Any]:
        return {
            row["_id"]: (row["ids"], bool(row["_deleted"]), bool(row["replaced"]))
            for row in second.spark.read.format("delta").load(str(second.folder / "again"))
            .selectExpr("_id", "`$ids` AS ids", "_deleted", "`$replaced` AS replaced").collect()
        }  # fmt: skip

    assert read_ids() == {
        "0|0|a1|1|b1|1|c1": (["a1", "b1", "c1"], False, False),
        "0|0|a2": (["a2"], False, False),
    }

    first.write_rows("A", build_table({"_id": ["a2"], "k": [1], "_updated": [3]}))
    first.run_job("second")
    second.run_job("second")

    live = {id_: row for id_, row in read_ids().items() if not row[1]}
    assert live == {"0|0|a1|0|a2|1|b1|1|c1": (["a1", "a2", "b1", "c1"], False, False)}
    assert read_ids()["0|0|a2"] == (["0|a2"], True, True)
