"""Test input that cannot be read or written: the run reports the reason, and no bin is half published."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_merge_provider.core.errors import ConfigError, DataError
from tests.jobs.merge_record.contents import ROWS, write_content
from tests.jobs.merge_record.landing import Landing


@pytest.mark.parametrize(
    ("kind", "schema", "good", "bad"),
    [
        ("json", "id INT, v STRING", '{"id":1,"v":"x"}\n', '{"id":2,"v":"y"}\n{"id":"z","v":"y"}\n'),
        ("json", "id INT, v STRING", '{"id":1,"v":"x"}\n', '{"id":2,"v":"y"}{"id":3,"v":"y"}\n'),
        ("csv", "id INT, v STRING", "id,v\n1,x\n", "id,v\n2,y\nz,y\n"),
        (
            "json",
            "id INT, v STRING",
            '{"id":1,"v":"x"}\n',
            '{"id":2,"v":"\\ud83d\\ude00"}\n{"id":3,"v":"\\ud83d"}\n',
        ),
        ("json-array", "id INT, v STRING", '[{"id":1,"v":"x"}]', '[{"id":2},{"id":"z"}]'),
        ("json-array", "id INT, v STRING", '[{"id":1,"v":"x"}]', '[{"id":2}]\n[{"id":3}]\n'),
        ("xml", "id INT, v STRING", "<a><r><id>1</id></r></a>", "<a><r><id>z</id></r></a>"),
    ],
)
def test_a_malformed_record_fails_its_bin(
    kind: Any, schema: Any, good: Any, bad: Any, lean: SparkSession, tmp_path: Path
) -> None:
    """A malformed record fails its bin on arrival, including the good file in the same bin.

    It is found even in a column that a count would not read.
    """
    options = {"rowTag": "r"} if kind == "xml" else {}
    reader = {"format": kind, "schema": schema, "options": options}
    landing = Landing(tmp_path, lean, reader=reader, min_records=9)
    landing.put_file("a", good)
    landing.run_job()
    landing.put_file("b", bad, at=1)

    report = landing.run_job(at=1)

    assert landing.list_names("failure") == ["a", "b"]
    assert report["details"]["failed"][0]["code"] == "MALFORMED"
    assert landing.read_attributes(tmp_path / "failure" / "a")["failure.culprit"] == "b"


@pytest.mark.parametrize("validate", ["on_arrival", "on_merge"])
def test_xml_without_records_fails_alone(lean: SparkSession, tmp_path: Path, validate: str) -> None:
    """A file with other elements fails with their names; a root without elements has no records."""
    reader = {"format": "xml", "schema": "v STRING", "options": {"rowTag": "r"}}
    landing = Landing(tmp_path, lean, reader=reader, writer="json", validate=validate, arrival_order="path")
    contents = {
        "good": "<a><r><v>1</v></r></a>",
        "none": "<?xml version='1.0'?>\n<!-- <r> no record --><a></a>",
        "other": "<a><q><v>1</v></q></a>",
        "case": "<a><R><v>1</v></R></a>",
        "one": "<!-- <r/> --><R v='1'/>",
        "text": "<?xml version='1.0'?><R><![CDATA[<r>]]></R>",
        "empty": "",
        "cut": "<a><r><v>1</v></r>\n",
        "cut comment": "<a><r><v>1</v></r></a><!-- <r>",
        "cut tag": "<a><r><v>1</v></r><r",
        "cut text": "<a><r><v>1</v></r><![CDATA[ ",
    }
    for name, content in contents.items():
        landing.put_file(name, content)

    landing.run_job(at=1, flush=True)

    cut = ["cut", "cut comment", "cut tag", "cut text"]
    failed = ["case", *cut, "one", "other", "text"]
    assert (landing.read_merged(), landing.list_names("failure")) == (['{"v":"1"}\n'], failed)
    reason = landing.read_attributes(tmp_path / "failure" / "other")["failure.reason"]
    assert "it has no element <r>, but <a>, <q>, <v> (set the option rowTag to the name" in reason
    for name in cut:
        reason = landing.read_attributes(tmp_path / "failure" / name)["failure.reason"]
        assert "it ends inside an element, a tag or a comment (write the file again" in reason


def test_an_element_that_a_record_has_twice_fails_its_file(lean: SparkSession, tmp_path: Path) -> None:
    """Spark would read the last one; lists, attributes and names in another case come out."""
    schema = "_id STRING, v INT, V INT, l ARRAY<INT>, s STRUCT<_id: STRING, w: STRING>, z STRING"
    reader = {"format": "xml", "schema": schema, "options": {"rowTag": "r"}}
    landing = Landing(tmp_path, lean, reader=reader, writer="json", failure_scope="flowfile")
    values = "<v>1</v><V>2</V><l>1</l><l>2</l><s id='5'><w>x</w></s>"
    landing.put_file("good", f"<a><r id='7'>{values}</r></a>")
    landing.put_file("top", f"<a><r>{values}</r><r><v>1</v><v>1</v></r></a>")
    landing.put_file("inner", "<a><r><s><w/><w>y</w></s></r></a>")
    landing.put_file("record", "<a><r><s><w>x</w></s><s><w>y</w></s></r></a>")
    landing.put_file("prefix", "<a><r><_id>7</_id><_id>8</_id></r></a>")
    landing.put_file("both", "<a><r id='7'><_id>8</_id></r></a>")

    landing.run_job(at=1)

    assert landing.read_merged() == ['{"_id":"7","v":1,"V":2,"l":[1,2],"s":{"_id":"5","w":"x"},"z":null}\n']
    for name, column in {"top": "v", "inner": "s.w", "record": "s", "prefix": "_id"}.items():
        reason = landing.read_attributes(tmp_path / "failure" / name)["failure.reason"]
        assert f"column '{column}': a record has this element more than once (write one, or set" in reason
    reason = landing.read_attributes(tmp_path / "failure" / "both")["failure.reason"]
    assert "column '_id': a record has an attribute and an element of this name (rename one" in reason


def test_braces_inside_an_object_are_no_second_one(lean: SparkSession, tmp_path: Path) -> None:
    """Braces inside an object do not count as a second object on the line.

    Spark reads large files; its parser would silently take the first object of a line.
    """
    lines = [
        '{"v":"}{"}',
        '{"v":"} , {"} ',
        '{"l":[{"a":1}, {"a":2}]}',
        '{"o":{"a":{}},"v":"x"}',
        "{}",
        ' {"v":"}"}',
    ]
    landing = Landing(tmp_path, lean, reader={"format": "json", "schema": None, "options": {}}, min_records=1)
    landing.put_file("large", "\n".join(lines * 2_000) + "\n")

    report = landing.run_job()

    assert (report["counts"]["merged"], report["counts"]["failed_files"]) == (1, 0)
    merged = max((tmp_path / "merged").glob("*.json"), key=lambda file: file.stat().st_size)
    assert merged.read_text().splitlines()[3] == '{"l":null,"o":{"a":{}},"v":"x"}'


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("json", b'{"id": 1}\n{"id": \n'),
        ("json", b"[1, 2]\n"),
        ("json", b'{"id": 1, "v": "\xe9"}\n'),
        ("json", b'{"id": ' + b"[" * 50 + b"]" * 50 + b"}\n"),
        ("json-array", b'[{"id": 1}'),
        ("json-array", b'[{"id": 1}]\n[{"id": 2}]\n'),
        ("json-array", b'{"id": 1}\n{"id": 2}\n'),
        ("csv", b"id,v\n1\n"),
        ("json.gz", gzip.compress(b'{"id": 1}\n' * 999)[:-20]),
        ("json.gz", gzip.compress(b'{"id": 1}{"id": 2}\n')),
        ("json.gz", gzip.compress(b'{"id": 1},{"id": 2}\n')),
        ("json.gz", gzip.compress(b'{"id": {"a": 1}} more\n')),
        ("csv.gz", gzip.compress(b"id,v\n" + b"1,x\n" * 99_999)[:-20]),
        ("parquet", b""),
        ("orc", b"ORC"),
        ("avro", b"Obj\x01"),
        ("avro", b"no avro"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_whose_schema_cannot_be_told_fails_alone(
    kind: Any, bad: Any, lean: SparkSession, tmp_path: Path
) -> None:
    """A file whose schema cannot be determined fails alone; the other files of its bin are merged."""
    kind, _, packed = kind.partition(".")
    name = f"bad.{packed}" if packed else "bad"
    landing = Landing(tmp_path / "landing", lean, reader=kind, min_records=9)
    landing.put_file("good", write_content(kind, ROWS[:1], lean, tmp_path))
    landing.put_file(name, bad, at=1)

    report = landing.run_job(at=2)

    assert (landing.list_names("failure"), report["details"]["failed"][0]["code"]) == ([name], "UNREADABLE")
    assert report["counts"]["open_files"] == 1


def test_a_header_that_is_not_the_schemas_fails_alone(lean: SparkSession, tmp_path: Path) -> None:
    """A file whose header differs from the schema fails alone.

    Bound by position, its values would be in other columns.
    """
    landing = Landing(tmp_path, lean, reader={"format": "csv", "schema": "name STRING, age INT"})
    landing.put_file("a.csv", "age,name\n1,x\n")
    landing.put_file("b.csv", "name,age\nx,1\n", at=1)

    landing.run_job(at=2)

    assert landing.read_merged() == ["name,age\nx,1\n"]
    reason = landing.read_attributes(tmp_path / "failure" / "a.csv")["failure.reason"]
    assert "its header is age, name, but the schema columns are name, age" in reason


def test_records_without_fields_are_records(lean: SparkSession, tmp_path: Path) -> None:
    """JSON records without fields are records; for a format that needs a field only their file fails."""
    for writer, merged, failed in (("json", ["{}\n{}\n"], []), ("json-array", ["[{},\n{}]\n"], []),
                                   ("parquet", [], ["a.json"])):  # fmt: skip
        landing = Landing(tmp_path / writer, lean, writer=writer)
        landing.put_file("a.json", "{}\n{}\n")
        landing.run_job()
        assert (landing.read_merged(), landing.list_names("failure")) == (merged, failed)


def test_what_cannot_be_written_does_not_block_the_runs_to_come(lean: SparkSession, tmp_path: Path) -> None:
    """With ``fail_on``, a value that does not fit the writer's schema fails the run; another schema helps."""
    landing = Landing(tmp_path, lean, fail_on="failed-files")
    landing.put_records("a.json", {"id": "x"})

    with pytest.raises(DataError, match="field 'id': the STRING 'x' is not a value of INT"):
        landing.run_job(writer={"format": "json", "schema": "id INT"})
    landing.run_job(writer={"format": "json", "schema": "id STRING"})

    assert landing.read_ids() == [["x"]]


