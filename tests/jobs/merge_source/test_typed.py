"""Test that typed columns give the clusters and entities of whole JSON entities."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import plan_rules
from airflow_merge_provider.jobs.merge_source.scan.match_keys import build_source_keys
from airflow_merge_provider.jobs.merge_source.scan.sources import open_source
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import JSON, build_table

NOON = dt.datetime(2020, 1, 1, 12, 0, 0, 5000, dt.UTC)
UTC_TIME, LOCAL_TIME = pa.timestamp("us", "UTC"), pa.timestamp("us")
INNER = pa.struct({"k": pa.int64(), "none": pa.string()})

# Kind of the column, its value, and the same value in a JSON entity.
KINDS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "text": (pa.string(), "Ærø", "Ærø"),
    "coded": (pa.string(), "~:n:1", "~:n:1"),
    "byte": (pa.int8(), 7, 7),
    "int": (pa.int32(), 70000, 70000),
    "long": (pa.int64(), 2**53 + 1, 2**53 + 1),
    "double": (pa.float64(), 0.1, 0.1),
    "float": (pa.float32(), 0.1, 0.1),
    "decimal": (pa.decimal128(20, 4), Decimal("12.5000"), 12.5),
    "bool": (pa.bool_(), True, True),
    "texts": (pa.list_(pa.string()), ["p", "q"], ["p", "q"]),
    "ints": (pa.list_(pa.int64()), [11, None], [11, None]),
    "nested": (pa.list_(pa.list_(pa.int64())), [[1, 2], [3]], [[1, 2], [3]]),
    "dict": (INNER, {"k": 1}, {"k": 1}),
    "dicts": (pa.list_(INNER), [{"k": 2}], [{"k": 2}]),
    "map": (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)], {"a": 1, "b": None}),
    "date": (pa.date32(), dt.date(2020, 1, 1), "~t2020-01-01"),
    "time": (UTC_TIME, NOON, "~t2020-01-01T12:00:00.005Z"),
    "ntz": (LOCAL_TIME, NOON.replace(tzinfo=None), "~t2020-01-01T12:00:00.005Z"),
    "bytes": (pa.binary(), b"\x00\xff", "~bAP8="),
}
# JSON has no such values: the output has the column's own form.
ONLY_TYPED = ("date", "time", "ntz", "bytes")


def one_column_each(prefix: str) -> pa.Table:
    """Build one entity per kind, with one column filled and all others NULL."""
    columns = {"_id": pa.array([f"{prefix}-{name}" for name in KINDS])}
    for name, (kind, value, _) in KINDS.items():
        columns[name] = pa.array([value if other == name else None for other in KINDS], kind)
    return pa.table(columns)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["default", "compact"])
def test_typed_columns_and_json_give_the_same_entities(make_pipe: MakePipe, strategy: str) -> None:
    """Every type matches itself and its JSON form, and is kept unchanged; NULL is an absent property."""
    rules = [["eq", f"a.{name}", f"b.{name}"] for name in KINDS]
    typed = make_pipe("AB", equality=rules, strategy=strategy)
    as_json = make_pipe("XY", equality=[[eq, f"x{left[1:]}", f"y{right[1:]}"] for eq, left, right in rules])
    as_json.settings |= {"target": "json_target", "strategy": strategy, **JSON}
    for prefix, typed_name, json_name in (("a", "A", "X"), ("b", "B", "Y")):
        typed.write_rows(typed_name, one_column_each(prefix))
        as_json.write_json(
            json_name, [{"_id": f"{prefix}-{name}", name: value} for name, (_, _, value) in KINDS.items()]
        )

    typed.run_job()
    as_json.run_job()

    expected = [[f"a-{name}", f"b-{name}"] for name in sorted(KINDS)]
    rows = typed.read_rows()
    target = as_json.spark.read.format("delta").load(str(as_json.folder / "json_target"))
    from_json = target.orderBy("_updated").selectExpr("`$ids` AS ids", "to_json(entity) AS entity").collect()
    assert [row["$ids"] for row in rows] == expected
    assert [row["ids"] for row in from_json] == expected
    texts = {row["ids"][0]: row["entity"] for row in from_json}
    for row in rows:
        name = row["$ids"][0].removeprefix("a-")
        assert set(row) == {"_id", "_updated", "$ids", name}
        if name not in ONLY_TYPED:
            assert {name: row[name]} == json.loads(texts[f"a-{name}"])


@pytest.mark.parametrize("identity", ["composite", "first"])
def test_members_stand_in_their_order_in_every_one_of_many_clusters(
    make_memory_pipe: MakePipe, identity: str
) -> None:
    """Members are ordered by dataset, then by id, in each of many clusters.

    Rows are sorted, and the lists made of them must keep the order.
    """
    clusters, cluster_size = 700, 5
    numbers = np.random.default_rng(3).permutation(clusters * cluster_size)
    pipe = make_memory_pipe("AB", equality=[["eq", "a.x", "b.x"]], identity=identity)
    for name, of in (("A", numbers), ("B", numbers[::-1])):
        ids = [f"{name.lower()}{number}" for number in of]
        pipe.write_rows(name, build_table({"_id": ids, "x": of % clusters, "said": ids}))

    pipe.run_job()

    expected = sorted(
        [
            id_
            for name in "ab"
            for id_ in sorted(f"{name}{cluster + clusters * turn}" for turn in range(cluster_size))
        ]
        for cluster in range(clusters)
    )
    rows = pipe.read_rows()
    assert [row["$ids"] for row in rows] == expected
    assert [row["said"] for row in rows] == expected
    member_rows = pipe.target_rows().select("_members.id").collect()
    assert sorted(row["id"] for row in member_rows) == expected
    if identity == "first":
        assert [row["_id"] for row in rows] == [ids[0] for ids in expected]
    else:
        composite_ids = ["|".join(f"{int(id_[0] == 'b')}|{id_}" for id_ in ids) for ids in expected]
        assert [row["_id"] for row in rows] == composite_ids


def test_values_of_different_types_meet_by_value(make_memory_pipe: MakePipe) -> None:
    """Numbers match numbers of any width, FLOAT by its text.

    Strings, booleans and dates match their type only.
    """
    names = ["number", "tenth", "decimal", "when", "coded", "text", "flag", "day"]
    empty = [None] * len(names)

    def build_columns(prefix: str, typed_values: dict[str, tuple[pa.DataType, Any]]) -> pa.Table:
        columns = {"_id": pa.array([f"{prefix}-{name}" for name in names])}
        for position, name in enumerate(names):
            kind, value = typed_values[name]
            columns[name] = pa.array([*empty[:position], value, *empty[position + 1 :]], kind)
        return pa.table(columns)

    pipe = make_memory_pipe("AB", equality=[["eq", f"a.{name}", f"b.{name}"] for name in names])
    pipe.write_rows(
        "A",
        build_columns("a", {
            "number": (pa.int64(), 3), "tenth": (pa.float32(), 0.1),
            "decimal": (pa.decimal128(9, 3), Decimal("2.500")),
            "when": (UTC_TIME, NOON), "coded": (pa.string(), "~f1.00"), "text": (pa.string(), "1"),
            "flag": (pa.bool_(), True), "day": (pa.date32(), dt.date(2020, 1, 1)),
        }),
    )  # fmt: skip
    pipe.write_rows(
        "B",
        build_columns("b", {
            "number": (pa.float64(), 3.0), "tenth": (pa.float64(), 0.1), "decimal": (pa.float64(), 2.5),
            "when": (LOCAL_TIME, NOON.replace(tzinfo=None)), "coded": (pa.int32(), 1),
            "text": (pa.int64(), 1), "flag": (pa.int64(), 1), "day": (pa.string(), "2020-01-01"),
        }),
    )  # fmt: skip

    pipe.run_job()

    together = {ids[0].removeprefix("a-") for ids in pipe.read_clusters() if len(ids) == 2}
    assert together == {"number", "tenth", "decimal", "when", "coded"}


def test_columns_may_have_any_name(make_pipe: MakePipe, lean: SparkSession) -> None:
    """Columns may have dots, blanks, quotes, backticks and letters of any script in their names."""
    names = ["x.y", "two words", "it's", 'a "b"', "back`tick", "größe", "a,b;c=(d)"]
    pipe = make_pipe("AB")
    quoted = ["'" + name.replace("'", "''") + "'" for name in names]
    pipe.settings["equality"] = [["eq", f"a.{name}", f"b.{name}"] for name in quoted]
    for dataset, prefix in (("A", "a"), ("B", "b")):
        rows = [
            (f"{prefix}{number}", *(f"v{number}" if number == at else None for at in range(len(names))))
            for number in range(len(names))
        ]
        frame = lean.createDataFrame(
            rows, ", ".join(f"`{name.replace('`', '``')}` string" for name in ["_id", *names])
        )
        where = str(pipe.folder / dataset)
        frame.coalesce(1).write.format("delta").option("delta.columnMapping.mode", "name").save(where)

    pipe.run_job()

    rows_ = pipe.read_rows()
    assert [row["$ids"] for row in rows_] == [[f"a{number}", f"b{number}"] for number in range(len(names))]
    assert [row[name] for row, name in zip(rows_, names, strict=True)] == [
        [f"v{number}"] * 2 for number in range(len(names))
    ]


def test_a_coded_text_in_any_row_is_understood(make_memory_pipe: MakePipe) -> None:
    """Transit-coded ``~:`` values are not strings: ``lower`` ignores them.

    Plain rows of the same column match as before.
    """
    pipe = make_memory_pipe("AB", equality=[["eq", ["lower", "a.x"], "b.x"]])
    pipe.write_rows("A", build_table({"_id": ["a1", "a2", "a3"], "x": ["~:N:1", "Y", "~Zoo"]}))
    pipe.write_rows("B", build_table({"_id": ["b1", "b2", "b3"], "x": ["~:n:1", "y", "~zoo"]}))

    pipe.run_job()

    assert pipe.read_clusters() == [["a1"], ["a2", "b2"], ["a3", "b3"], ["b1"]]


@pytest.mark.parametrize("case", ["lower", "upper"])
def test_native_keys_are_those_of_the_definition(lean: SparkSession, case: str) -> None:
    """Spark's lower and upper equal the definition for every letter, and for sigmas in words."""
    letters = [
        chr(code) for code in range(0x20, 0xD800) if chr(code).isalpha() and chr(code).swapcase() != chr(code)
    ]
    texts = [
        *("".join(letters[at : at + 20]) for at in range(0, len(letters), 20)),
        "ΑΣ",
        "ΑΣ ΔΣ",
        "straße",
        "İI",
    ]
    rows = [(f"a{number}", text, [text, None, text]) for number, text in enumerate(texts)]
    frame = lean.createDataFrame(rows, "_id string, x string, y array<string>").coalesce(1)
    config = MergeSourceConfig.parse(
        {"version": 2, "datasets": ["A a"], "equality": [["eq", [case, "a.x"], [case, "a.y"]]]}
    )
    source, rules = open_source(frame, 0, config), plan_rules(config)
    native, defined = (build_source_keys(source, rules, native=is_native) for is_native in (True, False))
    assert native.coded is not None
    assert defined.coded is None

    sides = [keys.concat_keys(rules).alias(name) for keys, name in ((native, "native"), (defined, "defined"))]
    both = source.frame.select(*sides).collect()

    wrong = [row for row in both if sorted(row["native"]) != sorted(row["defined"])]
    assert wrong == []
    assert len(both) == len(texts)


