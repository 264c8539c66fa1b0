"""Test that datasets of text files come out with every value, or are refused by name."""

from __future__ import annotations

import bz2
import gzip
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, use_shown_rows
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError
from airflow_merge_provider.jobs.delta.table import pin_dataset, read_dataset
from airflow_merge_provider.jobs.spark.errors import convert_error
from tests.odd_names import ODD

LARGE = "x" * 10_000_000
LARGE_FILE = f"id,v\n3,{LARGE}\n".encode()
NUMBERS = '{"id": 1, "v": 9007199254740993}\n{"id": 2, "v": 1.5}\n'
HEADER = {"header": "true"}
INFER = {**HEADER, "inferSchema": "true"}
XML = {"rowTag": "r"}
# The format, the options and the files of a dataset, and its rows.
READ: dict[str, tuple[str, dict[str, str], dict[str, Any], list[tuple[Any, ...]]]] = {
    "decimals": ("json", {"prefersDecimal": "true"}, {"a": NUMBERS},
                 [(1, Decimal("9007199254740993.0")), (2, Decimal("1.5"))]),
    "texts": ("json", {"primitivesAsString": "true"}, {"a": NUMBERS},
              [("1", "9007199254740993"), ("2", "1.5")]),
    "doubles": ("json", {}, {"a": '{"v": 0.30000000000000004}\n{"v": 1}\n{"v": 6.108497300695254e+16}\n'},
                [(0.30000000000000004,), (1.0,), (6.108497300695254e16,)]),
    "a name of Spark": ("json", {}, {"a": '{"_corrupt_record": "x", "id": 1}\n'}, [("x", 1)]),
    "another quote": ("csv", {**HEADER, "quote": "'"}, {"a": "id,v\n1,'it''s'\n"}, [("1", "it's")]),
    "permissive": ("json", {"mode": "PERMISSIVE"}, {"a": NUMBERS}, [(1, None), (2, 1.5)]),
    "permissive lines": ("csv", {**HEADER, "mode": "PERMISSIVE"}, {"a": "id,v\n1,x,y\n2\n"},
                         [("1", "x"), ("2", None)]),
    "texts of all": ("json", {"primitivesAsString": "true"},
                     {"a": '{"v": 1.50}\n{"v": "x"}\n{"v": {"x": NaN}}\n'},
                     [("1.50",), ("x",), ('{"x": NaN}',)]),
    "one case in two records": ("xml", XML,
                                {"a": "<a><r><s><v>1</v></s><t><V>2</V></t></r></a>"}, [(("1",), ("2",))]),
    "no rows": ("xml", XML, {"a": "<a/>", "b": "<a><r v='1'/></a>", "c": "",
                             "d": "<?xml version='1.0'?><!-- x --><a xmlns:q='u' xsi:t='v'>\n</a>"},
                [("1",)]),
    "an empty element": ("xml", XML, {"a": "<a><q/><r/></a>", "b": "<a><r><v>1</v></r></a>"},
                         [("1",), (None,)]),
    "namespace": ("xml", {**XML, "ignoreNamespace": "true"}, {"a": "<a xmlns:n='u'><n:r><v>1</v></n:r></a>"},
                  [("1",)]),
    "xml": ("xml", XML, {"a": "<a><r><id>007</id><v> 1.10 </v></r></a>"}, [("007", " 1.10 ")]),
    "line ends": ("csv", HEADER, {"a": 'id,v\n1,"x\r\ny"\n', "b": 'id,v\r\n2,"p\nq"\r\n3,"\r"\r\n'},
                  [("1", "x\r\ny"), ("2", "p\nq"), ("3", "\r")]),
    "order of columns": ("csv", HEADER, {"a 1": "id,v\n1,x\n", "b%20c": "v,id\ny,2\n"},
                         [("1", "x"), ("2", "y")]),
    "comments": ("csv", {**HEADER, "comment": "#"}, {"a": "#1\nid,v\n1,x\n", "b": "#2\n\nid,v\n2,y\n"},
                 [("1", "x"), ("2", "y")]),
    "header in latin-1": ("csv", {**HEADER, "encoding": "ISO-8859-1"},
                          {"a": 'id,é\n1,"é\nx"\n'.encode("latin-1")}, [("1", "é\nx")]),
    "carriage returns": ("csv", HEADER, {"a": "id,v\r1,x\r2,y\r"}, [("1", "x"), ("2", "y")]),
    "one column": ("csv", HEADER,
                   {"a": '\nv\n1\n  \n""\n"x\n\ny"\n\n', "b.gz": gzip.compress(b"\nv\n3\n \n\n")},
                   [("  ",), (" ",), ("",), ("1",), ("3",), ("x\n\ny",)]),
    "wide separator": ("csv", {**HEADER, "sep": "||"}, {"a": "id||v\n1||x\n"}, [("1", "x")]),
    "escapes": ("csv", {**HEADER, "escape": "\\"}, {"a": 'id,v\n1,a\\b\n2,c\\\n3,"d\\"e\\\\"\n'},
                [("1", "a\\b"), ("2", "c\\"), ("3", 'd"e\\')]),
    "quotes inside": ("csv", HEADER, {"a": 'id,v\n1,5" pipe\n2,"x\n"\n3,""""\n'},
                      [("1", '5" pipe'), ("2", "x\n"), ("3", '"')]),
    "byte order mark": ("csv", HEADER, {"a": "\ufeffid,v\n1,\ufeffx\n", "b": "v,id\r\ny,2"},
                        [("1", "\ufeffx"), ("2", "y")]),
    "mark of no header": ("csv", {}, {"a": "\ufeff1,x\n", "b": '\ufeff"2",y\n'}, [("1", "x"), ("2", "y")]),
    "UTF-16": ("csv", {**HEADER, "encoding": "UTF-16"}, {"a": 'id,v\n1,"é\nx"\n2,'.encode("utf-16")},
               [("1", "é\nx"), ("2", None)]),
    "UTF-16 of one order": ("csv", {**HEADER, "encoding": "UTF-16BE"},
                            {"a": "id,v\r\n1,é\r\n".encode("utf-16-be")}, [("1", "é")]),
    "line break in the header": ("csv", HEADER, {"a": '"i\nd",v\n1,x\n', "b": 'v,"i\nd"\ny,2\n'},
                                 [("1", "x"), ("2", "y")]),
    "no last end": ("csv", HEADER, {"a": "id,v\n1,x", "b": 'id,v\r\n2,"y"',
                                           "c.gz": gzip.compress(b"id,v\n3,z")},
                    [("1", "x"), ("2", "y"), ("3", "z")]),
    "large values": ("csv", HEADER, {"a": f'id,v\n1,{LARGE}\n2,"{LARGE}\n"\n',
                                            "b.gz": gzip.compress(LARGE_FILE)},
                     [("1", LARGE), ("2", f"{LARGE}\n"), ("3", LARGE)]),
    "a name of none": ("csv", HEADER, {"a": ",v,\n1,x,y\n"}, [("1", "x", "y")]),
    "no header": ("csv", {}, {"a": "1,x\r\n", "b": "2,y\n"}, [("1", "x"), ("2", "y")]),
    "inferred": ("csv", {**HEADER, "inferSchema": "true"}, {"a": "id,v\n1,1.50\n2,3\n"},
                 [(1, 1.5), (2, 3.0)]),
    "brackets in texts": ("json", {}, {"a": '\ufeff{"id": {"v": 1}, "t": "}{"}\n\n{"t": "ok"}\r\n'},
                          [(None, "ok"), ((1,), "}{")]),
    "pairs": ("json", {}, {"a": r'{"v": "\\ud83d \ud83d\ude00"}'}, [("\\ud83d \U0001f600",)]),
    "lenient": ("json", {"allowComments": "true"}, {"a": "{'id': {'v': 1}} // one\n"}, [((1,),)]),
    "array": ("json", {}, {"a": '[{"id": 1}, {"id": 2}]'}, [(1,), (2,)]),
    "documents": ("json", {"multiLine": "true"}, {"a": '[{"id": 1},\n{"id": 2}]\n', "b": '{\n"id": 3}'},
                  [(1,), (2,), (3,)]),
    "latin": ("json", {"encoding": "latin-1"}, {"a": b'{"v": "\xe9", "id": {"v": 1}}\r\n{"v": "e"}'},
              [(None, "e"), ((1,), "é")]),
    "wide": ("json", {"encoding": "utf-16-le", "lineSep": "\n"},
             {"a": '{"v": "é", "s": {"v": 1}}'.encode("utf-16-le")}, [((1,), "é")]),
}  # fmt: skip
RECORDS = r"/a has text that is not one JSON record and nothing else: "
REFUSED: dict[str, tuple[str, dict[str, str], dict[str, Any], str]] = {
    "number": ("json", {}, {"a": NUMBERS},
               r"/a: column 'v': '9007199254740993' is not a valid DOUBLE .*prefersDecimal"),
    "infinity": ("json", {}, {"a": '{"l": [{"v": 1e400}]}\n'},
               r"column 'l\.element\.v': '1e400' is not a valid DOUBLE"),
    "digits": ("json", {}, {"a": '{"v": 123456789.123456789012}\n'},
               r"'123456789\.123456789012' is not a valid DOUBLE"),
    "inferred": ("csv", {**HEADER, "inferSchema": "true"}, {"a": "v\n1.5\n9007199254740993\n"},
                 "'9007199254740993' is not a valid DOUBLE .*inferSchema"),
    "other columns": ("csv", HEADER, {"a": "id,v\n1,x\n", "b": "id,w\n2,y\n"},
                      r"/b has the columns id, w, but .*/a has id, v"),
    "column twice": ("csv", HEADER, {"a": "id,id\n1,2\n"}, "/a: its header has the column 'id' more"),
    "other case of CSV": ("csv", HEADER, {"a": "id,ID\n1,2\n"},
                          r"/a: its header has columns whose names differ in case only, 'id'"),
    "open quote": ("csv", HEADER, {"a": 'id,v\n1,"x\n2,y\n'}, "/a: line 3: a quoted value does not end"),
    "text after a quote": ("csv", HEADER, {"a": 'id,v\n1,"x" \n'}, "/a: line 2: text follows"),
    "empty line": ("csv", HEADER, {"a": "v\n1\n\n2\n"}, "/a: line 3: it is empty, .*quote empty values"),
    "empty line of two": ("csv", {}, {"a": '"1"\n2\n\n\n3\n'}, "/a: line 3: it is empty, "),
    "blanks": ("csv", {**HEADER, "multiLine": "false"}, {"a": "v\n1\n  \n2\n"}, "/a: line 3: it is empty"),
    "empty line of gzip": ("csv", HEADER, {"a.gz": gzip.compress(b"v\n1\n\n2\n")},
                           "/a.gz: line 3: it is empty, .*quote empty values"),
    "empty line of bzip2": ("csv", HEADER, {"a.bz2": bz2.compress(b"v\n1\n\n2\n")},
                            "/a.bz2: a line is empty, .*quote empty values"),
    "blanks of bzip2": ("csv", {**HEADER, "sep": "\t", "multiLine": "false"},
                        {"a.bz2": bz2.compress(b"v\tw\n1\t2\n\t\n")}, "/a.bz2: a line is lost: it has sep"),
    "open quote of gzip": ("csv", HEADER, {"a.gz": gzip.compress(b'id,v\n1,"x\n2,y\n')},
                           "/a.gz: line 3: a quoted value does not end"),
    "open quote of bzip2": ("csv", HEADER, {"a.bz2": bz2.compress(b'id,v\n1,"x\n2,"y"\n')},
                            "error while reading file .*/a.bz2"),
    "open quote of wide": ("csv", {**HEADER, "sep": "||"}, {"a": 'id||v\n1||"x\n2||y\n'},
                           "/a: line 3: a quoted value does not end"),
    "other line end": ("csv", {**HEADER, "lineSep": "\n"}, {"a": "id,v\r\n1,x\r\n"},
                       r"/a: its lines end with '.r.n', not lineSep .remove the option"),
    "digits of a format": ("csv", {**HEADER, "inferSchema": "true",
                                   "timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSSSSS"},
                           {"a": "v\n2024-05-01 10:00:00.123456789\n"},
                           "the option timestampFormat='.*' leaves out a part of times .write at most six"),
    "line ends": ("csv", HEADER, {"a": "id,v\r\n1,x\n"}, "/a: line 2: it ends in another way than the first"),
    "NUL in CSV": ("csv", HEADER, {"a": "id,v\n1,\0\n"}, "/a: a value has the character NUL"),
    "no name": ("json", {}, {"a": '{"s": {"": 1, "b": 2}}\n'},
                "/a has a field without a name, which Spark leaves out: .*give the field a name"),
    "no record": ("json", {}, {"a": '{"v": +1}\n'}, r"""/a: the record '{"v": \+1}' cannot be read"""),
    "no header": ("csv", HEADER, {"a": "\n\n"}, "its files have no columns and no records"),
    "two records": ("json", {}, {"a": '{"id": 1} {"id": 2}\n'}, RECORDS + r".*write a record on each line"),
    "more text": ("json", {}, {"a": '{"id": {"v": 1}} garbage\n'}, RECORDS + ".*garbage"),
    "two in quotes": ("json", {}, {"a": "{'id': 1} {'id': 2}"}, RECORDS),
    "two arrays": ("json", {}, {"a": '[{"id": 1}] [{"id": 2}]'}, RECORDS),
    "between brackets": ("json", {}, {"a": '{"id": 1}] [{"id": 2}'}, RECORDS),
    "two documents": ("json", {"multiLine": "true"}, {"a": '{"id": 1}\n{"id": 2}'}, RECORDS),
    "two if permissive": ("json", {"mode": "PERMISSIVE"}, {"a": '{"id"\n{"id": 1} {"id": 2}'}, RECORDS),
    "two in UTF-16": ("json", {"encoding": "utf-16", "multiLine": "true"},
                      {"a": '{"id": 1} {"id": 2}'.encode("utf-16")}, RECORDS),
    "half a pair": ("json", {}, {"a": '{"v": "\\ud83dx"}'}, r"/a has half of a surrogate pair.*ud83dx"),
    "bytes of JSON": ("json", {}, {"a": b'{"v": "\xff"}'}, "/a has bytes that are not UTF-8: .*encoding"),
    "bytes of CSV": ("csv", HEADER, {"a": b"v\n\xe9\n"}, "/a: it has bytes that are not UTF-8"),
    "bytes of XML": ("xml", XML, {"a": b"<a><r><v>\xe9</v></r></a>"}, "/a has bytes that are not UTF-8"),
    "bytes of ASCII": ("csv", {**HEADER, "encoding": "US-ASCII"}, {"a": "v\né\n"},
                       "/a: it has bytes that are not ASCII"),
    "half a pair of CSV": ("csv", {**HEADER, "encoding": "UTF-16LE"}, {"a": b"v\0\n\0\x3d\xd8\n\0"},
                    "/a: it has bytes that are not UTF-16-LE"),
    "no order of bytes": ("csv", {**HEADER, "encoding": "UTF-16"}, {"a": "v\nx\n".encode("utf-16-le")},
                          "/a: it has no byte order mark .set the option encoding with its order"),
    "too many values": ("csv", HEADER, {"a": 'id,v\n1,"x\ny",z\n'},
                        r"the record '1,\"x\\ny\",z' cannot be read, it has more values than columns"),
    "a comment in a text": ("xml", XML, {"a": "<a><r><v>x<!-- y -->z</v></r><r><v>w</v></r></a>"},
                            "an element 'v' has its text in several parts, with a comment"),
    "no decimal": ("json", {"prefersDecimal": "true"}, {"a": '{"v": 1e3}'},
                   "such as 1e3, is no DECIMAL of Spark .set the option primitivesAsString"),
    "encoding of Spark": ("csv", {**HEADER, "encoding": "windows-1252"}, {"a": "v\nx\n"},
                          "charset.* is invalid: .*iso-8859-1"),
    "bytes of text": ("text", {}, {"a": b"\xe9"}, "/a has bytes that are not UTF-8: .*write the file in"),
    "twice": ("json", {}, {"a": '{"v": 1, "v": 2}'}, "has the field 'v' more than once .give the fields"),
    "other case": ("json", {}, {"a": '{"v": 1, "V": 2}'},
                   "the fields '[vV]' in .*/a and '[vV]' in .*/a, whose names differ in case only"),
    "case within": ("json", {}, {"a": '{"l": [{"v": 1, "V": 2}]}'},
                    r"fields 'l\.element\.[vV]' in .*/a and 'l\.element\.[vV]' in .*/a"),
    "case of records": ("json", {}, {"a": '{"s": {"v": 1}}\n{"s": {"V": 2}}\n'},
                        r"fields 's\.[vV]' in .*/a and 's\.[vV]' in .*/a, whose names differ"),
    "case of an escape": ("json", {}, {"a": '{"ab": 1}\n', "b": '{"\\u0041b": 2}\n'},
                          "fields '(Ab' in .*/b and 'ab' in .*/a|ab' in .*/a and 'Ab' in .*/b), whose"),
    "case in other quotes": ("json", {}, {"a": "{'ab': 1}\n{'Ab': 2}\n"}, "'ab' in .*, whose names differ"),
    "types in other quotes": ("json", {}, {"a": "{'v': 1.50}\n{'v': '1.50'}\n"},
                              "field 'v' is a number in .*/a, but a text in .*/a"),
    "types without quotes": ("json", {"allowUnquotedFieldNames": "true", "allowNumericLeadingZeros": "true"},
                             {"a": "{v: 01.50}\n{v: '01.50'}\n"}, "field 'v' is a number in .*, but a text"),
    "no name in other quotes": ("json", {}, {"a": "{'': 1, 'b': 2}\n"},
                                "/a has a field without a name, which Spark leaves out: "),
    "an apostrophe": ("json", {}, {"a": '{"it\'s": 1, "?": 1}\n{"it\'s": "x", "?": 1}\n'},
                      "field \"it's\" is a number in .*/a, but a text in .*/a"),
    "a question mark": ("json", {}, {"a": '{"?": 1}\n{"?": "x"}\n'},
                        "field '.' has values of several types .write values of one type"),
    "case of XML": ("xml", XML, {"a": "<a><r><v>1</v></r></a>", "b": "<a><r><V>1</V></r></a>"},
                    "the fields '[vV]' in .*/[ab] and '[vV]' in .*/[ab], whose names differ in case only"),
    "case in XML": ("xml", XML, {"a": "<a><r><s><v>1</v><V>2</V></s></r></a>"},
                    r"fields 's\.[vV]' in .*/a and 's\.[vV]' in .*/a, .*give the fields different names"),
    "attributes": ("xml", XML, {"a": "<a><r v='1' V='2'/></a>"}, "the fields '_[vV]' in .*/a and '_[vV]'"),
    "attribute and element": ("xml", XML, {"a": "<a><r v='1'><_V>2</_V></r></a>"}, "fields '_[vV]' in .*/a"),
    "case of XML in UTF-16": ("xml", {**XML, "encoding": "UTF-16"},
                              {"a": "<a><r><v>1</v><V>2</V></r></a>".encode("utf-16")},
                              "the fields '[vV]' in .*/a and '[vV]'"),
    "no records of XML": ("xml", {"rowTag": "q"}, {"a": "<a><q/></a>", "b c": "<a><r><v>1</v></r></a>"},
                          r"/b c: it has no element <q>, but <a>, <r>, <v> .set the option rowTag"),
    "one element": ("xml", XML, {"a": "<R id='1' v='5'/>"}, "/a: it has no element <r>, but <R> .set the"),
    "one text": ("xml", XML, {"a": "<R>5</R>"}, "/a: it has no element <r>, but <R> .set the"),
    "comment and CDATA": ("xml", XML, {"a": "<R><!-- <r/> --><![CDATA[<r>]]></R>"},
                          "/a: it has no element <r>, but <R> .set the"),
    "case of a tag": ("xml", {"rowTag": "R"}, {"a": "<a><r>1</r></a>"},
                      "it has no element <R>, but <a>, <r>"),
    "number and text": ("json", {}, {"a": '{"v": 1.50}\n', "b": '{"v": "1.50"}\n'},
                        "field 'v' is a number in .*/a, but a text in .*/b .*primitivesAsString"),
    "boolean and text": ("json", {"mode": "PERMISSIVE"},
                         {"a": '{"s": {"v": true}}\n{"s": {"v": "true"}}\n'},
                         r"field 's\.v' is a boolean in .*/a, but a text in .*/a"),
    "record and list": ("json", {"multiLine": "true"}, {"a": '[{"v": {}},\n{"v": []}]'},
                        "field 'v' is a list in .*/a, but a record in .*/a"),
    "items of a list": ("json", {}, {"a": '{"v": [1, "x"]}'},
                        "field 'v' is a list in .*/a, with items of several types"),
    "NaN": ("json", {"prefersDecimal": "true"}, {"a": '{"w": 1, "v": NaN}'},
            "'v': 'NaN' is not a value of JSON"),
    "options": ("json", {"encoding": "utf-16"}, {"a": '{"v": 1}'.encode("utf-16")},
                "cannot read the files with these options: .*UTF-16"),
}  # fmt: skip


