"""Test which lines are passed to Spark as they are, and which files Spark's own reader reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from airflow_merge_provider.jobs.merge_record.files.listing import QueuedFile
from airflow_merge_provider.jobs.merge_record.files.storage import LocalStorage
from airflow_merge_provider.jobs.merge_record.readers.gather import LINE, gather_objects, is_worth_it


def write_files(tmp_path: Path, contents: Any) -> Any:
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    source = LocalStorage(str(tmp_path))
    files = [QueuedFile(entry, source.build_uri(entry.name), {}) for entry in source.list_files()]
    return source, sorted(files, key=lambda file: file.entry.name)


def test_lines_keep_their_order_and_their_file(tmp_path: Path) -> None:
    """Lines keep their order and their file, without blank lines, byte order marks and foreign line ends."""
    contents = {"a": b'{"id":1}\n\n {"id":2}  \n', "b": b"", "c": b'\xef\xbb\xbf{"id":3}\r\n{"id":4}'}
    source, files = write_files(tmp_path, contents)

    lines = gather_objects(source, files)

    names = {uri.rpartition("/")[2]: name for uri, name in lines.names.items()}
    a, c = names["a"], names["c"]
    rows = [(row["__merge_file"], row[LINE].strip()) for row in lines.table.to_pylist()]
    assert rows == [(a, '{"id":1}'), (a, '{"id":2}'), (c, '{"id":3}'), (c, '{"id":4}')]
    assert set(names) == {"a", "b", "c"}


def test_files_that_only_sparks_reader_understands_are_left_to_it(tmp_path: Path) -> None:
    """Spark's reader reads arrays, other encodings, other line ends and compressed files."""
    contents = {
        "array": b'[{"id":1}]\n',
        "latin": b'{"v":"\xe9"}\n',
        "mac": b'{"id":1}\r{"id":2}',
        "x.gz": b"{}",
    }
    source, files = write_files(tmp_path, {**contents, "plain": b'{"id":1}\n'})

    lines = gather_objects(source, files)

    assert [uri.rpartition("/")[2] for uri in lines.names] == ["plain"]
    assert lines.table.num_rows == 1


def test_numbers_that_a_line_would_lose_are_read_from_files(tmp_path: Path) -> None:
    """With a schema, files with such numbers are Spark's; those that a DOUBLE equals are not."""
    schema = StructType().add("v", "decimal(38,18)").add("t", "string").add("f", "double")
    schema = schema.add("\u00e9", "string").add('a"b', "string")
    contents = {
        "digits": b'{"v": 0.12345678901234567}', "exponent": b'{"f": 1e400}', "text": b'{"t": 1.10}',
        "word": b'{"f": [NaN]}', "record": b'{"t": {"x": 1.10}}', "list": b'{"t": [1.10]}',
        "zero": b'{"t": -0}', "integer of a double": b'{"f": 9007199254740993}',
        "escaped": rb'{"\u00e9": 1.10}', "escaped quote": rb'{"a\"b": 1.10}',
    }  # fmt: skip
    exact = {
        "double": b'{"f": 0.30000000000000004}', "integer": b'{"v": 9007199254740993, "t": "1.10"}',
        "words": b'{"t": "x, I say: Nancy"}',
    }  # fmt: skip
    source, files = write_files(tmp_path, {**contents, **exact})

    lines = gather_objects(source, files, schema)

    assert sorted(uri.rpartition("/")[2] for uri in lines.names) == sorted(exact)
    assert len(gather_objects(source, files).names) == len(contents) + len(exact)


def test_large_files_and_options_of_lines_are_sparks_matter(tmp_path: Path) -> None:
    """Spark reads large files, which it splits, and files with options for lines."""
    _, files = write_files(tmp_path, {"a": b"{}", "b": b"{}"})

    large = replace(files[0], entry=replace(files[0].entry, size=3 << 20))
    middling = replace(files[0], entry=replace(files[0].entry, size=1 << 18))

    assert is_worth_it(files, ["allowComments"], is_near=True, has_schema=False)
    assert not is_worth_it([large, files[1]], [], is_near=True, has_schema=True)
    assert is_worth_it([middling], [], is_near=True, has_schema=True)
    assert not is_worth_it([middling], [], is_near=True, has_schema=False)
    assert not is_worth_it(files, ["lineSep"], is_near=True, has_schema=False)
