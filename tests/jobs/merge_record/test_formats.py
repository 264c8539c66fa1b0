"""Test reading and writing of records with Spark: all formats, record order, and malformed records."""

from __future__ import annotations

import gzip
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest
from pyarrow import csv, orc, parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, use_shown_rows
from airflow_merge_provider.jobs.merge_record.readers import containers
from airflow_merge_provider.jobs.merge_record.readers.scan import FileGroup, find_named_file
from airflow_merge_provider.jobs.merge_record.writing import get_suffix
from airflow_merge_provider.jobs.spark.files.file_problem import UnreadableError, describe_damage
from tests.jobs.merge_record.contents import ROWS, XML, write_content
from tests.jobs.merge_record.landing import Landing
from tests.odd_names import ODD


@pytest.mark.parametrize("kind", ["csv", "json", "json-array", "avro", "parquet", "orc", "xml"])
def test_every_format_is_read(kind: Any, lean: SparkSession, tmp_path: Path) -> None:
    """Two files of each format are read in order, with nulls and quotes, whatever their names are."""
    reader = XML if kind == "xml" else kind
    landing = Landing(tmp_path / ODD, lean, reader=reader, writer="json", min_records=3, max_records=3)
    name = "[x] {a,b}*?%20"
    landing.put_file(f"{name}/b {name}.{kind}", write_content(kind, ROWS[:1], lean, tmp_path), at=0)
    # A name that the pattern of the other one would match.
    landing.put_file(f"x a%20/b x a%20.{kind}", write_content(kind, ROWS[1:], lean, tmp_path), at=1)

    report = landing.run_job(at=2)

    (output,) = landing.list_outputs()
    assert [json.loads(line) for line in output.read_text().splitlines()] == ROWS
    assert landing.read_attributes(output)["record.count"] == "3"
    assert report["details"]["reasons"] == {"FULL": 1}


@pytest.mark.parametrize("kind", ["csv", "json-array", "avro", "parquet", "orc", "xml"])
def test_every_format_is_written(kind: Any, lean: SparkSession, tmp_path: Path) -> None:
    """Two bins give one file each, which another MergeRecord can read, even if a bin has no records."""
    options = {"rowTag": "r"} if kind == "xml" else {}
    landing = Landing(
        tmp_path, lean, reader={"format": "json", "schema": "id BIGINT, v STRING"},
        writer={"format": kind, "options": options}, correlation_attribute_name="k", max_bin_age="1 sec",
    )  # fmt: skip
    landing.put_records("a.json", *ROWS[:2], k="1")
    landing.put_records("b.json", ROWS[2], k="2")
    landing.put_records("c.json", ROWS[2], k="1")
    landing.put_records("d.json", k="3")
    landing.run_job(at=9)

    second_landing = Landing(tmp_path / "again", lean, reader=XML if kind == "xml" else kind, writer="json")
    sizes = {}
    for path in landing.list_outputs():
        sizes[landing.read_attributes(path)["k"]] = path.stat().st_size
        second_landing.put_file(path.name, path.read_bytes(), k=landing.read_attributes(path)["k"])
    second_landing.run_job(
        correlation_attribute_name="k", attribute_sources=["sidecar"], max_bin_age="0 secs", at=9
    )

    records = {
        second_landing.read_attributes(path)["k"]: [
            json.loads(line) for line in path.read_text().splitlines()
        ]
        for path in second_landing.list_outputs()
    }
    assert records["1"] == [*ROWS[:2], ROWS[2]]
    assert records["2"] == [ROWS[2]]
    assert records["3"] == []
    assert len(sizes) == 3


def test_names_of_all_kinds_are_read_as_they_are(lean: SparkSession, tmp_path: Path) -> None:
    """Names with spaces, commas, brackets, percent signs and other scripts are read.

    A colon goes to failure.
    """
    names = [
        "a b.json", "c,d.json", "e[1].json", "p%20q.json", "ü é.json", "star*.json", "q?.json", "{x}.json",
        "k=v x/z.json", "plus+.json", "hash#1.json", "semi;.json", "back\\slash.json", "dollar$(x).json",
        "q'uote\".json", "nb\u00a0sp.json", "tilde~^`|.json",
    ]  # fmt: skip
    landing = Landing(tmp_path, lean, arrival_order="path")
    for number, name in enumerate(sorted(names)):
        landing.put_records(name, {"id": number})
    landing.put_records("colon:1.json", {"id": -1})

    report = landing.run_job(at=1)

    assert landing.read_ids() == [list(range(len(names)))]
    assert landing.list_names("original") == sorted(names)
    assert (landing.list_names("failure"), report["details"]["failed"][0]["code"]) == (
        ["colon:1.json"],
        "UNREADABLE",
    )