def test_the_last_version_of_an_entity_counts(make_memory_pipe: MakePipe) -> None:
    """Of several rows of an id the one with the highest sequence counts, also if it is deleted."""
    pipe = make_memory_pipe("AB", equality=[["eq", "a.x", "b.x"]])
    pipe.write_rows(
        "A",
        build_table({
            "_id": ["a1", "a2", "a1", "a2", "a3"], "_updated": [1, 2, 4, 3, 5], "x": [1, 2, 9, 2, 2],
            "_deleted": [False, False, False, True, None],
        }),
    )  # fmt: skip
    pipe.write_rows("B", build_table({"_id": ["b1", "b2"], "x": [1, 2]}))

    report = pipe.run_job()

    assert [(row["_id"], row.get("_deleted", False), row["x"]) for row in pipe.read_rows()] == [
        ("0|a1", False, 9), ("0|a2", True, 2), ("0|a3|1|b2", False, [2, 2]), ("1|b1", False, 1),
    ]  # fmt: skip
    assert report["counts"]["entities"] == 5


def test_a_text_as_sequence_is_warned_of(make_memory_pipe: MakePipe) -> None:
    """Versions that are ordered as texts give a warning with the cast that helps; single rows give none."""
    pipe = make_memory_pipe("AB")
    pipe.write_rows("A", build_table({"_id": ["a1", "a1"], "_updated": ["9", "10"], "x": [1, 2]}))
    pipe.write_rows("B", build_table({"_id": ["b1"], "_updated": ["9"]}))

    warnings = pipe.run_job()["warnings"]

    (warning,) = [text for text in warnings if "is text" in text]
    assert warning.startswith("dataset 'A': column '_updated' is text, so '9' is newer than '10'")
    assert "CAST(_updated AS BIGINT)" in warning


