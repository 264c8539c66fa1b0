"""Tests of the expressions on one side of a match rule: parsing, evaluation and formatting."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from airflow_merge_provider.core.merge_source.dtl.expressions import (
    Call,
    Constant,
    Expression,
    ExpressionError,
    Path,
    evaluate_expression,
    find_aliases,
    foreign_words,
    format_expression,
    parse_expression,
    to_raw,
)
from airflow_merge_provider.core.merge_source.dtl.functions import DTL_FUNCTIONS, ITEM_FUNCTIONS
from airflow_merge_provider.core.merge_source.dtl.values import build_keys

ELEMENTS = st.text(min_size=1, max_size=4) | st.sampled_from(["a.b", "'", "it's", "''", "$ids", "x y", "."])
PATHS = st.builds(Path, st.just("a"), st.lists(ELEMENTS, min_size=1, max_size=3).map(tuple))
CONSTANTS = st.builds(
    Constant,
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "x", "b.x", "a", "n*", {"k": "v"}]),
)


def draw_calls(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def draw_call(name: str) -> st.SearchStrategy[Expression]:
        if name in ITEM_FUNCTIONS:
            return st.builds(Call, st.just(name), st.tuples(inner, inner))
        function = DTL_FUNCTIONS[name]
        most = function.least + 2 if function.most is None else function.most
        args = st.lists(inner, min_size=function.least, max_size=most).map(tuple)
        if name == "replace":
            args = args.filter(_can_replace)
        return st.builds(Call, st.just(name), args)

    return st.sampled_from([*DTL_FUNCTIONS, *ITEM_FUNCTIONS]).flatmap(draw_call)


def _can_replace(args: tuple[Expression, ...]) -> bool:
    """Return whether arguments have one of the two forms of replace.

    An object of replacements takes no third.
    """
    by_object = isinstance(args[0], Constant) and isinstance(args[0].value, dict)
    return len(args) == 2 if by_object else len(args) == 3


EXPRESSIONS: st.SearchStrategy[Expression] = st.recursive(PATHS | CONSTANTS, draw_calls, max_leaves=5)
NUMBERS = st.sampled_from([0, -1, 2, 1.5, 1e308, Decimal("1.5"), "~f1.50", "~f1e999999", "~fNaN"])
TEXTS = st.sampled_from(["", "a", "A b", "*", "12", "0xff", "~zfoo"])
TRANSIT = st.sampled_from(["~:n:1", "~rhttp://x", "~bgA==", "~t2020-01-01", "~t2020-01-01T00:00:00Z"])
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS | TRANSIT
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2)
    ),
    max_leaves=5,
)


def evaluate_raw(raw: Any, **entity: Any) -> Any:
    return evaluate_expression(parse_expression(raw, {"a"}), entity)


@given(EXPRESSIONS)
def test_an_expression_is_read_back_as_it_was_written(expression: Expression) -> None:
    """A formatted expression is parsed to the same expression, with any characters in its paths."""
    again = parse_expression(to_raw(expression), {"a"})

    assert again == expression
    assert format_expression(again) == format_expression(expression)
    assert pickle.loads(pickle.dumps(expression)) == expression  # noqa: S301 - own data


@given(EXPRESSIONS, st.dictionaries(st.sampled_from(["x", "y", "a"]), VALUES, max_size=3))
def test_every_expression_has_a_value_for_every_entity(
    expression: Expression, entity: dict[str, Any]
) -> None:
    """Every expression can be evaluated for every entity without failing, and every result can be a key."""
    assert isinstance(build_keys(evaluate_expression(expression, entity)), list)


@pytest.mark.parametrize(
    ("raw", "elements"),
    [
        ("a.x", ("x",)),
        ("a.'x.y'", ("x.y",)),
        ("a.'john.doe''s'.bar", ("john.doe's", "bar")),
        ("a.it's", ("it's",)),
        ("a.''''", ("'",)),
        ("a.crm:ssn", ("crm:ssn",)),
        ("a.$ids", ("$ids",)),
        ("a. x", (" x",)),
    ],
)
def test_a_path_is_split_at_its_dots(raw: str, elements: tuple[str, ...]) -> None:
    """A path is split at its dots. Quotes keep dots together, and a quote inside quotes is written twice."""
    assert parse_expression(raw, {"a"}) == Path("a", elements)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("a.", "empty path after 'a.'"),
        ("a..x", "empty path element"),
        ("a.x.", "empty path element"),
        ("a.''", "empty path element"),
        ("a.'x'.", "empty path element"),
        ("a.'x", "unterminated quote"),
        ("a.'x''", "unterminated quote"),
        ("a.'x'y", "a quoted path element must be followed by '.'"),
        ("_S.x", "variable '_S' is not available in an equality rule"),
        ("_B.", "variable '_B' is not available in an equality rule"),
        ("_.x", "variable '_' is not available in an equality rule"),
        (["filter", "_.x", "_.y"], "variable '_' is not available in an equality rule"),
        (["distinct", ["lower", "_."], "a.x"], "wrong number of arguments for 'distinct'"),
        (["coalesce", "a.x", "a.y"], "wrong number of arguments for 'coalesce'"),
        (["lower"], "wrong number of arguments for 'lower'"),
        (["replace", {"x": "y"}], "wrong number of arguments for 'replace'"),
        (["replace", {"x": "y"}, "a.x", "a.y"], "wrong number of arguments for 'replace'"),
        (["map", "a.x"], "wrong number of arguments for 'map'"),
        (["substring", 1], "wrong number of arguments for 'substring'"),
        ([], "unsupported DTL function ''"),
        ([5, "a.x"], "unsupported DTL function 5"),
        (["now"], "unsupported DTL function 'now'"),
        (["lowr", "a.x"], "unsupported DTL function 'lowr'"),
    ],
)
def test_a_wrong_expression_is_refused(raw: Any, message: str) -> None:
    """An invalid expression is rejected and never evaluates to null without an error."""
    with pytest.raises(ExpressionError) as refused:
        parse_expression(raw, {"a"})

    assert str(refused.value) == message


def test_a_tuple_is_a_list() -> None:
    """Rules written in Python may use tuples instead of lists."""
    assert parse_expression(("lower", "a.x"), {"a"}) == parse_expression(["lower", "a.x"], {"a"})


def test_a_misspelt_function_is_hinted_at() -> None:
    """The error for a misspelt function suggests the nearest name."""
    with pytest.raises(ExpressionError) as refused:
        parse_expression(["lowr", "a.x"], {"a"})

    assert refused.value.hint == "did you mean 'lower'?"


def test_references_are_the_aliases_read() -> None:
    """The references of an expression are the aliases it reads, without constants and the current item."""
    expression = parse_expression(
        ["list", "b.x", ["map", ["concat", "_.", "a.y", "a"], "a.z"], "c.x"], {"a", "b"}
    )

    assert find_aliases(expression) == {"a", "b"}
    assert foreign_words(expression) == ["c"]


@pytest.mark.parametrize(
    ("raw", "written"),
    [
        ("a.x", "a.x"),
        ("a.'x y'.z", "a.'x y'.z"),
        (["lower", "a.x"], "lower(a.x)"),
        (["filter", ["neq", "_.", "n/a"], "a.x"], 'filter(neq(_., "n/a"), a.x)'),
        (["if", True, None, 1.5], "if(true, null, 1.5)"),
    ],
)
def test_an_expression_is_written_for_people(raw: Any, written: str) -> None:
    """The text of an expression has plain paths, constants as JSON, and functions with brackets."""
    assert format_expression(parse_expression(raw, {"a"})) == written


def test_a_path_goes_through_lists_and_dicts() -> None:
    """A path through a list returns the values of its dicts, one level deep.

    Other values have no properties.
    """
    assert evaluate_raw("a.o.n", o=[{"n": None}, {"n": [1, [2]]}, {"m": 3}, [{"n": 4}], None]) == [
        None,
        1,
        [2],
    ]
    assert evaluate_raw("a.o.n", o={"n": {"k": 1}}) == {"k": 1}
    assert evaluate_raw("a.o.n", o="text") is None
    assert evaluate_raw("a.o.n.k", o=[{"n": [{"k": 1}, {"k": 2}]}, {"n": {"k": 3}}]) == [1, 2, 3]
