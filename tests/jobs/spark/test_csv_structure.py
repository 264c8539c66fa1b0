"""Test the structure of CSV files, which tells what Spark's parser would make of them; without Spark."""

from __future__ import annotations

import gzip
import io

import pytest

from airflow_merge_provider.jobs.spark.files import csv_structure
from airflow_merge_provider.jobs.spark.files.csv_structure import CsvScanner

OPEN, AFTER = "a quoted value does not end", "text follows the end of a quoted value"
ESCAPE, WIDE, LINES = {"escape": "\\"}, {"sep": "||"}, {"multiLine": "false"}
TABS = {"sep": "\t", **LINES}
# The options and a file, with what is wrong with it, or its first record.
CASES: dict[str, tuple[dict[str, str], bytes, str | tuple[str, ...]]] = {
    "escape in texts": (ESCAPE, b'id,v\\w\n1,a\\b\n2,c\\\n3,"x\\"y\\\\"\n', ("id", "v\\w")),
    "escape at an end": (ESCAPE, b'id,v\n1,c\\\n2,"d\n', f"line 3: {OPEN}"),
    "escape of an end": (ESCAPE, b'id,v\n1,"a\\"\n2,c\n', f"line 3: {OPEN}"),
    "escape and more": (ESCAPE, b'id,v\n1,"a" x\n', f"line 2: {AFTER}"),
    "escape in a name": (ESCAPE, b'id,"v\\"w"\n1,x\n', "a name in its header has escaped characters"),
    "wide": (WIDE, b'id||"v||w"\n1||"x"\n', ("id", "v||w")),
    "wide open": (WIDE, b'id||v\n1||"x\n2||y\n', f"line 3: {OPEN}"),
    "wide and more": (WIDE, b'id||v\n1||"x"y\n', f"line 2: {AFTER}"),
    "wide column": (WIDE, b"v\n1\n\n2\n", "line 3: it is empty"),
    "tabs": (TABS, b"a\tb\n1\t2\n\t\n", "line 3: it has separators only"),
    "tabs after an empty line": (TABS, b'a\tb\n1\t2\n\n3\t"x"\n', ("a", "b")),
    "tabs in records": ({"sep": "\t"}, b'a\tb\n\t\n1\t"2"\n', ("a", "b")),
    "open line": (LINES, b'id,v\n1,"x\n2,"y"\n', f"line 2: {AFTER}"),
    "open line of plain ones": (LINES, b'id,v\n1,"x\n2,y\n3,""\n', f"line 2: {OPEN}"),
    "open last line": (LINES, b'id,v\n1,"x"\n2,"y\n', f"line 3: {OPEN}"),
    "more in a line": (LINES, b'id,v\n1,"x"y\n', f"line 2: {AFTER}"),
    "lines": (LINES, b'id,v\n1,"x"\n\n2,"y"\n', ("id", "v")),
    "gzip": ({}, gzip.compress(b'id,v\r\n1,"x"\r\n'), ("id", "v")),
    "open gzip": ({}, gzip.compress(b'id,v\n1,"x\n2,y\n'), f"line 3: {OPEN}"),
    "ends of gzip": ({}, gzip.compress(b'id,v\r\n1,"x"\n'), "line 2: it ends in another way"),
    "gzip without its name": ({}, gzip.compress(b'id,v\n1,"x"\n'), "it has bytes that are not UTF-8"),
    "line end": ({"lineSep": "\r\n"}, b"id,v\r\n1,x\r\n", ("id", "v")),
    "own line end": ({"lineSep": "|"}, b"id,v|1,x|", "its lines end with"),
    "other line end": ({"lineSep": "\n"}, b"id,v\r\n1,x\r\n", "its lines end with"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_structure_of_a_file(case: str) -> None:
    """Each record that Spark would join, cut or leave out is a problem."""
    options, content, expected = CASES[case]
    scanner = CsvScanner({"header": "true", **options})

    scanned = csv_structure._scan_file(
        scanner, (b"\r", b"\0", b'"'), 1 << 20, io.BytesIO(content), is_packed=case.endswith("gzip")
    )

    assert scanned is not None
    if isinstance(expected, str):
        assert expected in (scanned.problem or "")
    else:
        assert (scanned.cells, scanned.problem) == (expected, None)


def test_a_quote_that_does_not_end_in_a_large_file() -> None:
    """A large dataset is not read to its end, as docs/values.md says; merge record finds the quote."""
    content = b'id,v\n1,"x"\n2,"y\n'
    scanner = CsvScanner({"header": "true"})

    for share, problem in ((len(content), f"line 3: {OPEN}"), (len(content) - 1, None)):
        scanned = csv_structure._scan_file(scanner, (b'"',), share, io.BytesIO(content))
        assert scanned is not None
        assert (scanned.cells, scanned.is_text) == (("id", "v"), share == len(content))
        assert scanned.problem == (problem and f"{problem} (double the quotes in values)")
    assert OPEN in (scanner.scan_records(io.BytesIO(content)).problem or "")


def test_files_that_spark_has_to_scan() -> None:
    """A damaged one and a large one of gzip."""
    packed = gzip.compress(b'id,v\n1,"x"\n')
    for content, share in ((packed[:-9], 1 << 20), (packed + b"x", 1 << 20), (packed, 16)):
        file = io.BytesIO(content)
        assert csv_structure._scan_file(CsvScanner({}), (b'"',), share, file, is_packed=True) is None