def test_a_source_that_grows_while_it_is_merged_is_noticed(lean: SparkSession, tmp_path: Path) -> None:
    """A source that changes during its merge is not published; the next run merges its new content."""
    landing = Landing(tmp_path, lean, reader={"format": "json", "schema": "id INT"})
    landing.put_records("a.json", {"id": 1})
    engine = landing.engine
    stage = engine.stage_merges

    def stage_grown(*args: Any) -> Any:
        landing.put_records("a.json", {"id": 1}, {"id": 2}, at=1)
        return stage(*args)

    engine.stage_merges = stage_grown  # type: ignore[assignment]
    report = landing.run_job()
    engine.stage_merges = stage
    assert landing.list_outputs() == []
    assert any("1 files have changed" in warning and "a.json" in warning for warning in report["warnings"])

    landing.run_job(at=1)
    assert landing.read_ids() == [[1, 2]]


def test_a_schema_that_is_none_is_an_error_of_the_configuration(lean: SparkSession, tmp_path: Path) -> None:
    """An invalid schema is a configuration error with Spark's message, raised before anything is read."""
    landing = Landing(tmp_path, lean, reader={"format": "json", "schema": "id WHAT EVER"})

    with pytest.raises(ConfigError, match=r"reader\.schema"):
        landing.run_job()


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro"])
def test_a_damaged_page_fails_the_bin_and_not_the_run(kind: Any, lean: SparkSession, tmp_path: Path) -> None:
    """A damaged page fails the bin and not the run.

    The footer is valid and has more records than can be read.
    """
    rows = [{"id": number, "v": f"{number:x}" * 40} for number in range(2000)]
    content = bytearray(write_content(kind, rows, lean, tmp_path))
    middle = len(content) // 2
    content[middle : middle + 400] = b"\xff" * 400
    landing = Landing(tmp_path / "landing", lean, reader=kind, min_records=9, max_records="unlimited")
    landing.put_file("a", write_content(kind, ROWS[:1], lean, tmp_path))
    landing.put_file("bad", bytes(content), at=1)
    landing.put_file("z", write_content(kind, ROWS, lean, tmp_path), at=2)

    report = landing.run_job(at=3)

    assert "bad" in landing.list_names("failure")
    assert report["details"]["failed"][0]["code"] in {"MALFORMED", "UNREADABLE"}
    assert landing.list_outputs() == []
    assert report["counts"]["open_files"] >= 1


