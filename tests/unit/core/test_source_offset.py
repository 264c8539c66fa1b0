"""Tests of identifying a source by table ID and commit, whatever the notation of its location."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_merge_provider.core.source_offset import (
    SourceOffset,
    find_offset,
    find_replaced,
    is_same_reads,
    normalize_uri,
    read_offsets,
    write_offsets,
)

HERE = SourceOffset("/lake/a", 3, "id-a", "c3")


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("/lake/x/../a", "/lake/a"),
        ("/lake//a/", "/lake/a"),
        ("file:///lake/a", "/lake/a"),
        ("file:/lake/a", "/lake/a"),
        ("s3a://bucket/wh/a/", "s3://bucket/wh/a"),
        ("S3://bucket/wh/./a", "s3://bucket/wh/a"),
        ("s3n://bucket", "s3://bucket"),
        ("abfs://c@acc/wh/a", "abfss://c@acc/wh/a"),
        ("gs://bucket/a/../../b", "gs://bucket/b"),
        ("gcs://bucket/a", "gs://bucket/a"),
        ("wasb://c@acc/a", "wasbs://c@acc/a"),
        ("s3:/bucket/a", "s3://bucket/a"),
        ("dbfs:/mnt/a/", "dbfs:///mnt/a"),
        ("hdfs:///data/a", "hdfs:///data/a"),
        ("table:lake.crm.a", "table:lake.crm.a"),
    ],
)
def test_spellings_of_a_place_are_one(written: str, normal: str) -> None:
    """Different notations of one location are equal."""
    assert normalize_uri(written) == normal


def test_a_link_is_where_it_leads(tmp_path: Path) -> None:
    """Symbolic links on this machine are resolved."""
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert normalize_uri(f"{tmp_path}/link/a") == normalize_uri(f"{tmp_path}/real/a")


def test_offsets_survive_a_state() -> None:
    """Offsets are restored from a state, also those of files."""
    offsets = [HERE, SourceOffset("/lake/files", 7)]

    state = write_offsets(offsets)

    assert read_offsets(state) == offsets
    assert read_offsets({}) == []


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ([HERE], SourceOffset("/moved/a", 5, "id-a"), HERE),
        ([HERE], SourceOffset("/lake/a", 5, "id-b"), None),
        ([HERE, SourceOffset("/lake/b", 4, "id-a")], SourceOffset("/lake/x/../b", 5, "id-a"), "/lake/b"),
        ([HERE, SourceOffset("/lake/b", 4, "id-a")], SourceOffset("/moved/b", 5, "id-a"), None),
        ([SourceOffset("s3a://b/files", 1)], SourceOffset("s3://b/files", 2), "s3a://b/files"),
        ([SourceOffset("/lake/a", 3)], SourceOffset("/lake/a", 4, "id-a"), "/lake/a"),
    ],
    ids=["moved", "made anew", "copy", "moved copies", "files", "made later"],
)
def test_an_offset_is_found_by_table_or_place(
    before: list[SourceOffset], now: SourceOffset, expected: SourceOffset | str | None
) -> None:
    """An offset is found by table ID in any location.

    Of several copies only the one in its location counts.
    """
    offset = find_offset(before, now)
    assert offset == expected or (offset is not None and offset.uri == expected)


def test_another_table_in_the_place_is_told() -> None:
    """Another table in the same location is detected; it does not continue the offset."""
    assert find_replaced([HERE], SourceOffset("/lake/../lake/a", 0, "id-b")) == HERE
    assert find_replaced([HERE], SourceOffset("/lake/a", 9, "id-a")) is None


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (SourceOffset("/moved/a", 3, "id-a", "c3"), True),
        (SourceOffset("/lake/a", 3, "id-a", None), True),
        (SourceOffset("/lake/a", 3, "id-a", "other"), False),
        (SourceOffset("/lake/a", 4, "id-a", "c4"), False),
        (SourceOffset("/lake/a", 3, "id-b", "c3"), False),
        (SourceOffset("/lake/a", None), False),
    ],
)
def test_a_read_is_the_same_by_version_and_commit(now: SourceOffset, same: bool) -> None:
    """Two reads are the same only if version and commit are equal.

    A copy with another history has the same version and another commit.
    """
    assert is_same_reads(write_offsets([HERE]), [now]) is same
    assert not is_same_reads(write_offsets([HERE, SourceOffset("/lake/b", 1, "id-b")]), [now])


def test_a_source_that_is_read_twice_is_one() -> None:
    """A source that is read twice, as in a self-join, has one offset."""
    assert is_same_reads(write_offsets([HERE, HERE]), [HERE, HERE])
    assert not is_same_reads(write_offsets([HERE]), [HERE, SourceOffset("/lake/b", 1, "id-b")])
