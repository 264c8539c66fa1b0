"""The counts of a report, and the reasons for the end of a bin: NiFi texts, each with a code for routing.

Source: docs/semantics/merge_record.md, Completion reasons; Defragment; Failures.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_merge_provider.core.change_plan.shown_rows import mask_text
from airflow_merge_provider.core.report import Measure


@dataclass(frozen=True, slots=True)
class Reason:
    """A code for programs and a text for people."""

    code: str
    text: str


COUNTS = (
    Measure("merged", "files", "Merged files that the run wrote."),
    Measure("outputs", "records", "Records in the merged files."),
    Measure("files", "files", "Source files that were merged."),
    Measure("failed", "bins", "Bins that failed."),
    Measure("failed_files", "files", "Source files of failed bins."),
    Measure("lost_files", "files", "Files of open bins that no longer exist."),
    Measure("open_bins", "bins", "Open bins after the run.", "target"),
    Measure("open_files", "files", "Source files in open bins.", "target"),
)

FULL = Reason("FULL", "Bin is full")
FULL_ENOUGH = Reason("FULL_ENOUGH", "Bin is full enough")
AGE = Reason("AGE", "Bin has reached Max Bin Age")
EVICTED = Reason("EVICTED", "Maximum number of bins has been exceeded")
FLUSH = Reason("FLUSH", "Bin was flushed on request")


def age_on_arrival(max_bin_age: str) -> Reason:
    """Return the reason for a bin that had expired when a FlowFile arrived; it repeats the configured age."""
    return Reason("AGE_ON_ARRIVAL", f"Bin is older than {max_bin_age}")


def describe_unreadable(why: str) -> Reason:
    """Return the reason for a file that cannot be read; it fails alone."""
    return Reason("UNREADABLE", f"The file cannot be read: {why}")


# Ends the bins of files with records that do not meet an expectation.
EXPECTATION = "EXPECTATION"


def describe_malformed(name: str, why: str) -> Reason:
    """Return the reason for a FlowFile with an unreadable record; its bin fails with it."""
    return Reason("MALFORMED", f"A record of {name} cannot be read: {why}")


def describe_rejected(name: str, why: str) -> Reason:
    """Return the reason for a FlowFile with records that do not meet an expectation."""
    return Reason(EXPECTATION, f"{name} is rejected: {why}")


def describe_lost(name: str, why: str) -> Reason:
    """Return the reason for a FlowFile with a value that its merged file cannot hold."""
    return Reason("VALUE_LOST", f"A value of {name} cannot be merged: {mask_text(why)}")


def describe_unwritable(why: str) -> Reason:
    """Return the reason for a bin whose merged file would not be a file of its format."""
    return Reason("UNWRITABLE", f"The merged file cannot be written: {why}")


def describe_incomplete(count: int, expected: int | None, ended_by: Reason) -> Reason:
    """Return the reason for a set of fragments that ended incomplete."""
    expected_text = "an unknown number of" if expected is None else expected
    return Reason("INCOMPLETE", f"The set has {count} of {expected_text} fragments: {ended_by.text}")


def count_invalid(value: str) -> Reason:
    """Return the reason for a fragment.count that is not an integer."""
    return Reason("FRAGMENT_COUNT_INVALID", f"fragment.count is not an integer: {mask_text(repr(value))}")


def count_differs(first: int, second: int) -> Reason:
    """Return the reason for fragments of a set with different values of fragment.count."""
    return Reason("FRAGMENT_COUNT_DIFFERS", f"fragment.count differs within the set: {first} and {second}")


def index_missing(name: str) -> Reason:
    """Return the reason for a fragment without an integer index where the policy requires one."""
    return Reason("FRAGMENT_INDEX_MISSING", f"fragment.index of {name} is missing or not an integer")


def index_repeated(index: int) -> Reason:
    """Return the reason for two fragments with the same index where the policy requires different ones."""
    return Reason("FRAGMENT_INDEX_REPEATED", f"fragment.index {index} appears more than once in the set")
