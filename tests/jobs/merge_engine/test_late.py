"""Test late records: they are counted, and a recorded removal rejects them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_merge_provider.core.errors import DataError
from airflow_merge_provider.jobs.merge_engine import target
from tests.jobs.merge_engine.conftest import MakeStream
from tests.jobs.merge_engine.stream import Stream

KINDS = {"row_kind_column": "op"}
SEQUENCE = {"options": {"sequence.field": "s"}}
DAY = 86_400_000_000


def test_late_records_are_counted(make_stream: MakeStream) -> None:
    """Late records, ties, missing sequences, deletes without a row and unpaired -U are counted separately."""
    stream = make_stream(**KINDS, **SEQUENCE)
    stream.write_batch({"k": [1, 2, 3], "op": ["+I"] * 3, "s": [10, 10, 10], "v": ["a", "b", "c"]})
    stream.run_job()
    stream.write_batch(
        {
            "k": [1, 1, 1, 2, 2, 3],
            "op": ["+U", "+U", "+I", "-D", "+I", "-U"],
            "s": [20, 20, 5, 9, None, 30],
            "v": ["x", "y", "old", None, "lost", "c"],
        }
    )

    report = stream.run_job()

    assert stream.read_rows() == [(1, 20, "y"), (2, 10, "b")]
    assert report["rows"] == {"inserted": 0, "updated": 1, "deleted": 1, "unchanged": 1}
    assert report["counts"] == {
        "records": 6, "keys": 3, "unchanged_keys": 1, "late": 3, "filled_holes": 0, "missed_deletes": 1,
        "ties": 1, "null_sequence": 1, "lone_updates": 1, "orphan_retracts": 0, "ignored_retracts": 0,
        "tombstones": 0,
    }  # fmt: skip


def test_late_records_that_fill_holes_are_told_apart(make_stream: MakeStream) -> None:
    """A late record that supplies a missing value of a row does not count as lost."""
    stream = make_stream(merge_engine="partial-update", **SEQUENCE)
    stream.write_batch({"k": [1, 2], "s": [10, 10], "a": ["x", "x"], "b": pa.nulls(2, pa.string())})
    stream.run_job()
    stream.write_batch({"k": [1, 2], "s": [5, 5], "a": ["late", "late"], "b": ["fills", None]})

    report = stream.run_job()

    counts = report["counts"]
    assert stream.read_rows() == [(1, 10, "x", "fills"), (2, 10, "x", None)]
    assert (counts["late"], counts["filled_holes"], report["rows"]["updated"]) == (2, 1, 1)


def make_removing_stream(make_stream: MakeStream, **settings: Any) -> Stream:
    """Create a table with one key that was removed at 20, in the second of two runs."""
    stream = make_stream(**KINDS, **SEQUENCE, **settings)
    stream.write_batch({"k": [1], "op": ["+I"], "s": [10], "v": ["x"]})
    stream.run_job(started_at=DAY)
    stream.write_batch({"k": [1, 2], "op": ["-D", "-D"], "s": [20, 20], "v": ["x", None]})
    stream.run_job(started_at=2 * DAY)
    return stream


def test_a_removal_that_is_remembered_keeps_late_records_away(make_stream: MakeStream) -> None:
    """Late records do not bring back a removed key, even one that never had a row; newer records do."""
    stream = make_removing_stream(make_stream, tombstone_retention="7 days")
    stream.write_batch({"k": [1, 2, 3], "op": ["+I"] * 3, "s": [15, 15, 15], "v": ["late", "late", "new"]})

    report = stream.run_job(started_at=3 * DAY)

    assert stream.read_rows() == [(3, 15, "new")]
    assert report["counts"]["late"] == 2
    stream.write_batch({"k": [1], "op": ["+I"], "s": [21], "v": ["again"]})
    stream.run_job(started_at=4 * DAY)
    stream.write_batch({"k": [1], "op": ["-D"], "s": [19], "v": [None]})
    stream.run_job(started_at=4 * DAY)
    assert stream.read_rows() == [(1, 21, "again"), (3, 15, "new")]


@pytest.mark.long
def test_a_removal_is_forgotten_after_its_time(make_stream: MakeStream) -> None:
    """After the retention time late records bring the row back, as they do at once without retention.

    Expired tombstones are deleted.
    """
    stream = make_removing_stream(make_stream, tombstone_retention=7)
    stream.write_batch({"k": [1], "op": ["+I"], "s": [15], "v": ["late"]})
    stream.run_job(started_at=10 * DAY)
    assert stream.read_rows() == [(1, 15, "late")]
    stream.write_batch({"k": [5], "op": ["-D"], "s": [1], "v": [None]})

    report = stream.run_job(started_at=10 * DAY)

    assert report["counts"]["tombstones"] == 1
    assert [row[:2] for row in stream.read_rows("state__removed")] == [(5, 1)]


@pytest.mark.long
def test_groups_remember_who_removed_the_row(make_stream: MakeStream) -> None:
    """Late records of the group that removed a row are rejected; those of other groups start a new row."""
    groups = {
        "fields.g.sequence-group": "a",
        "fields.h.sequence-group": {"columns": "b", "descending": True},
        "partial-update.remove-record-on-sequence-group": "g",
    }
    stream = make_stream(merge_engine="partial-update", options=groups, tombstone_retention=1, **KINDS)
    stream.write_batch({"k": [1, 2], "op": ["+I", "+I"], "g": [3, 3], "a": [1, 1], "h": [3, 3], "b": [1, 1]})
    stream.run_job(started_at=DAY)
    stream.write_batch({"k": [1, 2], "op": ["-D", "-D"], "g": [4, 4], "a": [7, 7], "h": [9, 9], "b": [7, 7]})
    stream.run_job(started_at=DAY)
    nothing = pa.array([9, None], pa.int64())
    stream.write_batch(
        {"k": [1, 2], "op": ["+I", "+I"], "g": nothing, "a": nothing, "h": [1, 1], "b": [5, 5]}
    )
    stream.write_batch({"k": [1, 2], "op": ["+I", "+I"], "g": [2, 2], "a": [0, 0], "h": [2, 2], "b": [6, 6]})

    stream.run_job(started_at=DAY)

    assert stream.read_rows() == [(1, 9, 9, 1, 5), (2, None, None, 1, 5)]


@pytest.mark.long
def test_a_removal_that_did_not_get_through_is_not_remembered(
    make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removals of a failed run do not count, although their side table is written before the target."""
    stream = make_removing_stream(make_stream, tombstone_retention=7)
    stream.write_batch({"k": [3], "op": ["-D"], "s": [50], "v": pa.nulls(1, pa.string())}, "other")
    with monkeypatch.context() as broken:
        broken.setattr(target, "upsert_rows", _raise_error)
        with pytest.raises(OSError, match="lost"):
            stream.run_job(source="other", started_at=3 * DAY)
    assert len(stream.read_rows("state__removed")) == 3
    stream.write_batch({"k": [3, 1], "op": ["+I", "+I"], "s": [10, 10], "v": ["kept", "late"]})

    stream.run_job(started_at=3 * DAY)

    assert stream.read_rows() == [(3, 10, "kept")]


