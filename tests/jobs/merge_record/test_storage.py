"""Test that a folder behaves alike on a local disk and in an object store."""

from __future__ import annotations

import gzip
import io
import uuid
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from airflow_merge_provider.core.errors import JobError, SetupError
from airflow_merge_provider.jobs.merge_record.files.storage import LocalStorage, open_storage as opened
from airflow_merge_provider.jobs.merge_record.readers import containers
from airflow_merge_provider.jobs.spark.files.file_problem import UnreadableError
from tests.e2e.store_runs import BrokenStream
from tests.odd_names import ODD


@pytest.fixture(params=["local", "objects"])
def storage(request: Any, tmp_path: Path) -> Any:
    location = str(tmp_path) if request.param == "local" else f"memory://bucket/{uuid.uuid4().hex}"
    return opened(f"{location}/{ODD}/here")


def test_files_are_listed_below_their_folder(storage: Any) -> None:
    """Files are listed below their folder with size and version; a missing folder has no files."""
    assert storage.list_files() == []
    storage.write_file("x/a b.json", b"12")
    storage.write_file("c", b"1")

    assert {entry.name: entry.size for entry in storage.list_files()} == {"x/a b.json": 2, "c": 1}
    assert all(entry.version and entry.modified > 0 for entry in storage.list_files())


def test_a_version_is_another_one_once_the_content_is(storage: Any) -> None:
    """The version of a file changes with its content, even if the size stays the same."""
    storage.write_file("a", b"1")
    (before,) = storage.list_files()
    storage.write_file("a", b"2")

    assert storage.list_files()[0].version != before.version


def test_a_name_is_created_once(storage: Any) -> None:
    """A name is created once: the second writer gets an error and changes nothing."""
    assert storage.create_file("d/lease", b"first") is True
    assert storage.create_file("d/lease", b"second") is False
    assert storage.read_file("d/lease") == b"first"
    assert [entry.name for entry in storage.list_files()] == ["d/lease"]


def test_what_is_written_replaces(storage: Any) -> None:
    """A write replaces the whole file, and no other file remains."""
    storage.write_file("a", b"long content")
    storage.write_file("a", b"short")

    assert storage.read_file("a") == b"short"
    assert len(storage.list_files()) == 1


def test_what_is_not_there_is_no_error(storage: Any) -> None:
    """Reading or deleting a missing file is not an error."""
    storage.delete_path("nothing")

    assert storage.read_file("nothing") is None
    assert storage.find_entry("nothing") is None


def test_files_and_folders_are_deleted(storage: Any) -> None:
    """Files are deleted, and a folder with all its content."""
    for name in ("f[1]/a", "f[1]/g/b*", "f1", "c?"):
        storage.write_file(name, b"1")
    prefixed = storage.list_prefixed("f[")

    storage.delete_path("f[1]")
    storage.delete_path("c?")

    assert prefixed == ["f[1]"]
    assert [entry.name for entry in storage.list_files()] == ["f1"]


def test_files_move_within_a_store_and_between_stores(storage: Any, tmp_path: Path) -> None:
    """Files are moved with their content within a store and between stores; existing files are replaced."""
    for other in (opened(f"{storage.location}-there"), opened(f"{tmp_path}/elsewhere")):
        storage.write_file("a[1]", b"content")
        other.write_file("x/b*", b"old")
        storage.move_file("a[1]", other, "x/b*")

        assert (storage.find_entry("a[1]"), other.read_file("x/b*")) == (None, b"content")


def test_files_move_to_another_disk_complete_and_with_their_time(tmp_path: Path) -> None:
    """A copy on another disk has the version of the file, and is never partial."""

    class Broken(LocalStorage):
        def open_file(self, name: str) -> BinaryIO:
            return BrokenStream(bytes(12 << 20))

    source = opened(str(tmp_path))
    with TemporaryDirectory(dir="/dev/shm") as other_disk:
        assert Path(other_disk).stat().st_dev != tmp_path.stat().st_dev
        target = opened(other_disk)
        source.write_file("a", b"content")
        entry = source.find_entry("a")
        assert entry is not None
        assert [source.copy_new("a", target, "b") for _ in range(2)] == [True, True]
        source.move_file("a", target, "x/a")
        versions = {copy.name: copy.version for copy in target.list_files()}
        assert versions == {"b": entry.version, "x/a": entry.version}
        assert source.find_entry("a") is None
        source.write_file("c", b"content")
        with pytest.raises(OSError, match="connection is lost"):
            Broken(str(tmp_path)).move_file("c", target, "c")
        assert target.find_entry("c") is None
        assert source.find_entry("c") is not None


def write_avro(sink: BinaryIO) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    fastavro.writer(sink, schema, [{"id": 1}])


IDS = pa.table({"id": [1]})


@pytest.mark.parametrize(
    ("name", "write", "read"),
    [
        ("f.parquet", partial(parquet.write_table, IDS), containers.parquet_footer),
        ("f.orc", partial(orc.write_table, IDS), containers.orc_footer),
        ("f.avro", write_avro, containers.avro_header),
        ("f.gz", lambda sink: sink.write(gzip.compress(b"text")), containers.measure_length),
    ],
)
def test_a_store_that_fails_is_no_damage_of_a_file(tmp_path: Path, name: str, write: Any, read: Any) -> None:
    """A connection that is lost while a file is read stops the run; a file that is cut fails alone."""

    class Lost(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise TimeoutError("the connection is lost")

    class Unreachable(LocalStorage):
        def open_file(self, name: str) -> BinaryIO:
            return Lost(content)

    sink = io.BytesIO()
    write(sink)
    content, storage = sink.getvalue(), opened(str(tmp_path))
    storage.write_file(name, content)
    storage.write_file(f"cut/{name}", content[: len(content) // 2])

    answers = containers.ask_files(storage, [name, f"cut/{name}"], read)
    with pytest.raises(JobError, match=rf"{name} cannot be read now: TimeoutError: the connection is lost"):
        containers.ask_files(Unreachable(str(tmp_path)), [name], read)

    assert not isinstance(answers[name], UnreadableError), answers
    assert isinstance(answers[f"cut/{name}"], UnreadableError)


def test_a_location_of_an_unknown_kind_is_an_error_of_the_setup() -> None:
    """A location of an unknown type is a setup error that names what is missing, before any work."""
    with pytest.raises(SetupError, match="no library for this kind of location"):
        opened("nosuch://bucket/x")