def read_rows(
    spark: SparkSession, folder: Path, kind: str, options: dict[str, str], files: dict[str, Any]
) -> Any:
    """Write the files of a dataset, and return its rows in the order of their first column."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    dataset = resolve_dataset({"dataset": str(folder), "format": kind, "options": options}, None)
    rows = read_dataset(spark, pin_dataset(spark, dataset)).collect()
    return sorted((tuple(row) for row in rows), key=repr)


@pytest.mark.parametrize("case", READ)
def test_values_of_text_datasets_come_out(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """Each value is the one of the file, whatever type Spark infers and however the lines end."""
    kind, options, files, expected = READ[case]

    assert read_rows(spark, tmp_path / "my data", kind, options, files) == expected


@pytest.mark.parametrize("case", REFUSED)
def test_values_that_would_change_are_refused(spark: SparkSession, tmp_path: Path, case: str) -> None:
    """The error names the file, the column, the value, its type and the remedy."""
    kind, options, files, reason = REFUSED[case]

    with pytest.raises((PySparkException, DataError, ConfigError), match=reason):
        read_rows(spark, tmp_path / "f", kind, options, files)


def test_errors_of_files_have_no_values_where_rows_are_masked(spark: SparkSession, tmp_path: Path) -> None:
    """They name the file and what is wrong with it, in each of the places that show a part of a record."""
    cases: dict[str, tuple[str, dict[str, str], str | bytes, str]] = {
        "more": ("json", {}, '{"v": 1} planted', "not one JSON record"),
        "alone": ("json", {}, '{"v": planted}', "cannot be read, and no other one"),
        "word": ("json", {"prefersDecimal": "true"}, '{"w": "planted", "v": NaN}', "'v': .* is not a value"),
        "half": ("json", {}, r'{"v": "planted\ud800"}', "half of a surrogate pair"),
        "no name": ("json", {}, '{"": "planted", "v": 1}', "a field without a name"),
        "text": ("text", {}, b"planted\xe9", "not UTF-8"),
        "csv": ("csv", HEADER, b"v\nplanted\xe9\n", "not UTF-8"),
        "values": (
            "csv",
            HEADER,
            "it's,v\n1,planted's column 'v' planted,3\n",
            r"f: the record '\*\*\*' cannot be",
        ),
        "column": (
            "csv",
            INFER,
            "it's\n1.5\n9007199254740993\n",
            "f: column \"it's\": '.*' is not a valid DOUBLE",
        ),
    }
    for name, (kind, options, text, reason) in cases.items():
        with use_shown_rows(ShownRows(rows="keys")):
            with pytest.raises((DataError, PySparkException)) as raised:
                read_rows(spark, tmp_path / name, kind, options, {"f": text})
            shown = str(convert_error(raised.value))
        assert re.search(reason, shown), shown
        assert f"{name}/f" in shown
        assert not re.search("planted|9007", shown), shown


@pytest.mark.parametrize(
    ("kind", "options", "text", "is_whole"),
    [
        ("csv", HEADER, "v\n{}\n", False),
        ("json", {}, '{{"v": "{}"}}\n', False),
        ("json", {"encoding": "UTF-16LE", "lineSep": "\n"}, '{{"v": "{}"}}', False),
        ("text", {}, "{}\n", False),
        ("json", {"multiLine": "true"}, '[{{"v": "{}"}}]', True),
        ("xml", XML, "<a><r><v>{}</v></r></a>", True),
        ("csv", {}, "{}\n", True),
    ],
    ids=["csv", "json", "UTF-16", "text", "documents", "xml", "no header"],
)
def test_names_are_no_patterns(
    spark: SparkSession, tmp_path: Path, kind: str, options: dict[str, str], text: str, is_whole: bool
) -> None:
    """Each character of a folder and of a file is literal, also if a pattern would match another file.

    Where Spark itself takes the names of whole files for patterns, to find their columns, they are refused.
    """
    folder = tmp_path / ODD
    folder.parent.mkdir(parents=True)
    encoding = options.get("encoding", "utf-8")
    names = {"[ab] {c,d}*?%20": "1", "a c%20": "2", "%2520": "3"}
    files = {name: text.format(value).encode(encoding) for name, value in names.items()}
    # Files with other ends of lines are read apart.
    files["a c%20"] = files["a c%20"].replace(b"\n", b"\r\n")

    if is_whole:
        with pytest.raises(DataError, match=r"has '.+' in its path, which Spark takes for a pattern .rename"):
            read_rows(spark, folder, kind, options, files)
        folder = tmp_path / "p %20%2F%#+&=^'`é"
        files = {"%2520": files.pop("%2520")}
        assert read_rows(spark, folder, kind, options, files) == [("3",)]
        return
    assert read_rows(spark, folder, kind, options, files) == [("1",), ("2",), ("3",)]


def read_table(spark: SparkSession, folder: Path, columns: str, **files: str) -> Any:
    """Return the rows of a table in the catalog that has these files, in no defined order."""
    kind = columns.partition("USING ")[2].partition(" ")[0]
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_is_", "=")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, newline="")
    spark.sql(f"CREATE TABLE default.texts {columns} LOCATION '{folder}'")
    try:
        if "PARTITIONED" in columns:
            spark.sql("ALTER TABLE default.texts RECOVER PARTITIONS")
        dataset = resolve_dataset({"dataset": "default.texts", "format": kind}, None)
        return sorted(tuple(row) for row in read_dataset(spark, pin_dataset(spark, dataset)).collect())
    finally:
        spark.sql("DROP TABLE default.texts")


def test_tables_of_text_files_are_read_by_their_types(spark: SparkSession, tmp_path: Path) -> None:
    """Texts are values of the types, in columns by name, also in partitions; others are an error."""
    typed = "(id INT, v DECIMAL(10,2)) USING csv OPTIONS (header 'true', sep ';')"
    parted = "(id INT, v STRING, s STRING) USING csv OPTIONS (header 'true') PARTITIONED BY (s)"
    texts = "(id STRING, v STRING) USING csv OPTIONS (header 'true')"
    numbers = "(id INT, v DECIMAL(10,2)) USING json"

    assert read_table(spark, tmp_path / "a", typed, x="id;v\n1;1.20\n") == [(1, Decimal("1.20"))]
    values = {"s_is_a__x": 'id,v\n1,"p\r\nq"\n', "s_is_b__y": "id,v\r\n2,z\r\n"}
    assert read_table(spark, tmp_path / "b", parted, **values) == [(1, "p\r\nq", "a"), (2, "z", "b")]
    with pytest.raises(PySparkException, match=r"column 'v': '1\.239' is not a valid DECIMAL\(10,2\)"):
        read_table(spark, tmp_path / "c", typed, x="id;v\n1;1.239\n")
    with pytest.raises(PySparkException, match=r"column 'v': '1\.239' is not a valid DECIMAL\(10,2\)"):
        read_table(spark, tmp_path / "d", numbers, x='{"id": 1, "v": 1.239}\n')
    twice = "/h/x has a record with a field more than once: 'id' .write one value"
    with pytest.raises(DataError, match=twice):
        read_table(spark, tmp_path / "h", numbers, x='{"id": 1, "v": 1.2, "id": 2}\n')
    elements = "(v INT, s STRUCT<w: STRING>, l ARRAY<INT>) USING xml OPTIONS (rowTag 'r')"
    row = "<v>1</v><s><w>x</w></s><l>1</l><l>2</l>"
    rows = f"<a><r>{row}</r><r/></a>"
    assert read_table(spark, tmp_path / "i", elements, x=rows.replace("<r/>", "")) == [(1, ("x",), [1, 2])]
    repeated = "column 's.w': a record has this element more than once .write one, or set an ARRAY"
    with pytest.raises(PySparkException, match=repeated):
        read_table(spark, tmp_path / "j", elements, x=rows.replace("<w>x", "<w/><w>x"))
    with pytest.raises(DataError, match=r"/k/x: it has no element <r>, but <a>, <q>, <v>"):
        read_table(spark, tmp_path / "k", elements, x="<a><q><v>1</v></q></a>")
    with pytest.raises(DataError, match=r"/e/x has the columns v, id, but the table has id, v .write"):
        read_table(spark, tmp_path / "e", texts, x="v,id\nx,1\n")
    with pytest.raises(DataError, match="/f/x: its header has the column 'id' more than once"):
        read_table(spark, tmp_path / "f", texts, x="id,id\n1,2\n")
    dropping = "(id INT) USING csv OPTIONS (header 'true', mode 'DROPMALFORMED')"
    with pytest.raises(DataError, match="texts: the option mode='DROPMALFORMED' leaves out records"):
        read_table(spark, tmp_path / "g", dropping, x="id\n1\nx\n")
    lines = "(v STRING) USING text OPTIONS (encoding 'latin-1')"
    with pytest.raises(DataError, match="texts: the option encoding='latin-1' has no effect on texts"):
        read_table(spark, tmp_path / "l", lines, x="1\n")
    assert read_table(spark, tmp_path / "m", "(v STRING) USING text", x="1\n") == [("1",)]


def test_tables_of_json_have_the_names_of_their_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads NULL for a field whose name differs in case, also inside values."""
    nested = "(s STRUCT<v: INT>, m MAP<STRING, STRUCT<w: INT>>, l ARRAY<STRUCT<u: INT>>) USING json"
    record = '{"s": {"v": 1}, "m": {"W": {"w": 2}}, "l": [{"u": 3}], "other": {"V": [], "a b": 1}}\n'
    assert read_table(spark, tmp_path / "a", nested, x=record) == [((1,), {"W": (2,)}, [(3,)])]
    for name, path in {"v": "s", "w": "m.value", "u": "l.element"}.items():
        other = record.replace(f'{{"{name}"', f'{{"{name.upper()}"')
        case = f"/{name}/x: a record has the field '{path}.{name.upper()}', but the table has '{path}.{name}'"
        with pytest.raises(DataError, match=case):
            read_table(spark, tmp_path / name, nested, x=f"{record}{other}")