def test_the_order_holds_where_spark_splits_files(lean: SparkSession, tmp_path: Path) -> None:
    """Records keep the queue order of their files, whatever the size and blocks of the files.

    Spark splits the large file among the small ones.
    """
    landing = Landing(tmp_path, lean, arrival_order="path", max_records="unlimited")
    expected = []
    for number in range(30):
        ids = [f"{number}-{index}" for index in range(20_000 if number == 17 else 2)]
        expected += ids
        landing.put_records(f"{number:03d}.json", *({"id": id_} for id_ in ids))
    before = lean.conf.get("spark.sql.files.maxPartitionBytes")
    lean.conf.set("spark.sql.files.maxPartitionBytes", "40000")
    lean.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        landing.run_job(at=1)
    finally:
        lean.conf.set("spark.sql.files.maxPartitionBytes", before)
        lean.conf.set("spark.sql.shuffle.partitions", "1")

    assert landing.read_ids() == [expected]


def test_schemas_of_json_are_inferred_by_file(lean: SparkSession, tmp_path: Path) -> None:
    """33 and 33.5 give different JSON schemas; numbers and nested values are kept."""
    landing = Landing(tmp_path, lean)
    landing.put_records("a.json", {"id": 1, "n": 33, "o": {"l": [1, 2]}}, at=0)
    landing.put_records("b.json", {"id": 2, "n": 33.5, "o": {"l": [1]}}, at=1)
    landing.put_records(
        "c.json", {"id": 3, "n": 7, "o": {"l": []}}, {"id": 4, "n": 2**40, "o": {"l": [5]}}, at=2
    )
    landing.put_file("e.json", gzip.compress(b'{"id":5,"n":1,"o":{"l":[9]}}\n'), at=3)
    (tmp_path / "in" / "e.json").rename(tmp_path / "in" / "e.json.gz")
    landing.put_file("empty.json", "", at=4)

    report = landing.run_job(at=5)

    assert report["counts"]["open_files"] == 1, "the empty one has too few records"
    assert landing.read_merged() == [
        (
            '{"id":1,"n":33,"o":{"l":[1,2]}}\n{"id":3,"n":7,"o":{"l":[]}}\n'
            '{"id":4,"n":1099511627776,"o":{"l":[5]}}\n{"id":5,"n":1,"o":{"l":[9]}}\n'
        ),
        '{"id":2,"n":33.5,"o":{"l":[1]}}\n',
    ]


def test_a_union_holds_files_of_all_schemas(lean: SparkSession, tmp_path: Path) -> None:
    """In a union missing fields are null, numbers are widened, and values that do not fit become strings."""
    landing = Landing(tmp_path, lean, schema_merge="union", arrival_order="path")
    landing.put_records("a.json", {"id": 1, "n": 33, "m": 1})
    landing.put_records("b.json", {"id": 2, "n": 33.5, "m": {"x": 1}})
    landing.put_records("c.json", {"id": 3, "w": True})

    landing.run_job()

    (merged,) = landing.read_merged()
    assert [json.loads(line) for line in merged.splitlines()] == [
        {"id": 1, "m": "1", "n": 33.0, "w": None},
        {"id": 2, "m": '{"x": 1}', "n": 33.5, "w": None},
        {"id": 3, "m": None, "n": None, "w": True},
    ]


def test_csv_files_share_a_bin_only_with_their_own_header(lean: SparkSession, tmp_path: Path) -> None:
    """A permuted CSV header is another schema and another bin; with union, columns are matched by name."""
    settings = {"reader": "csv", "arrival_order": "path", "original_action": "keep"}
    landing = Landing(tmp_path, lean, **settings)
    landing.put_file("a.csv", "name,age\nMark,33\n")
    landing.put_file("b.csv", "age,name\n45,John\n")
    landing.put_file("c.csv", "name,age\n007,2\n,\n")
    landing.put_file("d.csv", "")
    landing.put_file("e.csv", "name,name\n1,2\n")
    landing.run_job()
    assert landing.read_merged() == ["age,name\n45,John\n", "name,age\nMark,33\n007,2\n,\n"]
    assert landing.list_names("failure") == ["d.csv", "e.csv"]

    union_landing = Landing(tmp_path / "united", lean, **settings, schema_merge="union")
    for name in "abc":
        union_landing.put_file(f"{name}.csv", (tmp_path / "in" / f"{name}.csv").read_bytes())
    union_landing.run_job()
    assert union_landing.read_merged() == ["name,age\nMark,33\nJohn,45\n007,2\n,\n"]


