"""Test that CSV files are read and written as in RFC 4180: a value comes out, or its file fails by name."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from pyarrow import csv
from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, use_shown_rows
from airflow_merge_provider.core.errors import ConfigError, DataError
from tests.jobs.merge_record.landing import Landing

BIG = "x" * 10_000_000
# The content of a file, and its records; NULL is None.
GOOD: dict[str, tuple[bytes, list[tuple[str | None, ...]]]] = {
    "one column": (b'v\na\n""\nb\n', [("a",), ("",), ("b",)]),
    "blanks": (b'id,v\n1,"  x "\n2,\ty \n', [("1", "  x "), ("2", "\ty ")]),
    "quotes": (b'id,v\n6,"x ""y"" z"\n7,""""\n8,5" pipe\n', [("6", 'x "y" z'), ("7", '"'), ("8", '5" pipe')]),
    "line breaks": (b'id,v\n1,"first\nsecond, half"\n2,"\r\n"\n3,"\r"\n',
                    [("1", "first\nsecond, half"), ("2", "\r\n"), ("3", "\r")]),
    "empty and null": (b'id,v,w\n1,"",\n2,,""\n', [("1", "", None), ("2", None, "")]),
    "line break in the header": (b'"i\nd","a,b"\n1,2\n', [("1", "2")]),
    "no end": (b"a,b\n1,2", [("1", "2")]),
    "crlf": (b'a,b\r\n1,"x\r\ny"\r\n2,z\r\n', [("1", "x\r\ny"), ("2", "z")]),
    "cr": (b"a,b\r1,2\r3,4\r", [("1", "2"), ("3", "4")]),
    "bom": ("\ufeffa,b\n1,é\n".encode(), [("1", "é")]),
    "backslash": (b'a,b\n1,"x\\"\n2,\\\n', [("1", "x\\"), ("2", "\\")]),
    "empty lines": (b"a,b\n1,2\n\n3,4\n\n", [("1", "2"), ("3", "4")]),
    "header alone": (b"x,y\n", []),
    "texts like numbers": (b"a,b,c,d,e\n1.10,1e3,2E-1,TRUE,007\n2.50,1,1,false,1\n",
                           [("1.10", "1e3", "2E-1", "TRUE", "007"), ("2.50", "1", "1", "false", "1")]),
    "numbers": (b"a,b,c,d\n1,9007199254740993,1.5,true\n-2,1,-0.25,false\n",
                [("1", "9007199254740993", "1.5", "true"), ("-2", "1", "-0.25", "false")]),
    "a number and a fraction": (b"a,b\n1,-0\n1.5,0\n", [("1", "-0"), ("1.5", "0")]),
    "many digits": (b"a,b\n123456789.123456789012,1e400\n0.1,NaN\n",
                    [("123456789.123456789012", "1e400"), ("0.1", "NaN")]),
    "a large value": (f'a,b\n1,"{BIG}"\n'.encode(), [("1", BIG)]),
}  # fmt: skip
BAD = {
    "open quote": (b'a,b\n0,ok\n1,"x\n2,y\n', "line 4: a quoted value does not end"),
    "text after a quote": (b'a,b\n1,"x"y\n2,z\n', "line 2: text follows the end of a quoted value"),
    "ragged": (b"a,b\n1\n1,2,3\n1,2\n", "2 of 3 records cannot be read"),
    "encoding": (
        b"a,b\n1,\xe9\n",
        "it has bytes that are not UTF-8: 'a,b\\n1,\ufffd\\n' (set",
    ),
    "nul": (b'a,b\n1,"x\x00y"\n', "a value has the character NUL"),
    "line ends of two kinds": (b"a,b\r\n1,2\n3,4\r\n", "line 2: it ends in another way"),
    "another last end": (b"a,b\n1,2\r\n", "line 2: it ends in another way than the first one"),
    "no header": (b"", "it has no header"),
    "column twice": (
        b"a,a\n1,2\n",
        "its header has the column 'a' more than once",
    ),
}


