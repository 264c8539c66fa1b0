"""Test the runs of every capability over tables and files on S3: first, unchanged, changed, plan and undo."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider import before_spark
from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.jobs.spark.session import override_settings
from tests.jobs.object_store.runs import Lake
from tests.long import all_long_but

_TARGETS: dict[str, tuple[Any, dict[str, Any]]] = {
    "upsert": ("merge_load", {"strategy": "upsert", "source": "s", "primary_key": "id"}),
    "delete-insert": ("merge_load", {"strategy": "delete-insert", "source": "s", "primary_key": "id"}),
    "scd2": ("merge_load", {"strategy": "scd2", "source": "s", "natural_key": "id"}),
    "merge engine": ("merge_engine", {"source": "s", "primary_key": "id"}),
    "merge source": (
        "merge_source",
        {"version": 2, "datasets": ["s a", "o b"], "equality": [["eq", "a.mail", "b.mail"]]},
    ),
    "joiner": ("joiner", {"inputs": ["s a", "o b"], "join_keys": ["a.mail = b.mail"]}),
}
_ROWS = [
    {"_id": "1", "id": 1, "mail": "x", "day": 1},
    {"_id": "2", "id": 2, "mail": "y", "day": 1},
]
_UNSAFE = {"spark.delta.logStore.s3.impl": "io.delta.storage.S3SingleDriverLogStore"}
_OTHERS = [{"_id": "7", "mail": "x"}]
_CHANGED = [
    {"_id": "1", "id": 1, "mail": "y", "day": 2},
    _ROWS[1],
    {"_id": "3", "id": 3, "mail": "z", "day": 2},
]


@pytest.mark.parametrize("name", all_long_but(_TARGETS, "upsert"))
def test_runs_and_undos_over_tables_on_s3(lake: Lake, name: str) -> None:
    """A first run writes, an unchanged one does not, a changed one writes its change, an undo undoes it."""
    job, config = _TARGETS[name]
    config = {**config, "target": "t"}
    lake.write_rows("s", _ROWS)
    lake.write_rows("o", _OTHERS)
    first = lake.run_job(job, config)
    rows_before = lake.read_rows("t")

    unchanged = before_spark.find_result(
        lake.build_request(job, config), conf={}, is_local=True, on_line=str, storage_options=lake.options
    )
    lake.write_rows("s", _CHANGED, mode="append" if name == "merge engine" else "overwrite")
    plan = lake.run_job(job, config, until="transform")
    changed = lake.run_job(job, config)
    undone = lake.run_job("undo", {"target": "t"})

    assert (first["run_mode"], first["changed"]) == ("initial", True)
    # The versions of a snapshot begin at the time of its load, so it is loaded again.
    assert name == "scd2" or (unchanged is not None and unchanged.report.run_mode == "noop")
    assert (plan["rows"], plan["dry_run"]) == (changed["rows"], True)
    assert changed["changed"]
    assert undone["changed"]
    assert lake.read_rows("t") == rows_before


@pytest.mark.long
def test_a_plan_is_saved_beside_a_target_on_s3(lake: Lake) -> None:
    """A plan is saved, and a run commits exactly its changes."""
    job, config = _TARGETS["upsert"]
    config = {**config, "target": "t"}
    lake.write_rows("s", _ROWS)
    saved = lake.run_job(job, config, until="transform", save_plan=True)

    applied = lake.run_job(job, config, apply_plan={})

    assert lake.open_table("t__plan").version() >= 0
    assert applied["rows"] == saved["rows"]


@pytest.mark.long
def test_an_undo_of_files_does_not_need_the_log_store(lake: Lake) -> None:
    """The outputs of a merge record have no log; a table does, and the same Spark may not undo its runs."""
    with lake.open_files().open(f"{lake.location}/landing/a.json", "wb") as file:
        file.write(b'{"id": 1}\n')
    config: dict[str, Any] = {name: f"{lake.location}/{name}" for name in ("merged", "original", "failure")}
    config |= {"source": f"{lake.location}/landing", "state_path": f"{lake.location}/state", "reader": "json"}
    assert lake.run_job("merge_record", config)["changed"]
    lake.write_rows("s", _ROWS)
    job, upsert = _TARGETS["upsert"]
    lake.run_job(job, {**upsert, "target": "t"})

    with override_settings(lake.spark, _UNSAFE):
        undone = lake.run_job("undo", {"target": "merged"})
        with pytest.raises(SetupError, match="can lose commits"):
            lake.run_job("undo", {"target": "t"})

    assert undone["changed"]


def test_a_missing_library_is_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without s3fs, files on S3 are refused with the name of the extra that installs it."""
    import fsspec

    from airflow_merge_provider.jobs.merge_record.files.storage import open_storage

    def refuse(*_: Any, **__: Any) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", refuse)

    with pytest.raises(SetupError, match=r"airflow-merge-provider\[s3\]"):
        open_storage("s3://lake/state")
