"""Test merges of files in their own bucket: state, plan, manifest, ledger, lease, originals and failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_merge_provider.jobs.merge_record.files.storage import Storage, open_storage
from tests.e2e.store_runs import check_copies
from tests.jobs.object_store.runs import Lake
from tests.s3_server import S3Server


def _open_folder(lake: Lake, name: str) -> Storage:
    return open_storage(f"{lake.location}/{name}", lake.server.settings.as_fsspec())


def _merge_files(lake: Lake, **settings: Any) -> dict[str, Any]:
    folders = {name: f"{lake.location}/{name}" for name in ("source", "merged", "failure", "original")}
    config = {**folders, "state_path": f"{lake.location}/state", "reader": "json", "min_records": 2}
    return lake.run_job("merge_record", {**config, **settings})


def _put_file(lake: Lake, name: str, *ids: int) -> None:
    lines = "".join(json.dumps({"id": number}) + "\n" for number in ids)
    _open_folder(lake, "source").write_file(name, lines.encode())


def _read_merged(lake: Lake) -> list[list[int]]:
    folder = _open_folder(lake, "merged")
    names = [entry.name for entry in folder.list_files() if not entry.name.endswith(".attributes.json")]
    contents = [folder.read_file(name) or b"" for name in names]
    return sorted([json.loads(line)["id"] for line in content.splitlines()] for content in contents)


def test_a_name_is_created_once_on_s3(lake: Lake) -> None:
    """A name is created once: lease, plan and manifests depend on it."""
    state = _open_folder(lake, "state")

    assert state.create_file("lease.json", b"first") is True
    assert state.create_file("lease.json", b"second") is False
    assert state.read_file("lease.json") == b"first"


def test_copies_are_recognized_by_their_content(server: S3Server) -> None:
    """A copy of a file of several parts has another tag on S3."""
    server.change_behaviour()
    options = {"use_listings_cache": False, "default_block_size": 5 << 20}
    check_copies(server.make_bucket(), {**server.settings.as_fsspec(), **options})


@pytest.mark.long
def test_bins_of_several_runs_are_merged_on_s3(lake: Lake) -> None:
    """Records are merged once, in bins that stay open between runs; a malformed file fails."""
    _put_file(lake, "k=1/a b.json", 1, 2)
    _put_file(lake, "k=2/b.json", 3)
    _open_folder(lake, "source").write_file("bad.json", b"no record\n")
    first = _merge_files(lake, correlation_attribute_name="k")
    _put_file(lake, "k=2/c.json", 4)

    second = _merge_files(lake, correlation_attribute_name="k")

    assert (first["counts"]["merged"], first["counts"]["failed"], second["counts"]["merged"]) == (1, 1, 1)
    assert _read_merged(lake) == [[1, 2], [3, 4]]
    assert _open_folder(lake, "source").list_files() == []
    assert _open_folder(lake, "failure").find_entry("bad.json")
    state_names = {entry.name.split("/")[0] for entry in _open_folder(lake, "state").list_files()}
    assert {"state-000000000001.json", "state-000000000002.json", "manifests", "ledger"} <= state_names


def test_a_merge_on_s3_is_undone(lake: Lake) -> None:
    """An undo takes the merged files out, and puts the sources back."""
    _put_file(lake, "a.json", 1)
    _put_file(lake, "b.json", 2)
    merged = _merge_files(lake)

    undone = lake.run_job("undo", {"target": f"{lake.location}/state"})

    assert (merged["counts"]["merged"], undone["changed"]) == (1, True)
    assert _read_merged(lake) == []
    assert {entry.name for entry in _open_folder(lake, "source").list_files()} == {"a.json", "b.json"}