def test_csv_without_a_header(lean: SparkSession, tmp_path: Path) -> None:
    """CSV columns without a header are matched by position, with and without a schema."""
    reader = {"format": "csv", "options": {"header": "false", "sep": ";"}}
    landing = Landing(tmp_path, lean, reader=reader, arrival_order="path")
    landing.put_file("a.csv", "Mark;33\n")
    landing.put_file("b.csv", "John;45\n")
    landing.run_job()
    assert landing.read_merged() == ["Mark;33\nJohn;45\n"]


def test_files_are_split_by_fields_first(lean: SparkSession, tmp_path: Path) -> None:
    """Parts go into bins by their field values, nulls share a group, a source moves with its last part."""
    landing = Landing(
        tmp_path, lean, partition_by={"store": "store.id"}, correlation_attribute_name="store",
        min_records=2, attribute_sources=[], arrival_order="path",
    )  # fmt: skip
    stores = {"a": ["x", "y", "x", None], "b": ["y", None]}
    for name, values in stores.items():
        rows = [{"id": f"{name}{n}", "store": {"id": value, "z": 1}} for n, value in enumerate(values)]
        landing.put_records(f"{name}.json", *rows)
    landing.put_records(
        "c.json", {"id": "c0", "store": {"id": "w", "z": 1}}, {"id": "c1", "store": {"id": "x", "z": 1}}
    )

    first = landing.run_job()

    assert landing.read_ids() == [["a0", "a2", "c1"], ["a1", "b0"], ["a3", "b1"]]
    assert {landing.read_attributes(path).get("store") for path in landing.list_outputs()} == {"x", "y", None}
    assert landing.list_names("original") == ["a.json", "b.json"]
    assert (landing.list_names("in"), first["counts"]["open_files"]) == (["c.json"], 1)

    landing.run_job(at=1, flush=True)
    assert landing.list_names("original") == ["a.json", "b.json", "c.json"]
    merges = landing.read_attributes(tmp_path / "original" / "c.json")["merge.uuid"].split(",")
    assert len(merges) == 2
    assert landing.read_ids()[-1] == ["c0"]


