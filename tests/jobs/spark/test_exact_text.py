"""Test the exact text of values: equal for equal values only, whatever the time zone of the session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.jobs.spark.exact_text import exact_sql, shown_row, shown_text
from airflow_merge_provider.jobs.spark.session import override_settings

# Of each type: spellings of one value, and values that differ from it by as little as the type can hold.
_AT = "timestamp'2024-05-01T00:00:00.123456Z'"
_LATER = "timestamp'2024-05-01T00:00:00.123457Z'"
_VALUES = {
    "timestamp": (
        [_AT, "timestamp'2024-05-01T02:00:00.123456+02:00'"],
        [_LATER, "timestamp'2024-05-01T00:00:00.123999Z'"],
    ),
    "timestamp before 1582": (
        ["timestamp'1500-02-28T00:00:00.000001Z'"],
        ["timestamp'1500-02-28T00:00:00Z'"],
    ),
    "timestamp before our era": (
        ["timestamp'-0044-03-15T12:00:00.5Z'"],
        ["timestamp'0044-03-15T12:00:00.5Z'"],
    ),
    "timestamp in a gap": (["timestamp'2024-03-10T10:30:00Z'"], ["timestamp'2024-03-10T09:30:00Z'"]),
    "timestamp in an overlap": (["timestamp'2024-11-03T08:30:00Z'"], ["timestamp'2024-11-03T09:30:00Z'"]),
    "timestamp_ntz": (
        ["timestamp_ntz'2024-03-10T02:30:00.123456'"],
        ["timestamp_ntz'2024-03-10T02:30:00.123457'"],
    ),
    "date": (["date'1500-02-28'"], ["date'1500-02-27'", "date'-1500-02-28'"]),
    "float": (["cast(0.1 as float)"], ["cast(0.10000001 as float)"]),
    "double": (["0D", "-0D"], ["4.9E-324D", "double('NaN')", "double('Infinity')", "double('-Infinity')"]),
    "nan": (["double('NaN')", "-double('NaN')"], ["double('Infinity')"]),
    "large double": (["9007199254740992D"], ["9007199254740994D"]),
    "bigint": (["9007199254740993"], ["9007199254740992"]),
    "decimal": (["1.000000000000000001BD"], ["1.000000000000000002BD"]),
    "large decimal": (
        ["12345678901234567890.123456789012345678BD"],
        ["12345678901234567890.123456789012345679BD"],
    ),
    "map by text of any bytes": (
        ["map(cast(X'ff' as string), 1, cast(X'fe' as string), 2)"],
        ["map(cast(X'ff' as string), 2, cast(X'fe' as string), 1)", "map('\\ufffdxFF', 1, '\\ufffdxFE', 2)"],
    ),
    "binary": (["X'00ff'"], ["X'00fe'", "X'00'", "X''"]),
    "text": (["''"], ["' '", "'\\n'", "'\\\\'", "'\"'", "'null'", "'\\u00e9'", "'e\\u0301'"]),
    "text of any bytes": (
        ["cast(X'ff' as string)"],
        [
            "cast(X'fe' as string)",
            "cast(X'ff41' as string)",
            "cast(X'eda080' as string)",
            "'\\ufffd'",
            "'\\ufffdxFF'",
            "'\\ufffdxFFx'",
            "'xFF'",
            "'FF'",
        ],
    ),
    "interval": (
        ["interval '1 02:03:04.123456' day to second"],
        ["interval '1 02:03:04.123457' day to second"],
    ),
    "years": (["interval '1-2' year to month"], ["interval '1-3' year to month"]),
    "struct": (["named_struct('a', 1, 'b', 'x')"], ["named_struct('a', 1, 'b', cast(null as string))"]),
    "array": (["array(1, null)"], ["array(1)", "array(null, 1)", "cast(array() as array<int>)"]),
    "map": (["map('a', 1, 'b', null)", "map('b', null, 'a', 1)"], ["map('a', 1)", "map('a', 1, 'b', 0)"]),
    "map by number": (["map(1, 'x', 10, 'y')", "map(10, 'y', 1, 'x')"], ["map(1, 'y', 10, 'x')"]),
    "map by binary": (["map(X'00', 1, X'01', 2)", "map(X'01', 2, X'00', 1)"], ["map(X'00', 2, X'01', 1)"]),
    "map by time": (
        ["map(timestamp'2024-05-01T00:00:00.123456Z', 1)"],
        ["map(timestamp'2024-05-01T00:00:00.1Z', 1)"],
    ),
    "variant": (
        ['parse_json(\'{"a": 1, "b": 1.0}\')', 'parse_json(\'{"b": 1, "a": 1}\')'],
        ["parse_json('{\"a\": 1}')"],
    ),
    "time in a variant": (
        [f"variant_get(to_variant_object(array({_AT})), '$[0]')"],
        [f"variant_get(to_variant_object(array({_LATER})), '$[0]')"],
    ),
}
_NESTED = (
    "{}",
    "array({})",
    "named_struct('ab', {})",
    "map('k', {})",
    "map(1, array({}))",
    "array(map('x', array({})))",
)


Texts = dict[tuple[str, str], list[str | None]]


@pytest.fixture(scope="module")
def texts(spark: SparkSession) -> Texts:
    """Return the texts of all values of each type and nesting, computed in two time zones at once."""
    cases = [(name, nested) for name in _VALUES for nested in _NESTED]
    texts_by_case: Texts = {case: [] for case in cases}
    for zone in ("UTC", "America/Los_Angeles"):
        with override_settings(spark, {"spark.sql.session.timeZone": zone}):
            columns = [
                f"{nested.format(value)} AS `{number}`"
                for number, (name, nested) in enumerate(cases)
                for value in [_VALUES[name][0][0]]
            ]
            kinds = [field.dataType for field in spark.sql(f"SELECT {', '.join(columns)}").schema]
            arrays = []
            for (name, nested), kind in zip(cases, kinds, strict=True):
                values = (nested.format(value) for group in _VALUES[name] for value in group)
                casts = ", ".join(f"cast({value} as {kind.simpleString()})" for value in values)
                arrays.append(f"array({casts})")
            # A row has a value of each case; the columns are numbered, and those of few values end with NULL.
            rows = spark.sql(f"SELECT inline(arrays_zip({', '.join(arrays)}))")
            texts = [exact_sql(f"`{number}`", kind) for number, kind in enumerate(kinds)]
            for case, column in zip(cases, zip(*rows.selectExpr(*texts).collect(), strict=True), strict=True):
                texts_by_case[case] += column[: sum(map(len, _VALUES[case[0]]))]
    return texts_by_case


@pytest.mark.parametrize("name", _VALUES)
def test_values_are_equal_exactly_if_their_texts_are(
    texts: dict[tuple[str, str], list[str | None]], name: str
) -> None:
    same, different = _VALUES[name]
    for nested in _NESTED:
        values = texts[name, nested]
        half = len(values) // 2
        assert values[:half] == values[half:], "the time zone of the session changes the text"
        assert len(set(values[: len(same)])) == 1
        assert None not in values
        assert len(set(values)) == 1 + len(different)


def test_null_has_no_text(spark: SparkSession) -> None:
    kinds = spark.sql(
        "SELECT cast(null as int) a, cast(null as double) b, cast(null as array<double>) c, "
        "cast(null as map<int,int>) d, cast(null as struct<x: double>) e, cast(null as variant) f, "
        "cast(null as map<string,int>) g"
    )
    texts = [exact_sql(f"`{field.name}`", field.dataType) for field in kinds.schema]
    assert list(kinds.selectExpr(*texts).collect()[0]) == [None] * len(texts)


def test_people_see_the_sign_of_zero_and_null(spark: SparkSession) -> None:
    """As they are stored: -0.0 is equal to 0.0 and another value."""
    rows = spark.sql(
        "SELECT -0D a, array(cast(-0D as float), 0F) b, named_struct('x', -0D) c, map('k', -0D) d, "
        "cast(null as int) e"
    )
    shown = shown_row(rows, rows.columns)
    image = shown_text("c", rows.schema["c"].dataType)
    row = rows.select(shown, shown_row(rows, ["a", "e"], keeps_nulls=False), image).collect()[0]
    assert tuple(row) == (
        '{"a":-0.0,"b":[-0.0,0.0],"c":{"x":-0.0},"d":{"k":-0.0},"e":null}',
        '{"a":-0.0}',
        '{"x":-0.0}',
    )
