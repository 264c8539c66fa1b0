"""Tests of the key of a joined row, and of why a key has none."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.errors import ConfigError
from airflow_merge_provider.explain.model.joins import (
    InputRows,
    JoinDescription,
    explain_missing_row,
)


def build_join(**changes: Any) -> JoinDescription:
    """Return a join of customers with their orders by two keys, in which customers are required."""
    return JoinDescription.from_state(
        {
            "inputs": {"customers": "/lake/customers", "orders": "/lake/orders"},
            "required": ["customers"],
            "keys": {"customers": ["id", "day"], "orders": ["customer", "day"]},
            "nulls_match": True,
            "expression": None,
            "aliases": {"customers": "customers", "orders": "orders"},
            "key_columns": [],
            "outputs": {"number": ["customers", "id"], "day": ["customers", "day"]},
            "append": False,
            **changes,
        }
    )


@pytest.mark.parametrize("names", [("id", "day"), ("customer", "day"), ("orders.customer", "customers.day")])
def test_a_key_may_have_the_names_of_any_input(names: tuple[str, str]) -> None:
    """Each clause is named by the field of any input, and the target is searched by its own columns."""
    join = build_join()
    key = join.parse_key(f'{{"{names[0]}": 1, "{names[1]}": null}}')

    assert key == {"customers": {"id": "1", "day": None}, "orders": {"customer": "1", "day": None}}
    assert join.list_output_keys(key) == [{"number": "1", "day": None}]


def test_a_target_is_searched_by_columns_that_every_row_has() -> None:
    """Columns of optional inputs may be NULL: if no input is required, those of every input are searched."""
    one_key = {"keys": {"customers": ["id"], "orders": ["customer"]}, "required": []}
    both = {"id": ["customers", "id"], "customer": ["orders", "customer"]}

    full, partly = build_join(**one_key, outputs=both), build_join(**one_key, outputs={"id": both["id"]})
    named = build_join(**one_key, outputs={}, key_columns=["k"])
    optional = build_join(**{**one_key, "required": ["customers"]}, outputs={"customer": both["customer"]})

    assert full.list_output_keys(full.parse_key("1")) == [{"id": "1"}, {"customer": "1"}]
    assert full.list_output_keys(full.parse_key('{"id": null}')) == []
    assert partly.list_output_keys(partly.parse_key("1")) == []
    assert named.list_output_keys(named.parse_key('{"k": 1}')) == [{"k": "1"}]
    assert optional.list_output_keys(optional.parse_key("1")) == []


@pytest.mark.parametrize(
    ("join", "text", "message"),
    [
        (build_join(), "1", 'key: must be a JSON object with the key columns ({"id": …, "day": …})'),
        (build_join(), '{"id": 1}', 'key: must be a JSON object with the key columns ({"id": …, "day": …})'),
        (build_join(), '{"idd": 1}', "key: unknown key column 'idd' (did you mean 'id'?)"),
        (
            build_join(keys={}, outputs={"nr": ["customers", "id"]}),
            "1",
            'key: must be a JSON object, as the join has no keys (name output columns, such as {"nr": …})',
        ),
        (build_join(keys={}), '{"numbr": 1}', "key: unknown key column 'numbr' (did you mean 'number'?)"),
    ],
)
def test_another_key_is_refused(join: JoinDescription, text: str, message: str) -> None:
    """The error names the key columns, or the unknown one."""
    with pytest.raises(ConfigError) as refused:
        join.parse_key(text)

    assert refused.value.message == message


def test_a_join_without_keys_is_searched_by_columns_and_fields() -> None:
    """An output column stands for its field; another field can only be searched in its input."""
    join = build_join(keys={}, expression="customers.id = orders.customer")
    by_column, by_field = join.parse_key('{"number": 1}'), join.parse_key('{"orders.customer": 1}')

    assert by_column == {"customers": {"id": "1"}, "orders": {}}
    assert join.list_output_keys(by_column) == [{"number": "1"}]
    assert by_field == {"customers": {}, "orders": {"customer": "1"}}
    assert join.list_output_keys(by_field) == []


def build_inputs(customers: int, orders: int, value: Any = 1, missing: str = "") -> list[InputRows]:
    return [
        InputRows("customers", "c", 0, {"id": value}, ({"id": value},) * customers, is_required=True),
        InputRows("orders", "o", 0, {"customer": value}, ({},) * orders, missing=missing),
    ]


@pytest.mark.parametrize(
    ("changes", "inputs", "pairs", "reason"),
    [
        ({}, build_inputs(0, 2), None, "the required input 'customers' has no row with id = 1"),
        ({}, build_inputs(1, 0), None, "the inputs have the key, so the row was deleted or changed"),
        ({"required": []}, [build_inputs(0, 0)[1]], None, "no input has a row with this key"),
        (
            {"nulls_match": False},
            build_inputs(1, 1, None),
            None,
            "the key has a NULL, and with join_null_keys",
        ),
        (
            {"keys": {}, "expression": "customers.id > orders.customer"},
            build_inputs(1, 1),
            0,
            "the inputs have the key, so the row was deleted or changed",
        ),
        (
            {"keys": {}, "expression": "a", "required": ["customers", "orders"]},
            build_inputs(1, 1),
            2,
            "the row was deleted or changed after the run, or only delta-rs finds",
        ),
        (
            {
                "keys": {},
                "expression": "customers.id > orders.customer",
                "required": ["customers", "orders"],
            },
            build_inputs(1, 1),
            0,
            "the condition dropped these rows, as no pair meets it: customers.id > orders.customer",
        ),
    ],
)
def test_a_missing_row_has_a_reason(changes: Any, inputs: list[InputRows], pairs: Any, reason: str) -> None:
    """The reason is a required input without the key, a NULL, the condition, or a later change."""
    (text,) = explain_missing_row(build_join(**changes), inputs, pairs)

    assert text.startswith(reason)


def test_inputs_that_cannot_be_read_are_no_reason() -> None:
    """If an input cannot be read, nothing is said about why the row is missing."""
    assert explain_missing_row(build_join(), build_inputs(1, 0, missing="another table")) == ()
    assert explain_missing_row(build_join(), build_inputs(1, 0), is_searched=False) == ()
