"""Tests of the functions in match rules beyond the vectors."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest

from airflow_merge_provider.core.merge_source.dtl.expressions import evaluate_expression, parse_expression

CASES: dict[str, list[tuple[list[Any], Any, Any]]] = {
    # Expression, value of the entity's property x, expected result.
    "text": [
        (["lower", "a.x"], None, None),
        (["lower", "a.x"], [], []),
        (["lower", "a.x"], [["A"], "B"], ["b"]),
        (["lower", "a.x"], "~zFOO", "~zfoo"),
        (["upper", "a.x"], ["a", "~t2020-01-01"], ["A"]),
        (["strip", "a.x"], "\u00a0a\t", "a"),
        (["lstrip", "xy", "a.x"], ["123xyx", "xy456yx"], ["123xyx", "456yx"]),
        (["rstrip", "xy", "a.x"], ["123xyx", "xy456yx"], ["123", "xy456"]),
        (["strip", 5, "a.x"], "a", None),
        (["length", "a.x"], "\U0001f600e", 2),
        (["concat", ["list", "a"], None, "a.x"], None, "a"),
        (["replace", "a.x", "b", ["list", "abc"]], ["a", "c"], ["bbc"]),
        (["replace", {"a": "b", "b": "a", "ab": "x"}, "a.x"], "aba", "xb"),
        (["replace", {"a": 1}, "a.x"], ["a", 1], ["a"]),
        (["replace", "a", None, "a.x"], "a", None),
        (["split", "", "a.x"], ["ab", "c", 1], ["a", "b", "c"]),
        (["split", "a.x"], " a  b ", ["a", "b"]),
        (["split", "-", "a.x"], 5, None),
        (["split", None, "a.x"], "a-b", None),
        (["substring", 2, "a.x"], ["abcdef", 1], ["cdef"]),
        (["substring", -2, "a.x"], "abcdef", "ef"),
        (["substring", 4, 2, "a.x"], "abcdef", ""),
        (["substring", 1, 99, "a.x"], "abc", "bc"),
        (["substring", "1", "a.x"], "abc", None),
        (["substring", True, "a.x"], "abc", None),
    ],
    "conversion": [
        (["string", "a.x"], 1.0, "1.0"),
        (["string", "a.x"], False, "false"),
        (["string", "a.x"], "~t2020-01-01T00:00:00.50Z", "2020-01-01T00:00:00.50Z"),
        (
            ["string", "a.x"],
            dt.datetime(2020, 1, 1, 0, 0, 0, 500_000, tzinfo=dt.UTC),
            "2020-01-01T00:00:00.5Z",
        ),
        (["string", "a.x"], dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "2020-01-01T00:00:00Z"),
        (["string", "a.x"], dt.date(2020, 1, 1), "2020-01-01"),
        (["string", "a.x"], "~f1.50", "1.50"),
        (["string", "a.x"], Decimal("1.50"), "1.50"),
        (["string", "a.x"], "~bw6k=", "\u00e9"),
        (["string", "a.x"], "~bgA==", None),
        (["string", "a.x"], "~zfoo", "~zfoo"),
        (["string", "a.x"], {"k": ["~:n:1", None, 1.5, True]}, '{"k": ["n:1", null, 1.5, true]}'),
        (
            ["string", "a.x"],
            [[], None, "~u531A379E-31bb-4ce1-8690-158dceb64be6"],
            ["[]", "531A379E-31bb-4ce1-8690-158dceb64be6"],
        ),
        (["integer", "a.x"], " -12 ", -12),
        (["integer", "a.x"], "1.0", None),
        (["integer", "a.x"], -1.9, -1),
        (["integer", "a.x"], "~f2.9", 2),
        (["integer", "a.x"], "~f1e999999999", None),
        (["integer", "a.x"], [True, None, "x", "1_0", "~t2020-01-01"], []),
        (["integer", "a.x"], ["0x00ff", "0xff", "0x1", "0x"], [255, -1, 1]),
        (["ni", "a.x"], ["b", "~:n:1", "~rx", 1], ["~:b", "~:n:1"]),
        (["ni", "n", "a.x"], ["b", "x:y", "~:n:1"], ["~:n:b", "~:n:x:y"]),
        (["ni", 5, "a.x"], "b", None),
        (["ni-id", "a.x"], "~:a:b:c", "c"),
        (["ni-ns", "a.x"], "~:a:b:c", "a:b"),
        (["ni-ns", "a.x"], "~rhttp://x", None),
    ],
    "numbers": [
        (["+", "a.x", 0.5], 1, 1.5),
        (["+", "a.x", 1], "~f0.10", "~f1.10"),
        (["+", "a.x", 0.1], "~f0.1", "~f0.2"),
        (["-", "a.x", 1], Decimal("1.5"), "~f0.5"),
        (["-", 1, "a.x"], [1, 2, 3], 0),
        (["+", "a.x", 1], [], None),
        (["+", "a.x", 1], [None, 5], None),
        (["+", "a.x", 1], True, None),
        (["+", "a.x", 1], "1", None),
        (["+", "a.x", 1e308], 1e308, None),
        (["+", "a.x", 1.5], 10**400, f"~f{10**400 + 1}.5"),
        (["+", "a.x", 1.0], 2**53, f"~f{2**53 + 1}.0"),
        (["+", "a.x", 1], 2**63, 2**63 + 1),
    ],
    "lists": [
        (["combine", "a.x"], None, []),
        (["combine", "a.x", None, 5], [1, None], [1, None, 5]),
        (["flatten", "a.x"], [1, [2, [3]], None], [1, 2, [3], None]),
        (["flatten", "a.x"], 1, [1]),
        (["list", "a.x"], None, [None]),
        (["tuples", "a.x"], [1, None, [2]], [[1], [[2]]]),
        (["tuples", "a.x", "b"], {"k": 1}, [[{"k": 1}, "b"]]),
        (["tuples", "a.x", "b"], [], []),
        (["tuples"], None, []),
        (["coalesce", "a.x"], [None, [], 1], []),
        (["coalesce", "a.x"], 5, 5),
        (["first", "a.x"], 5, 5),
        (["first", "a.x"], [[1], 2], [1]),
        (["last", "a.x"], [], None),
        (["distinct", "a.x"], [1, 1.0, True, None, "1", None], [1, True, None, "1"]),
        (["distinct", "a.x"], [[1], [1.0], {"k": 1}, {"k": 1}], [[1], {"k": 1}]),
        (["filter", "_.", "a.x"], [0, "", False, None, [], 1], [0, "", 1]),
        (["filter", ["neq", "_.", "n/a"], "a.x"], "n/a", []),
        (["filter", ["gt", "_.age", 42], "a.x"], [{"age": 30}, {"age": 50}], [{"age": 50}]),
        (["filter", ["eq", "_.t", "a.t"], "a.x"], [{"t": 1}, {"t": None}], [{"t": None}]),
        (["map", ["lower", "_."], "a.x"], ["A", 1], ["a", None]),
        (["map", ["map", ["+", "_.", 1], "_."], "a.x"], [[1, 2], [3]], [[2, 3], [4]]),
        (["map", "_.", "a.x"], None, []),
        (["map", "_.k", "a.x"], {"k": 1}, [1]),
    ],
    "truth": [
        (["if", "a.x", 1, 2], 0, 1),
        (["if", "a.x", 1, 2], "", 1),
        (["if", "a.x", 1, 2], [], 2),
        (["if", "a.x", 1, 2], [None], 1),
        (["and", "a.x", True], None, False),
        (["or", "a.x", True], None, True),
        (["not", "a.x"], [], True),
        (["not", "a.x", False], True, True),
        (["eq", "a.x", ["list", 1]], 1, True),
        (["eq", "a.x", 1], [1, 2], False),
        (["eq", "a.x", ["list"]], None, True),
        (["eq", "a.x", None], [None], False),
        (["eq", "a.x", ["list", 1, None]], ["~f1.0", None], True),
        (["neq", "a.x", True], 1, True),
        (["gt", "a.x", 1], [2, 0], True),
        (["gt", "a.x", 1], None, False),
        (["gte", "a.x", 1], "~f1.0", True),
        (["lt", "a.x", "b"], "B", True),
        (["lt", "a.x", 1], "0", False),
        (["lte", "a.x", "~t2020-01-01T00:00:00Z"], "~t2020-01-01", True),
        (["gt", "a.x", "~t2020-01-01"], "~t2020-01-01T00:00:00.1Z", True),
        (["gte", "a.x", "a.x"], {"k": 1}, False),
        (["lt", "a.x", True], False, True),
        (["gt", "a.x", 1], float("nan"), False),
        (["in", "a.x", ["list", "a", "b", "c"]], ["a", "c"], True),
        (["in", "a.x", ["list", "a"]], ["a", "d"], False),
        (["in", "a.x", 10], [10.0], True),
        (["in", "a.x", ["list", None]], None, False),
        (["in", "a.x", ["list", 1, None]], [None], True),
        (["in", "a.x", 10], [], False),
        (["matches", "a*p*a", "a.x"], ["alpha", "alpaca"], True),
        (["matches", "*", "a.x"], None, False),
        (["matches", "*", "a.x"], [], False),
        (["matches", "*", "a.x"], ["a", 1], False),
        (["matches", "?.x", "a.x"], "a.x", True),
        (["matches", "?.x", "a.x"], "abx", False),
        (["matches", "[a]", "a.x"], "a", False),
        (["matches", "a*", "a.x"], "a\nb\n", True),
        (["matches", "", "a.x"], "", True),
        (["matches", ["list", "a*", "b*"], "a.x"], "abc", True),
        (["matches", 5, "a.x"], "5", False),
        (["is-null", "a.x"], [None, 1], True),
        (["is-null", "a.x"], [], True),
        (["is-null", "a.x"], 0, False),
        (["is-not-null", "a.x"], [1, None], True),
        (["is-empty", "a.x"], None, True),
        (["is-empty", "a.x"], [None], False),
        (["is-not-empty", "a.x"], "", True),
    ],
}


@pytest.mark.parametrize(
    ("raw", "x", "expected"),
    [pytest.param(*case, id=json.dumps(case[0])) for cases in CASES.values() for case in cases],
)
def test_a_function_gives_its_value(raw: Any, x: Any, expected: Any) -> None:
    """A function ignores values of the wrong type: alone they give null, and in a list they are left out."""
    result = evaluate_expression(parse_expression(raw, {"a"}), {"x": x})

    assert result == expected
    assert type(result) is type(expected)


def test_many_stars_match_as_fast_as_one() -> None:
    """Many stars in a pattern match as fast as one, so a pattern cannot block a run."""
    assert (
        evaluate_expression(parse_expression(["matches", "*" * 60 + "b", "a.x"], {"a"}), {"x": "a" * 2000})
        is False
    )