def test_options_of_times_cut_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A time has all its digits in the zone of the files, or the option is refused that leaves out some."""
    zoned = "(v TIMESTAMP) USING csv OPTIONS (header 'true', timeZone 'Europe/Berlin', locale 'de-DE')"
    lines = "v\n2024-05-01 10:00:00.5\n2024-05-01T10:00:00+00:00\n2024-05-01\n"
    times = [str(time) for (time,) in read_table(spark, tmp_path / "a", zoned, x=lines)]
    assert times == ["2024-04-30 22:00:00", "2024-05-01 08:00:00.500000", "2024-05-01 10:00:00"]
    with pytest.raises(PySparkException, match=r"column 'v': '.*1234567' is not a valid TIMESTAMP"):
        read_table(spark, tmp_path / "b", zoned, x="v\n2024-05-01 10:00:00.1234567\n")
    cut = {
        "v TIMESTAMP_NTZ": ("timestampNTZFormat", "yyyy-MM-dd HH:mm:ss.SSSSSSS"),
        "v DATE": ("dateFormat", "dd.MM.yyyy HH:mm"),
    }
    for column, (option, text) in cut.items():
        table = f"({column}) USING csv OPTIONS (header 'true', {option} '{text}')"
        with pytest.raises(ConfigError, match=f"the option {option}=.* leaves out a part of times .write"):
            read_table(spark, tmp_path / option, table, x="v\n1\n")


def test_tables_of_xml_have_each_attribute_and_element(spark: SparkSession, tmp_path: Path) -> None:
    """An element whose name begins with the prefix of attributes is counted like any other one."""
    named = "(_id STRING, id INT, s STRUCT<_n: INT, _VALUE: STRING>) USING xml OPTIONS (rowTag 'r')"
    record = "<a><r _id='x' id='y'><id>2</id><s n='3'>t</s></r></a>"
    assert read_table(spark, tmp_path / "n", named, x=record) == [("y", 2, (3, "t"))]
    assert read_table(spark, tmp_path / "o", named, x="<a><r><_id>z</_id></r></a>") == [("z", None, None)]
    twice = "column '_id': a record has this element more than once .write one"
    with pytest.raises(PySparkException, match=twice):
        read_table(spark, tmp_path / "p", named, x="<a><r><_id>1</_id><_id>2</_id></r></a>")
    both = "column '{}': a record has an attribute and an element of this name .rename one of them"
    with pytest.raises(PySparkException, match=both.format("s._n")):
        read_table(spark, tmp_path / "q", named, x="<a><r><s n='1'><_n>2</_n></s></r></a>")
    entries = "(m MAP<STRING, STRING>) USING xml OPTIONS (rowTag 'r')"
    with pytest.raises(ConfigError, match=r"a MAP of XML has one of the elements of a name .set a STRUCT"):
        read_table(spark, tmp_path / "s", entries, x="<a><r><m><k>1</k><k>2</k></m></r></a>")
    no_prefix = named.replace(" 'r'", " 'r', attributePrefix ''")
    with pytest.raises(PySparkException, match=both.format("id")):
        read_table(spark, tmp_path / "r", no_prefix, x="<a><r id='1'><id>2</id></r></a>")


def test_options_do_not_switch_off_the_checks_of_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """Words for special values are read beside numbers, and another locale of numbers is refused."""
    special_texts = "locale 'en-US', nanValue '-', positiveInf 'max', negativeInf 'min'"
    special = f"(v DOUBLE, d DECIMAL(10,2)) USING csv OPTIONS (header 'true', {special_texts})"
    lines = "v,d\nmax,1.20\nmin,\n0.1,0\n"
    values_read = read_table(spark, tmp_path / "s", special, x=lines)
    assert {v for v, _ in values_read} == {float("inf"), float("-inf"), 0.1}
    assert math.isnan(read_table(spark, tmp_path / "t", special, x="v,d\n-,1\n")[0][0])
    for number, reason in {
        "1,1.239": r"'1\.239' is not a valid DECIMAL",
        "1e400,1": "'1e400' is not",
    }.items():
        with pytest.raises(PySparkException, match=reason):
            read_table(spark, tmp_path / number[:3], special, x=f"v,d\n{number}\n")
    german = special.replace("en-US", "de-DE")
    with pytest.raises(ConfigError, match="texts: the option locale='de-DE' gives numbers of the column 'v'"):
        read_table(spark, tmp_path / "u", german, x="v,d\n1,1\n")
