"""Whether a folder behaves the same on a local disk and on a store of objects."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.jobs.merge_record.files.storage import open_storage as opened


@pytest.fixture(params=["local", "objects"])
def storage(request: Any, tmp_path: Path) -> Any:
    place = str(tmp_path) if request.param == "local" else f"memory://bucket/{uuid.uuid4().hex}"
    return opened(f"{place}/here")


def test_files_are_listed_below_their_folder(storage: Any) -> None:
    """With their size and a version; no folder is no file."""
    assert storage.files() == []
    storage.write("x/a b.json", b"12")
    storage.write("c", b"1")

    assert {entry.name: entry.size for entry in storage.files()} == {"x/a b.json": 2, "c": 1}
    assert all(entry.version and entry.modified > 0 for entry in storage.files())


def test_a_version_is_another_one_once_the_content_is(storage: Any) -> None:
    """Also where the size stays."""
    storage.write("a", b"1")
    (before,) = storage.files()
    storage.write("a", b"2")

    assert storage.files()[0].version != before.version


def test_a_name_is_created_once(storage: Any) -> None:
    """The second one is told, and changes nothing."""
    assert storage.create("d/lease", b"first") is True
    assert storage.create("d/lease", b"second") is False
    assert storage.read("d/lease") == b"first"
    assert [entry.name for entry in storage.files()] == ["d/lease"]


def test_what_is_written_replaces(storage: Any) -> None:
    """Whole, and nothing else is left."""
    storage.write("a", b"long content")
    storage.write("a", b"short")

    assert storage.read("a") == b"short"
    assert len(storage.files()) == 1


def test_what_is_not_there_is_no_error(storage: Any) -> None:
    """Neither to read nor to delete."""
    storage.delete("nothing")

    assert storage.read("nothing") is None
    assert storage.stat("nothing") is None


def test_files_and_folders_are_deleted(storage: Any) -> None:
    """A folder with all that is in it."""
    storage.write("f/a", b"1")
    storage.write("f/g/b", b"1")
    storage.write("c", b"1")

    storage.delete("f")
    storage.delete("c")

    assert storage.files() == []


def test_files_move_within_a_store_and_between_stores(storage: Any, tmp_path: Path) -> None:
    """Here or there, with their content; what is there already is replaced."""
    for other in (opened(f"{storage.location}-there"), opened(f"{tmp_path}/elsewhere")):
        storage.write("a", b"content")
        other.write_file("x/b", b"old")
        storage.move("a", other, "x/b")

        assert (storage.stat("a"), other.read_file("x/b")) == (None, b"content")


def test_a_location_of_an_unknown_kind_is_an_error_of_the_setup() -> None:
    """Before anything is done, with what is missing."""
    with pytest.raises(SetupError, match="no library for this kind of location"):
        opened("nosuch://bucket/x")
