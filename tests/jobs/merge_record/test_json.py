"""Test JSON files of which Spark's parser leaves out or changes something in silence, whoever reads them."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.jobs.merge_record.landing import Landing

_MORE = "further text follows the JSON value in '"
_HALF = r"column 'v' has '\ud83d', half of a surrogate pair"
_TWICE = "a record has the field 'id' more than once (write one value)"
_NO_UTF8 = "is not UTF-8 (set the option encoding and a schema of the reader)"
# Files that fail, with what the reason says.
_LINES = {
    '{"id":1,"v":"","id":2}': _TWICE,
    '{"id":1} {"id":2}': _MORE,
    '{"id":1},{"id":2}': _MORE,
    '{"id":1} garbage': _MORE,
    '{"id":1} x {"id":2}': _MORE,
    '{"id":1}]{"id":2}': _MORE,
    '{"id":1}]': _MORE,
    '{"id":1,"v":{"a":{}}} {"id":2}': _MORE,
    r'{"id":1,"v":"\ud83dx"}': _HALF,
    '{"id":1,"v":"\xe9"}': _NO_UTF8,
}
_ARRAYS = {
    '[{"id":1,"v":"","id":2}]': _TWICE,
    '{"id":1,"v":"","id":2}': _TWICE,
    '[{"id":1}] [{"id":2}]': _MORE,
    '[{"id":1}]]': _MORE,
    '[{"id":1}] garbage': _MORE,
    '{"id":1} {"id":2}': _MORE,
    r'[{"id":1,"v":"\ud83dx"}]': _HALF,
    '[{"id":1,"v":"\xe9"}]': _NO_UTF8,
}
_GOOD = [r'{"id":1,"v":"\ud83d\ude00"}', '{"id":1,"v":"} x {"}', r'{"id":1,"v":"{\"a\":1} {\"a\":2}"}']
_TYPES = (
    "`größe` STRING, n DECIMAL(38,18), d DOUBLE, D INT, i INT, s STRUCT<a: INT, b: BINARY, t: STRING>, "
    "l ARRAY<DOUBLE>, m MAP<STRING, STRUCT<x: INT>>, r ARRAY<STRUCT<x: INT>>"
)
# Records with what comes out: the text of a value that is a STRING, else the same number.
_EXACT: dict[str, dict[str, Any]] = {
    r'{"gr\u00f6\u00dfe": 1.10}': {"größe": "1.10"},
    '{"größe": [1.0, {"x": 1E400}]}': {"größe": '[1.0, {"x": 1E400}]'},
    '{"n": 0.123456789012345678}': {"n": Decimal("0.123456789012345678")},
    '{"d": 0.30000000000000004}': {"d": Decimal("0.30000000000000004")},
    '{"d": 1e3}': {"d": Decimal(1000)},
    '{"D": 1, "d": 2.5}': {"D": 1, "d": Decimal("2.5")},
    '{"d": "1.5"}': {"d": Decimal("1.5")},
    '{"l": [0.1, 1e-7, null]}': {"l": [Decimal("0.1"), Decimal("1e-7"), None]},
    '{"s": {"a": 1, "t": -0}}': {"s": {"a": 1, "b": None, "t": "-0"}},
    # Each value of a text comes out, and a field that is not in the schema is not read.
    '{"s": {"t": {"x": 1, "x": 2}}, "other": 1, "other": 2}': {
        "s": {"a": None, "b": None, "t": '{"x": 1, "x": 2}'}
    },
}
_OTHER_TYPE = " (correct it, or set another type for it in the schema"
_WRONG = {
    '{"d": 9007199254740993}': "column 'd': '9007199254740993' is not a valid DOUBLE",
    '{"d": 1e400}': "column 'd': '1e400' is not a valid DOUBLE",
    '{"d": "x"}': "column 'd': 'x' is not a valid DOUBLE",
    '{"l": [1, 9007199254740993]}': "column 'l.element': '9007199254740993' is not a valid DOUBLE",
    '{"l": 5}': "column 'l': '5' is not a valid ARRAY<DOUBLE>",
    '{"i": "x"}': "column 'i': 'x' is not a valid INT",
    '{"s": {"a": "z"}}': "column 's.a': 'z' is not a valid INT",
    '{"s": {"a": 1, "b": "A?"}}': "column 's.b': 'A?' is not a valid BINARY",
    '{"s": 7}': "column 's': '7' is not a valid STRUCT<A:INT,B:BINARY,T:STRING>",
}

_WRONG = {text: f"{reason}{_OTHER_TYPE}" for text, reason in _WRONG.items()} | {
    '{"i": NaN}': "column 'i': 'NaN' is not a value of JSON, such as in",
    '{"s": {"a": 1, "t": [], "a": 2}}': "a record has the field 's.a' more than once (write one value)",
    '{"m": {"k": {"x": 1, "x": 1}}}': "a record has the field 'm.value.x' more than once",
    '{"m": {"k": {}, "k": {"x": 2}}}': "a record has the field 'm.k' more than once",
    '{"r": [{}, {"x": 1, "y": {"x": 2}, "x": 3}]}': "a record has the field 'r.element.x' more than once",
}


def put_in_all_ways(landing: Landing, name: str, text: str, encoding: str = "utf-8") -> tuple[str, str]:
    """Put a plain and a compressed file, of which the driver gathers lines only of the first.

    :return: their names.
    """
    content = text.encode(encoding)
    landing.put_file(f"{name}.json", content)
    landing.put_file(f"{name}.json.gz", gzip.compress(content))
    return f"{name}.json", f"{name}.json.gz"


def list_reasons(landing: Landing) -> dict[str, str]:
    """Return why files have failed, by their names."""
    lines = [line for line in landing.read_ledger() if line["outcome"] == "failed"]
    return {line["sources"][0]["uri"].rpartition("/")[2]: line["reason"] for line in lines}


def read_records(landing: Landing) -> list[dict[str, Any]]:
    lines = [line for content in landing.read_merged() for line in content.splitlines()]
    return [json.loads(line, parse_float=Decimal) for line in lines]


@pytest.mark.parametrize("kind", ["json", "json-array"])
@pytest.mark.parametrize("schema", ["id BIGINT, v STRING", None])
def test_nothing_is_left_out(lean: SparkSession, tmp_path: Path, kind: str, schema: str | None) -> None:
    """Further text, half characters and other bytes fail their file by name, and nothing else does."""
    landing = Landing(
        tmp_path, lean, reader={"format": kind, "schema": schema}, writer="json", failure_scope="flowfile",
        max_records="unlimited",
    )  # fmt: skip
    is_array = kind == "json-array"
    expected: dict[str, str] = {}
    for number, (text, reason) in enumerate((_ARRAYS if is_array else _LINES).items()):
        expected |= dict.fromkeys(put_in_all_ways(landing, f"{number}", text, "latin-1"), reason)
    good = f"[{','.join(_GOOD)}]" if is_array else "\n".join(_GOOD)
    put_in_all_ways(landing, "good", f"\ufeff{good}")

    landing.run_job(at=1, flush=True)

    reasons = list_reasons(landing)
    assert reasons.keys() == expected.keys()
    for name, reason in expected.items():
        assert "1 of 1 records cannot be read: " in reasons[name]
        assert reason in reasons[name]
    assert read_records(landing) == [json.loads(line) for line in _GOOD] * 2


def test_comments_are_no_further_text(lean: SparkSession, tmp_path: Path) -> None:
    """They are read as the options say, and text after a record is still refused."""
    reader = {"format": "json", "schema": "id INT", "options": {"allowComments": "true"}}
    landing = Landing(tmp_path, lean, reader=reader, writer="json", failure_scope="flowfile")
    landing.put_file("good.json", '{"id": 1} /* {} */\n')
    landing.put_file("bad.json", '{"id": 2} {} // text\n')

    landing.run_job(at=1, flush=True)

    assert read_records(landing) == [{"id": 1}]
    assert _MORE in list_reasons(landing)["bad.json"]


@pytest.mark.parametrize("mode", ["gathered", "read by Spark", "array"])
def test_numbers_with_a_schema(lean: SparkSession, tmp_path: Path, mode: str) -> None:
    """Numbers come out as they are, in whatever way a file is read, or fail their file by name."""
    landing = Landing(
        tmp_path, lean, reader={"format": "json-array" if mode == "array" else "json", "schema": _TYPES},
        writer="json", failure_scope="flowfile", max_records="unlimited", arrival_order="path",
    )  # fmt: skip
    is_packed = mode == "read by Spark"
    suffix = ".json.gz" if is_packed else ".json"
    for index, text in enumerate((*_EXACT, *_WRONG)):
        content = (f"[{text}]" if mode == "array" else f"{text}\n").encode()
        landing.put_file(f"{index:02}{suffix}", gzip.compress(content) if is_packed else content)

    landing.run_job(at=1, flush=True)

    reasons = list_reasons(landing)
    assert sorted(reasons) == [f"{len(_EXACT) + index:02}{suffix}" for index in range(len(_WRONG))]
    for reason, text in zip((reasons[name] for name in sorted(reasons)), _WRONG.values(), strict=True):
        assert text in reason
    records = [
        {name: value for name, value in record.items() if value is not None}
        for record in read_records(landing)
    ]
    assert records == list(_EXACT.values())


@pytest.mark.parametrize("kind", ["json", "json-array"])
def test_a_field_of_several_types_is_refused(lean: SparkSession, tmp_path: Path, kind: str) -> None:
    """Otherwise, a number would come out like its text; the reason names field, types and values."""
    landing = Landing(tmp_path, lean, reader=kind, writer="json", max_bins="unlimited")
    files = {
        "a": ('{"v":1.50}', '{"v":"1.50"}',
              "field 'v' is a number (1.50) in one record and a text (\"1.50\")"),
        "b": ('{"s":{"v":[null,true]}}', '{"s":{"v":["true"]}}',
              "field 's.v[]' is a boolean (true) in one record and a text (\"true\") in another"),
        "c": ('{"v":{"x":1}}', '{"v":[1]}', "field 'v' is a record in one record and a list in another"),
        "d": ('{"v":1}', '{"v":NaN}', "(write null, or the value in quotes)"),
        "e": ('{"v":1}', '{"w":-Infinity}', "column 'w': '-Infinity' is not a value of JSON"),
        "f": ('{"v":1}', '{"l":[1, Infinity]}', "column 'l': 'Infinity' is not a value of JSON"),
    }  # fmt: skip
    for name, (first, second, _) in files.items():
        landing.put_file(name, f"[{first},{second}]" if kind == "json-array" else f"{first}\n{second}\n")

    landing.run_job(at=1)

    reasons = list_reasons(landing)
    assert reasons.keys() == files.keys()
    for name, (_, _, reason) in files.items():
        assert reason in reasons[name]
    assert (
        "set a schema of the reader in which the field is a STRING, or schema_merge='union'" in reasons["a"]
    )


def test_numbers_that_no_variant_holds_fail(lean: SparkSession, tmp_path: Path) -> None:
    """Spark would make DOUBLEs of them, without their digits or infinite; other numbers have all digits."""
    landing = Landing(
        tmp_path, lean, reader={"format": "json", "schema": "v VARIANT"}, failure_scope="flowfile"
    )
    landing.put_file("good.json", '{"v": [123456789.123456789012, 1e3]}\n')
    texts = ("1E400", f"0.{'123456789' * 5}")
    for index, text in enumerate(texts):
        landing.put_file(f"{index}.json", f'{{"v": [{text}]}}\n')

    landing.run_job(at=1)

    assert read_records(landing) == [{"v": [Decimal("123456789.123456789012"), Decimal(1000)]}]
    for (_, reason), text in zip(sorted(list_reasons(landing).items()), texts, strict=True):
        assert f"no VARIANT holds the number '{text}' (set another type" in reason


def test_numbers_of_compressed_arrays(lean: SparkSession, tmp_path: Path) -> None:
    """Texts and decimals have all digits of the file, which Spark would take from a DOUBLE."""
    schema = "b STRING, d DECIMAL(38,18), f DOUBLE"
    landing = Landing(tmp_path, lean, reader={"format": "json-array", "schema": schema}, writer="json")
    landing.put_file("a.json.zst", b"any")
    put_in_all_ways(landing, "a", '[{"b":1.10,"d":0.123456789012345678,"f":0.30000000000000004}]')

    landing.run_job(at=1)

    expected = {"b": "1.10", "d": Decimal("0.123456789012345678"), "f": Decimal("0.30000000000000004")}
    assert read_records(landing) == [expected] * 2
    ((_, reason),) = list_reasons(landing).items()
    assert "Spark rounds numbers of JSON arrays that are compressed so (decompress it" in reason


def test_further_text_in_other_encodings(lean: SparkSession, tmp_path: Path) -> None:
    """It fails its file as in UTF-8, and other files are read."""
    for kind, encoding in {"json": "UTF-16LE", "json-array": "UTF-16"}.items():
        options = {"encoding": encoding}
        landing = Landing(
            tmp_path / kind, lean, writer="json", failure_scope="flowfile",
            reader={"format": kind, "schema": "id INT, v STRING", "options": options},
        )  # fmt: skip
        good, bad = '{"id":1,"v":"\xe9"}', '{"id":2,"v":"\xe9"} {"id":3}'
        texts = (good, bad) if kind == "json" else (f"[{good}]", f"[{bad.replace('} {', '}] [{')}]")
        put_in_all_ways(landing, "good", texts[0], encoding)
        expected = put_in_all_ways(landing, "bad", texts[1], encoding)

        landing.run_job(at=1, flush=True)

        assert read_records(landing) == [{"id": 1, "v": "\xe9"}] * 2
        reasons = list_reasons(landing)
        assert sorted(reasons) == sorted(expected)
        assert all(_MORE in reason for reason in reasons.values())
