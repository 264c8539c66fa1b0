"""Test the change set of a merge source: what it says about members."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, use_shown_rows
from airflow_merge_provider.core.change_plan.summary import (
    ChangeExample,
    ChangeSummary,
    format_changes,
    format_examples,
)
from airflow_merge_provider.core.merge_source.columns import REPLACED_COLUMN
from airflow_merge_provider.core.merge_source.explanation import describe_member_changes
from airflow_merge_provider.jobs.merge_source.output.row_changes import (
    ENTITY_HASH,
    ID,
    ExampleNames,
    group_examples,
    list_changed_rows,
)
from tests.jobs.merge_source.conftest import MakePipe
from tests.jobs.merge_source.pipe import build_table

pytestmark = pytest.mark.spark

_MEMBER = "STRUCT<dataset: STRING, id: STRING, keys: ARRAY<STRUCT<rule: STRING, key: STRING>>>"
_SCHEMA = f"{ID} STRING, {ENTITY_HASH} STRING, _deleted BOOLEAN, `{REPLACED_COLUMN}` BOOLEAN, "
_SCHEMA += f"_members ARRAY<{_MEMBER}>"
_NAMES = ["z1", "a10", "a2", "Ä", "😀", "a/b"]


def build_members(count: int) -> list[dict[str, Any]]:
    return [
        {"dataset": dataset, "id": name, "keys": []}
        for dataset, name in [("erp", "1"), *(("crm", name) for name in _NAMES)]
    ][:count]


@pytest.mark.parametrize("is_new", [True, False], ids=["new outputs", "outputs that end"])
def test_members_that_all_join_or_leave(spark: SparkSession, is_new: bool) -> None:
    """SQL writes the text of outputs whose members are all new or all gone as Python writes the others."""
    sides = [
        [(f"o{count}", str(side), False, False, build_members(count) if side else []) for count in range(8)]
        for side in (is_new, not is_new)
    ]
    after, before = (spark.createDataFrame(rows, _SCHEMA) for rows in sides)

    rows = list_changed_rows(after, before).rows.select("after._id", "detail").collect()

    expected = {
        f"o{count}": describe_member_changes(
            f"o{count}",
            [] if is_new else build_members(count),
            build_members(count) if is_new else [],
        )
        for count in range(8)
    }
    assert {row[0]: row[1] or "" for row in rows} == expected
    assert expected["o7"].endswith("and 4 more")


def build_member(dataset: str, id_: str, side: str = "") -> dict[str, Any]:
    key = {"rule": "crm.mail = shop.mail", "side": side, "value": f"s:{id_[1:]}@example.org"}
    return {"dataset": dataset, "id": id_, "hash": 1, "keys": [key] if side else []}


def test_a_golden_record_that_gets_another_id_is_one_example() -> None:
    """A row that ends and the new row with most of its members are one line, with its rule and value.

    All other rows that end or begin stay lines of their own.
    """
    crm, shop, other, stray = (
        build_member("crm", "c3", "left"), build_member("shop", "s3", "right"),
        build_member("shop", "s9"), build_member("shop", "s4"),
    )  # fmt: skip
    members: dict[str, Any] = {
        "0|c3": ([crm, other], []), "1|s3": ([shop], []), "0|c3|1|s3": ([], [crm, shop]),
        "1|s9": ([], [other]), "1|s4": ([], [stray]),
    }  # fmt: skip
    row = {"_id": "", "city": "Bergen", "n": "Ann"}
    ended: list[Any] = [
        {"kind": "deleted", "reason": "replaced", "before": {"_id": id_, "city": "Oslo", "n": "Ann"}}
        for id_ in ("0|c3", "1|s3")
    ]
    new: list[Any] = [
        {"kind": "inserted", "reason": "new", "detail": "+ x", "after": {**row, "_id": id_}}
        for id_ in ("0|c3|1|s3", "1|s9", "1|s4")
    ]
    examples = [ChangeExample.model_validate(example) for example in [*ended, *new]]

    gains = "+ shop/s3 by crm.mail = shop.mail (***); - shop/s9"
    grouped = group_examples(examples, lambda _: members)
    masked, names = {}, ExampleNames("n", ["n", "city"])
    for shown in ("keys", "none"):
        with use_shown_rows(ShownRows.model_validate({"rows": shown, "key_columns": ["_id"]})):
            (pair,) = [item for item in group_examples(examples, lambda _: members) if item.replaces]
            masked[shown] = names.name_example(pair).name, pair.members, pair.replaces

    named = [names.name_example(example).hide_columns(["_id", "n"]) for example in grouped]
    assert list(format_examples({"inserted": 4, "deleted": 2}, named)) == [
        '+ Ann (1|s9): city = "Bergen"  [new: + x]',
        '+ Ann (1|s4): city = "Bergen"  [new: + x]',
        "+ 1 more inserted",
        f"~ Ann (0|c3|1|s3): {gains}  [regrouped: replaces 0|c3]".replace("***", '"3@example.org"'),
        '    city: "Oslo" -> "Bergen"',
        "- Ann (1|s3)  [replaced]",
    ]  # fmt: skip
    assert list(names.name_example(grouped[-1]).after or {}) == ["_id", "n", "city"]
    assert masked == {"keys": ("0|c3|1|s3", gains, "0|c3"), "none": ("", "***", "***")}


def test_a_member_that_joins_is_one_line_of_a_plan(make_memory_pipe: MakePipe) -> None:
    """The line has the name of the golden record, and the rule and the value that link the member.

    A golden record without the label has its stable ID.
    """
    rule = {"equality": [["eq", "a.x", "b.x"]], "stable_id": True, "label_column": "n"}
    pipe = make_memory_pipe("AB", **rule)
    pipe.write_rows(
        "A", build_table({"_id": ["a1", "a2"], "x": [1, 2], "n": ["Ann", "Bea"], "_updated": [1, 2]})
    )
    pipe.write_rows("B", build_table({"_id": ["b9"], "x": [9], "_updated": [1]}))
    first = pipe.run_job("plan", until="transform")["plan"]
    pipe.run_job("first")
    pipe.write_rows("A", build_table({"_id": ["a2"], "x": [2], "n": ["Eva"], "_updated": [3]}))
    pipe.write_rows("B", build_table({"_id": ["b1", "b9"], "x": [1, None], "_updated": [2, 3]}))

    second = pipe.run_job("second plan", until="transform")["plan"]

    assert [example["name"] for example in first["examples"]] == ["Ann (#0)", "Bea (#1)", "#2"]
    assert list(format_changes(ChangeSummary.model_validate(second)))[2:] == [
        "~ Ann (#0): + B/b1 by a.x = b.x (1)  [joined: replaces 0|a1]",
        '    entity: {"n": "Ann", "x": 1} -> {"n": "Ann", "x": [1, 1]}',
        "~ Eva (#1)  [content]",
        '    entity: {"n": "Bea", "x": 2} -> {"n": "Eva", "x": 2}',
        "~ #2  [content]",
        '    entity: {"x": 9} -> {}',
    ]
