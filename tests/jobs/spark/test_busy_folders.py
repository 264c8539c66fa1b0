"""Test removal of folders into which a Spark job of a killed or overtaken run still writes."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

from airflow_merge_provider.jobs.merge_record.files.storage import open_storage


def test_a_folder_is_removed_while_somebody_writes_into_it(tmp_path: Path) -> None:
    """A folder is removed without waiting for its writer; files written later are removed the next time."""
    remove, stop = open_storage(str(tmp_path)).delete_path, threading.Event()

    def keep_writing() -> None:
        for number in count():
            path = tmp_path / "staging" / f"part-{number % 7}" / str(number)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            except (FileNotFoundError, FileExistsError):
                # The folder is removed between two calls: ``mkdir`` then says that it exists.
                continue
            if stop.is_set():
                return

    writer = threading.Thread(target=keep_writing)
    writer.start()
    try:
        for _ in range(200):
            remove("staging")
    finally:
        stop.set()
        writer.join()
    remove("staging")

    assert list(tmp_path.iterdir()) == []
    remove("staging")


def test_a_folder_that_may_not_be_removed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without delete permission is an error; only files that the writer adds are ignored."""
    (tmp_path / "staging").mkdir()

    def raise_refusal(*_: object, **__: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr("os.rmdir", raise_refusal)

    with pytest.raises(PermissionError):
        open_storage(str(tmp_path)).delete_path("staging")