def test_ten_bins_of_one_schema_are_one_write(
    lean: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten bins of one schema are one write: Spark jobs are counted by output schemas, not by bins."""
    from airflow_merge_provider.jobs.merge_record import writing

    saved: list[Any] = []
    save = writing._save_frame

    def save_and_count(*args: Any, **kwargs: Any) -> Any:
        saved.append(args)
        return save(*args, **kwargs)

    monkeypatch.setattr(writing, "_save_frame", save_and_count)
    landing = Landing(tmp_path, lean, correlation_attribute_name="k", max_bins="unlimited")
    for number in range(30):
        landing.put_records(f"{number}.json", {"id": number}, k=str(number % 10))

    report = landing.run_job()

    assert (report["counts"]["merged"], len(saved)) == (10, 1)
    assert sorted(id_ for ids in landing.read_ids() for id_ in ids) == list(range(30))


def test_a_writers_schema_decides_the_fields(lean: SparkSession, tmp_path: Path) -> None:
    """A writer's schema determines the fields, their types and their order."""
    landing = Landing(tmp_path, lean, writer={"format": "json", "schema": "v STRING, id STRING, w INT"})
    landing.put_records("a.json", {"id": 1, "v": "x", "u": 0})
    landing.run_job()

    assert landing.read_merged() == ['{"v":"x","id":"1","w":null}\n']


def test_a_first_fragment_without_records_tells_no_fields(lean: SparkSession, tmp_path: Path) -> None:
    """If the first fragment has no records, the output has the fields of the next one and all its records.

    The name of a JSON array ends in .json.
    """
    landing = Landing(tmp_path, lean, writer="json-array", merge_strategy="Defragment")
    for index, ids in enumerate(([], [1, 2])):
        fragment = {"fragment.identifier": "f", "fragment.count": "2", "fragment.index": str(index)}
        landing.put_records(f"{index}.json", *({"id": id_} for id_ in ids), **fragment)

    landing.run_job()

    (output,) = landing.list_outputs()
    assert json.loads(output.read_text()) == [{"id": 1}, {"id": 2}]
    assert output.suffix == ".json"


def test_an_avro_file_tells_its_schema_and_records(lean: SparkSession, tmp_path: Path) -> None:
    """Schema and records of an Avro file are read without a library; a truncated file is rejected."""
    content = write_content("avro", ROWS, lean, tmp_path)
    file = tmp_path / "a.avro"
    file.write_bytes(content)
    with file.open("rb") as opened:
        schema, records = containers.avro_header(opened)
    assert (schema.names, records) == (("id", "v"), 3)
    assert re.search('"type" ?: ?"record"', schema.text or "")

    # Java, and so Spark, does not check the defaults of fields.
    field = {"name": "v", "type": ["null", "int"], "default": None}
    odd = io.BytesIO()
    fastavro.writer(odd, {"type": "record", "name": "r", "fields": [field], "doc": "123"}, [{"v": 1}])
    text = odd.getvalue().replace(b": null", b": 12345").replace(b'"123"', b'"12"')
    assert containers.avro_header(io.BytesIO(text))[1] == 1
    file.write_bytes(content[:-3])
    with file.open("rb") as opened, pytest.raises(UnreadableError, match="damaged"):
        containers.avro_header(opened)


@pytest.mark.parametrize(
    ("part", "suffix"),
    [
        ("part-00000-0d9e7a1c-65f0-4f0e-8a52-7f1d20b4e9a1.c000.json", ".json"),
        ("part-00001-0d9e7a1c-65f0-4f0e-8a52-7f1d20b4c345.c000.json.gz", ".json.gz"),
        ("part-00000-c123c123-c123-c123-c123-c123c123c123-c000.snappy.parquet", ".snappy.parquet"),
        ("part-00000-0d9e7a1c-65f0-4f0e-8a52-7f1d20b4e9a1.c012.txt", ".json"),
    ],
)
def test_an_output_ends_as_its_part_does(part: Any, suffix: Any) -> None:
    """The name of an output ends with its part number, not with the random part of Spark's file names.

    One in 65 UUIDs ends with the same digits as its counter.
    """
    assert get_suffix(f"write-0/__merge_slot=0/{part}") == suffix


def test_errors_of_readers_have_no_values() -> None:
    """Where rows may not be shown, a reader names the class of an error, because its text may have values."""
    with use_shown_rows(ShownRows(rows="keys")):
        with pytest.raises(
            UnreadableError, match=r"its Parquet footer is damaged: ArrowInvalid: \*\*\* \(write"
        ):
            containers.parquet_footer(io.BytesIO(b"planted, which is no footer"))
        with pytest.raises(pa.ArrowInvalid, match="planted") as failure:
            csv.read_csv(io.BytesIO(b"a,b\n1,2,planted\n"))
        assert describe_damage("x", failure.value).startswith("x: ArrowInvalid: *** (")
        assert describe_damage("x", OSError("Not an ORC file")).startswith("x: Not an ORC file (")
    assert "planted" in describe_damage("x", failure.value)


def test_only_an_error_of_a_file_names_it() -> None:
    """A value may be the text of the error of another file."""
    spool: Any = SimpleNamespace(find_location=lambda uri: uri)
    records: Any = SimpleNamespace(spool=spool)
    groups = [FileGroup(Any, ("/in/a.json", "/in/b.json"), (), 1)]
    text = "Encountered error while reading file file:///in/b.json."

    failure = PySparkException(f"[FAILED_READ_FILE.NO_HINT] {text} SQLSTATE: KD001")
    assert find_named_file(groups, records, failure) == "/in/b.json"
    for failure in (
        PySparkException(f"[MALFORMED_RECORD_IN_PARSING] {text} SQLSTATE: 22023"),
        PySparkException(f"[FAILED_READ_FILE.NO_HINT] {text.replace('b', 'c')} {text} SQLSTATE: KD001"),
    ):
        assert find_named_file(groups, records, failure) is None


def test_nanoseconds_of_orc_and_intervals_of_parquet_are_refused(tmp_path: Path) -> None:
    """Spark cuts the ones, and takes the others for bytes."""
    sink = io.BytesIO()
    orc.write_table(
        pa.table({"c": pa.array([[1_714_521_600_000_000_001]], pa.list_(pa.timestamp("ns")))}), sink
    )
    path = tmp_path / "a.parquet"
    duckdb.sql(f"COPY (SELECT INTERVAL 3 MONTH AS c) TO '{path}' (FORMAT parquet)")

    with pytest.raises(UnreadableError, match=r"column 'c' has a time with nanoseconds.* .write Parquet"):
        containers.orc_footer(sink)
    with pytest.raises(UnreadableError, match=r"column 'c' has the type interval, .*\(write it as text\)"):
        containers.parquet_footer(io.BytesIO(path.read_bytes()))


def test_list_views_of_parquet_are_lists() -> None:
    """The file has a list, whatever type of pyarrow its metadata names."""
    sink = io.BytesIO()
    parquet.write_table(pa.table({"c": pa.array([[1], None], pa.list_view(pa.int64()))}), sink)

    schema, records = containers.parquet_footer(sink)

    assert (schema.fields[0]["type"], records) == ({"array": "long"}, 2)
