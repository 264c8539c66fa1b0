"""Test atomic creation of files, on file systems with and without support for unnamed files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_merge_provider.jobs.merge_record.files import storage
from airflow_merge_provider.jobs.merge_record.files.storage import NewFile


@pytest.fixture(params=["unnamed", "named"], autouse=True)
def file_system(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "named":
        monkeypatch.setattr(storage, "_UNNAMED", 0)


def write_text(path: Any, content: Any, *, replaces: Any) -> Any:
    with NewFile(path) as new:
        new.file.write(content)
        return new.link_replacing() if replaces else new.link_new()


def test_a_file_is_created_once(tmp_path: Path) -> None:
    """A file is created once, with its folder if there is none; the second writer changes nothing."""
    path = tmp_path / "a" / "b.json"

    assert write_text(path, b"first", replaces=False)
    assert not write_text(path, b"second", replaces=False)

    assert path.read_bytes() == b"first"
    assert [file.name for file in path.parent.iterdir()] == ["b.json"]


def test_a_file_is_replaced(tmp_path: Path) -> None:
    """A file is replaced whether or not it exists; no other file remains."""
    path = tmp_path / "b.json"

    for content in (b"first", b"second", b""):
        write_text(path, content, replaces=True)
        assert path.read_bytes() == content

    assert [file.name for file in tmp_path.iterdir()] == ["b.json"]
    assert oct(path.stat().st_mode)[-3:] == "644"


def test_a_file_that_is_not_finished_never_was(tmp_path: Path) -> None:
    """Of a write that does not finish, neither the file nor a part of it remains."""
    with NewFile(tmp_path / "b.json") as new:
        new.file.write(b"half")

    assert list(tmp_path.iterdir()) == []


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path) -> None:
    """A name of the maximum length works, because the name of a part is not derived from it."""
    path = tmp_path / ("a" * 255)

    assert write_text(path, b"x", replaces=False)
    write_text(path, b"y", replaces=True)

    assert path.read_bytes() == b"y"