@pytest.mark.parametrize("scope", ["bin", "flowfile"])
def test_checked_on_merge_the_same_bin_fails_later(scope: Any, lean: SparkSession, tmp_path: Path) -> None:
    """With checks on merge, a malformed file is counted on arrival, and its bin fails when it is merged."""
    reader = {"format": "json", "schema": "id INT"}
    landing = Landing(tmp_path, lean, reader=reader, min_records=3, validate="on_merge", failure_scope=scope)
    landing.put_records("a.json", {"id": 1})
    landing.put_records("b.json", {"id": "z"}, at=1)
    waiting = landing.run_job(at=1)
    landing.put_records("c.json", {"id": 3}, at=2)
    landing.put_records("d.json", {"id": 4}, at=3)

    landing.run_job(at=3)

    assert (waiting["counts"]["failed"], waiting["counts"]["open_files"]) == (0, 2)
    if scope == "bin":
        assert (landing.list_names("failure"), landing.read_ids()) == (
            [f"{name}.json" for name in "abcd"],
            [],
        )
    else:
        assert (landing.list_names("failure"), landing.read_ids()) == (["b.json"], [[1, 3, 4]])
    assert landing.read_attributes(tmp_path / "failure" / "b.json")["failure.culprit"] == "b.json"


def test_a_record_count_is_believed_and_found_out(lean: SparkSession, tmp_path: Path) -> None:
    """The record count attribute decides which bin is full; a wrong count fails its bin on merge."""
    reader = {"format": "csv", "schema": "id INT"}
    landing = Landing(tmp_path, lean, reader=reader, min_records=3, max_records=3, trust_record_count=True,
                   correlation_attribute_name="k")  # fmt: skip
    for name, record_count in (("right", "3"), ("wrong", "4"), ("none", "many")):
        landing.put_file(f"{name}.csv", "id\n1\n2\n3\n", k=name, **{"record.count": record_count})

    report = landing.run_job()

    assert report["counts"]["merged"] == 2
    assert landing.list_names("failure") == ["wrong.csv"]
    reason = landing.read_attributes(tmp_path / "failure" / "wrong.csv")["failure.reason"]
    assert "it has 3 records, but 4 are expected" in reason


def test_packed_files_count_by_what_they_hold(lean: SparkSession, tmp_path: Path) -> None:
    """Compressed files count with the size of their content, so that a bin of small files can be full."""
    reader = {"format": "json", "schema": "id INT"}
    for basis, merged in (("input", 0), ("uncompressed", 1)):
        landing = Landing(tmp_path / basis, lean, reader=reader, min_bin_size="5 KB", size_basis=basis)
        landing.put_file("a.json.gz", gzip.compress(b'{"id": 1}\n' * 1000))
        assert landing.run_job()["counts"]["merged"] == merged