def _raise_error(*args: Any) -> None:
    raise OSError("lost")


def test_a_record_can_empty_columns(make_stream: MakeStream) -> None:
    """A record sets columns to NULL by listing their names, in any case and spelling; NULL alone does not."""
    stream = make_stream(merge_engine="partial-update", clear_column="gone")
    nobody = pa.array([None, None], pa.list_(pa.string()))
    stream.write_batch({"k": [1, 2], "gone": nobody, "a": ["x", "x"], "b": ["y", "y"]})
    stream.run_job()
    named = pa.array([["B"], None], pa.list_(pa.string()))
    stream.write_batch({"k": [1, 2], "gone": named, "a": [None, "z"], "b": pa.nulls(2, pa.string())})
    stream.run_job()
    assert stream.read_rows() == [(1, "x", None), (2, "z", "y")]
    stream.write_batch({"k": [2], "gone": ["a, b"], "a": ["given"], "b": pa.nulls(1, pa.string())}, "texts")

    stream.run_job(source="texts")

    assert stream.read_rows() == [(1, "x", None), (2, None, None)]
    stream.write_batch({"k": [2], "gone": ["k"], "a": ["given"], "b": pa.nulls(1, pa.string())}, "texts")
    with pytest.raises(DataError, match="clear_column must list only columns that skip NULLs, not k"):
        stream.run_job(source="texts")


@pytest.mark.long
def test_a_table_is_compacted_when_enough_of_it_is_outdated(make_stream: MakeStream) -> None:
    """A table is compacted if enough of it is outdated: rows stay, old forms are deleted.

    The commit of the run can still be found.
    """
    stream = make_stream(compact_ratio=0.4)
    stream.write_batch({"k": list(range(10)), "v": ["a"] * 10})
    stream.run_job()
    stream.write_batch({"k": [1, 2], "v": ["b", "b"]})
    assert stream.run_job()["details"]["storage"] == {"rows": 10, "outdated": 2}
    assert stream.read_version() == 1
    stream.write_batch({"k": [3, 4, 5, 6, 7], "v": ["b"] * 5})

    report = stream.run_job("last")

    assert report["details"]["storage"] == {"rows": 10, "outdated": 0}
    assert stream.read_version() == report["target"]["version"] == 3
    assert stream.run_job("last")["changed"] is True
    assert sum(row[1] == "b" for row in stream.read_rows()) == 7
    stream.write_batch({"k": [1], "v": ["c"]})
    assert stream.run_job()["details"]["storage"] == {"rows": 10, "outdated": 1}