def read_records(content: bytes) -> list[tuple[str | None, ...]]:
    """Return the records of a CSV file as another program reads them, with NULL as None."""
    read_options = csv.ReadOptions(block_size=64 << 20)
    parse_options = csv.ParseOptions(newlines_in_values=True)
    header = csv.read_csv(io.BytesIO(content), read_options, parse_options).column_names
    table = csv.read_csv(
        io.BytesIO(content),
        read_options,
        parse_options,
        csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [tuple(row.values()) for row in table.to_pylist()]


def list_files(cases: Any) -> list[tuple[str, bytes]]:
    return [(f"{name}.csv", content) for name, (content, _) in cases.items()]


@pytest.mark.parametrize("validate", ["on_arrival", "on_merge"])
def test_every_value_of_a_csv_file_comes_out(lean: SparkSession, tmp_path: Path, validate: str) -> None:
    """Files keep every value, with a schema and without; an unreadable file fails alone, with a reason."""
    schema = {} if validate == "on_arrival" else {"schema": "a STRING, b STRING"}
    landing = Landing(
        tmp_path,
        lean,
        reader={"format": "csv", **schema},
        max_records=1,
        validate=validate,
        max_bins="unlimited",
    )
    good = {
        name: case
        for name, case in GOOD.items()
        if not schema or case[0].lstrip(b"\xef\xbb\xbf").startswith(b"a,b\n")
    }
    bad = (
        BAD if schema else {**BAD, "empty line": (b"v\n1\n\n2\n", "line 3: it is empty, which Spark leaves")}
    )
    for name, content in [*list_files(good), *list_files(bad)]:
        landing.put_file(name, content)

    with use_shown_rows(ShownRows(rows="keys" if schema else "all")):
        report = landing.run_job(at=1, flush=True)

    merged = {}
    for path in landing.list_outputs():
        attributes = landing.read_attributes(path)
        merged[attributes["filename"].removesuffix(".csv")] = read_records(path.read_bytes())
        assert int(attributes["record.count"]) == len(merged[attributes["filename"].removesuffix(".csv")])
    assert merged == {name: records for name, (_, records) in good.items()}
    failed = {
        line["sources"][0]["uri"].rpartition("/")[2].removesuffix(".csv"): line["reason"]
        for line in landing.read_ledger()
        if line["outcome"] == "failed"
    }
    assert failed.keys() == bad.keys()
    for name, (_, reason) in bad.items():
        # Only values are masked.
        assert (reason.replace("'a,b\\n1,\ufffd\\n'", "***") if schema else reason) in failed[name]
    (warning,) = [text for text in report["warnings"] if "failed" in text]
    assert warning.startswith(f"{len(bad)} files failed: ")


@pytest.mark.parametrize("encoding", ["latin-1", "UTF-16", "UTF-8"])
def test_files_in_other_encodings_are_read_by_option(
    lean: SparkSession, tmp_path: Path, encoding: str
) -> None:
    """The option encoding takes Python's names and Spark's; the merged file has the encoding, too."""
    landing = Landing(tmp_path, lean, reader={"format": "csv", "options": {"encoding": encoding}})
    mark = "\ufeff" if encoding == "UTF-8" else ""
    landing.put_file("a.csv", f'{mark}id,v\r\n1,"é\r\n"\r\n2,ü\r\n'.encode(encoding))

    landing.run_job(at=1)

    (output,) = landing.list_outputs()
    assert output.read_bytes().decode(encoding) == 'id,v\n1,"é\r\n"\n2,ü\n'


@pytest.mark.parametrize("kind", ["csv", "json", "json-array", "xml"])
def test_characters_that_an_encoding_lacks_are_kept(lean: SparkSession, tmp_path: Path, kind: str) -> None:
    """Formats with escapes write them so; a file of CSV that would lose one fails by name."""
    options = {"encoding": "latin-1", "rowTag": "r"}
    landing = Landing(tmp_path, lean, writer={"format": kind, "options": options}, max_records=1)
    landing.put_records("a.json", {"v": "é"})
    landing.put_records("b.json", {"v": "é€"})

    landing.run_job(at=1)

    contents = sorted(path.read_bytes().decode("latin-1") for path in landing.list_outputs())
    failed = [line["reason"] for line in landing.read_ledger() if line["outcome"] == "failed"]
    if kind == "csv":
        assert contents == ["v\né\n"]
        assert "the STRING 'é€' has a character that ISO-8859-1 lacks (set another encoding" in failed[0]
    elif kind == "xml":
        assert failed == []
        roots = [ET.fromstring(content.encode("latin-1")) for content in contents]  # noqa: S314
        assert {root.findtext("r/v") for root in roots} == {"é", "é€"}
    else:
        assert failed == []
        assert [json.loads(content) for content in contents] == (
            [{"v": "é"}, {"v": "é€"}] if kind == "json" else [[{"v": "é"}], [{"v": "é€"}]]
        )


def test_json_arrays_are_not_written_in_utf_16(lean: SparkSession, tmp_path: Path) -> None:
    """Spark would write UTF-8."""
    writer = {"format": "json-array", "options": {"encoding": "UTF-16"}}

    with pytest.raises(ConfigError, match=r"writer\.options: json-array files cannot be written in UTF-16"):
        Landing(tmp_path, lean, writer=writer).run_job(at=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [({"quote": "'"}, "id,v\n1,'it''s, a \"b\"'\n"), ({"sep": "::"}, 'id::v\n1::"x::y""z"\n')],
    ids=["quote", "separator"],
)
def test_other_marks_come_out(lean: SparkSession, tmp_path: Path, options: dict[str, str], text: str) -> None:
    """A quote in a value is doubled, and a separator is quoted, whatever characters the options have."""
    landing = Landing(tmp_path, lean, reader={"format": "csv", "options": options})
    landing.put_file("a.csv", text)

    landing.run_job(at=1)

    (output,) = landing.list_outputs()
    assert output.read_text() == text


def test_quotes_are_escaped_by_option(lean: SparkSession, tmp_path: Path) -> None:
    """Outside of quotes, the character is one of the value; a doubled quote has no meaning then."""
    reader = {"format": "csv", "options": {"escape": "\\"}}
    landing = Landing(tmp_path, lean, reader=reader, writer="json", failure_scope="flowfile")
    landing.put_file("a.csv", 'id,v\n1,"a \\"b\\" c\\\\"\n2,d\\e\n3,f\\\n')
    landing.put_file("b.csv", 'id,v\n4,"x""y"\n')

    landing.run_job(at=1, flush=True)

    (merged,) = landing.read_merged()
    assert [json.loads(line)["v"] for line in merged.splitlines()] == ['a "b" c\\', "d\\e", "f\\"]
    (failed,) = (line for line in landing.read_ledger() if line["outcome"] == "failed")
    assert failed["sources"][0]["uri"].endswith("/b.csv")


def test_a_null_that_csv_cannot_hold_is_refused(lean: SparkSession, tmp_path: Path) -> None:
    """A NULL in a file of one column would be an empty line; with nullValue it is a text."""
    landing = Landing(tmp_path, lean, writer="csv")
    landing.put_records("a.json", {"v": "a"}, {"v": None}, {"v": ""})

    with pytest.raises(DataError, match=r"column v: a record is NULL.*nullValue"):
        landing.run_job(at=1)
    assert landing.list_outputs() == []
    landing.run_job(at=2, writer={"format": "csv", "options": {"nullValue": "NULL"}})

    (output,) = landing.list_outputs()
    assert output.read_bytes() == b'v\na\nNULL\n""\n'


def test_texts_that_readers_take_for_null_are_refused(lean: SparkSession, tmp_path: Path) -> None:
    """A value that is written as NULL is, or as an empty text, fails its bin with the file and the value."""
    rows = '{"v":null,"n":2}', '{"v":"NA","n":2}', '{"v":"","n":2}', '{"v":"a","n":1}'
    cases = [
        (
            {"nullValue": "NA"},
            "1.json cannot be merged: field 'v': the STRING 'NA' is written as the null",
        ),
        (
            {"nullValue": "1"},
            "3.json cannot be merged: field 'n': the BIGINT '1' is written as the null",
        ),
        ({"emptyValue": ""}, "2.json cannot be merged: field 'v': the STRING '' is written as NULL is"),
        ({"emptyValue": "NA"}, "1.json cannot be merged: field 'v': the STRING 'NA' is written as the empty"),
    ]
    for number, (options, expected) in enumerate(cases):
        writer = {"format": "csv", "options": options}
        landing = Landing(tmp_path / str(number), lean, reader="json", writer=writer)
        for name, content in enumerate(rows):
            landing.put_file(f"{name}.json", f"{content}\n")
        landing.run_job(at=1)

        reasons = [line["reason"] for line in landing.read_ledger() if line["outcome"] == "failed"]
        assert [expected in reason for reason in reasons] == [True]


def test_texts_that_csv_would_change_fail(lean: SparkSession, tmp_path: Path) -> None:
    """A part of a separator of several characters before it would move the end of a value."""
    writer = {"format": "csv", "options": {"sep": "::"}}
    landing = Landing(tmp_path, lean, writer=writer, failure_scope="flowfile", arrival_order="path")
    landing.put_records("a.json", {"v": ":x:y", "w": "a::b:"}, {"v": "", "w": None})
    landing.put_records("b.json", {"v": "x:", "w": "y"})
    landing.put_records("c.json", {"v": "x", "w": "y\0"})
    landing.put_records("d.json", {"v:": "x", "w": "y"})

    landing.run_job(at=1, flush=True)

    assert landing.read_merged() == ['v::w\n:x:y::"a::b:"\n""::\n']
    reasons = {line["sources"][0]["uri"][-6]: line["reason"] for line in landing.read_ledger()}
    assert "field 'v': the STRING 'x:' ends in a part of sep (set sep to one character)" in reasons["b"]
    assert "field 'w': the STRING 'y?' has the character NUL" in reasons["c"]
    assert "field 'v:': its name ends in a part of sep (set sep to one character)" in reasons["d"]


def test_failed_files_fail_the_run_if_asked(lean: SparkSession, tmp_path: Path) -> None:
    """No file is moved, and the error names the file, the value and its type."""
    landing = Landing(
        tmp_path, lean, reader={"format": "csv", "schema": "id INT, v STRING"}, fail_on=["failed-files"]
    )
    landing.put_file("good.csv", "id,v\n1,a\n")
    landing.put_file("bad.csv", 'id,v\n1,a\nx,"b\nc"\n', at=1)

    with pytest.raises(DataError, match=r"bad\.csv: .* column 'id': 'x' is not a valid INT"):
        landing.run_job(at=1)
    masked = r"bad\.csv: .* column 'id': '\*\*\*' is not a valid INT \([a-z]"
    with use_shown_rows(ShownRows(rows="keys")), pytest.raises(DataError, match=masked):
        landing.run_job(at=1)

    assert landing.list_names("in") == ["bad.csv", "good.csv"]
