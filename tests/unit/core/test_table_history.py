"""Tests of finding the commits that the rows of a table depend on."""

from __future__ import annotations

import pytest

from airflow_merge_provider.core.table_history import HistoryEntry, trace_lineage


def build_history(*operations: str | tuple[str, dict[str, str]]) -> list[HistoryEntry]:
    """Return a history, newest first, of operations that are given oldest first."""
    entries = []
    for version, item in enumerate(operations):
        operation, parameters = (item, {}) if isinstance(item, str) else item
        entries.append(HistoryEntry(version, operation, parameters))
    return entries[::-1]


def build_restore(version: int) -> tuple[str, dict[str, str]]:
    return "RESTORE", {"version": str(version)}


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        (["WRITE", "MERGE", "OPTIMIZE"], [2, 1, 0]),
        (["WRITE", "MERGE", build_restore(0)], [2, 0]),
        (["WRITE", "MERGE", build_restore(0), "MERGE"], [3, 2, 0]),
        (["WRITE", "MERGE", build_restore(0), "MERGE", build_restore(1)], [4, 1, 0]),
        (["WRITE", "MERGE", "MERGE", build_restore(1), build_restore(0)], [4, 0]),
        (["WRITE", "MERGE", build_restore(0), "MERGE", build_restore(2)], [4, 2, 0]),
    ],
)
def test_a_restore_leads_back(
    operations: list[str | tuple[str, dict[str, str]]], expected: list[int]
) -> None:
    """Commits between a RESTORE and the restored version are undone, also across several RESTOREs."""
    lineage = trace_lineage(build_history(*operations), lambda entry: None)

    assert [entry.version for entry in lineage.entries] == expected
    assert lineage.is_complete


@pytest.mark.parametrize(
    ("operation", "effect"),
    [
        *((name, "none") for name in ("OPTIMIZE", "VACUUM START", "VACUUM END", "REORG")),
        *((name, "none") for name in ("SET TBLPROPERTIES", "ADD CONSTRAINT", "DROP CONSTRAINT")),
        *((name, "rows") for name in ("DELETE", "UPDATE", "WRITE", "MERGE", "of another program")),
    ],
)
def test_maintenance_changes_no_rows(operation: str, effect: str) -> None:
    """Every operation that is not known as maintenance may change rows."""
    assert HistoryEntry(1, operation).effect == effect


@pytest.mark.parametrize(
    ("operations", "version"),
    [
        (["WRITE", "MERGE", "OPTIMIZE"], 1),
        (["WRITE", "MERGE", build_restore(0), "SET TBLPROPERTIES"], 0),
        (["WRITE", "MERGE", build_restore(1)], 1),
        (["WRITE", "MERGE", build_restore(0), "MERGE"], 3),
        (["OPTIMIZE"], -1),
    ],
)
def test_the_rows_are_those_of_one_version(
    operations: list[str | tuple[str, dict[str, str]]], version: int
) -> None:
    """Maintenance and a RESTORE to the same rows leave them as they are."""
    assert trace_lineage(build_history(*operations), lambda entry: None).rows_version == version


def test_the_version_of_the_rows_is_unknown_if_the_history_ends_before_it() -> None:
    """Then any commit may have changed them."""
    assert trace_lineage(build_history("WRITE", "OPTIMIZE")[:1], lambda entry: None).rows_version is None


def test_a_restore_to_a_timestamp_is_resolved_by_the_caller() -> None:
    """The caller resolves a RESTORE to a timestamp; if that is not possible, the lineage ends there."""
    entries = build_history("WRITE", "MERGE", ("RESTORE", {"timestamp": "2026-01-01"}))

    assert [entry.version for entry in trace_lineage(entries, lambda entry: 0).entries] == [2, 0]
    unknown = trace_lineage(entries, lambda entry: None)
    assert ([entry.version for entry in unknown.entries], unknown.is_complete) == ([2], False)


def test_the_newest_commits_alone_are_incomplete() -> None:
    """A part of the history is incomplete.

    The caller has to read more of it, or states that there is no more.
    """
    assert not trace_lineage(build_history("WRITE", "MERGE", "MERGE")[:2], lambda entry: None).is_complete
    assert not trace_lineage(
        build_history("WRITE", "MERGE", build_restore(0))[:1], lambda entry: None
    ).is_complete


def test_a_commit_without_a_description_may_have_changed_rows() -> None:
    """A commit without a description may have changed rows.

    Maintenance does not change rows, a RESTORE leads to another version, and every other operation changes
    rows.
    """
    entries = build_history("WRITE", "MERGE", "OPTIMIZE", build_restore(0))
    del entries[2]

    lineage = trace_lineage([entries[1], entries[2]], lambda entry: None)

    assert [(entry.version, entry.effect) for entry in lineage.entries] == [
        (2, "none"),
        (1, "rows"),
        (0, "rows"),
    ]
    assert entries[0].effect == "restore"


def test_a_restore_to_itself_ends_the_lineage() -> None:
    """In a damaged history a RESTORE may name its own or a later version; the lineage ends there."""
    entries = [HistoryEntry(1, "RESTORE", {"version": "1"}), HistoryEntry(0, "WRITE")]

    lineage = trace_lineage(entries, lambda _: None)

    assert ([entry.version for entry in lineage.entries], lineage.is_complete) == ([1], False)