def test_what_is_wrong_in_several_datasets_is_said_at_once(make_pipe: MakePipe) -> None:
    """Faults of several datasets are reported together: missing ids in one, duplicates in another."""
    pipe = make_pipe("AB")
    pipe.write_rows("A", build_table({"_id": ["a1", None], "x": [1, 2]}))
    pipe.write_rows("B", build_table({"_id": ["b1", "b2", "b1", "b2", "b1"], "x": [1, 2, 3, 4, 5]}))

    with pytest.raises(DataError) as refused:
        pipe.run_job()

    messages = [str(problem) for problem in refused.value.problems]
    assert messages[0].startswith("dataset 'A': entity without a string _id")
    assert messages[1].startswith("dataset 'B': entity 'b1' is in 3 rows, and 1 more in several rows")


@pytest.mark.parametrize(
    ("columns", "settings", "remedy"),
    [
        ({"_updated": [1, 1]}, {}, "column '_updated' must differ between the versions"),
        ({}, {}, "keep one row per ID, or set sequence_column"),
        ({"changed": [1, 1]}, {"sequence_column": "changed"}, "column 'changed' must differ between"),
    ],
    ids=["tie", "no sequence", "other sequence"],
)
def test_two_current_versions_are_refused(
    make_pipe: MakePipe, columns: dict[str, list[int]], settings: dict[str, str], remedy: str
) -> None:
    """Two rows of an entity without an order are rejected; the error has the entity and a remedy."""
    pipe = make_pipe("A", **settings)
    pipe.write_rows("A", build_table({"_id": ["a1", "a1"], "x": [1, 2], **columns}))

    with pytest.raises(DataError, match="entity 'a1' is in 2 rows") as refused:
        pipe.run_job()

    assert remedy in refused.value.message
    assert pipe.read_version() is None
