"""The bin algorithm without Spark: which bin a FlowFile is added to, when a bin ends, and why.

Source: docs/semantics/merge_record.md, Bins; Completion reasons; Defragment; Failures.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_merge_provider.core.change_plan.shown_rows import mask_problem, mask_text
from airflow_merge_provider.core.merge_record.config import MergeRecordConfig
from airflow_merge_provider.core.merge_record.flowfile import FlowFile
from airflow_merge_provider.core.merge_record.stored import Stored
from airflow_merge_provider.core.report import Measure


@dataclass(frozen=True, slots=True)
class Reason(Stored):
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
    return Reason("VALUE_LOST", f"A value of {name} cannot be merged: {mask_problem(why)}")


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


IDENTIFIER, COUNT, INDEX = "fragment.identifier", "fragment.count", "fragment.index"
Group = tuple[str, ...]
_INTEGER_OPTION = re.compile(r"[+-]?\d+", re.ASCII)
_INTEGER_END = 2**31


@dataclass(slots=True)
class Bin(Stored):
    """The FlowFiles of one group that wait to be merged; ``created_at`` is in microseconds since 1970 UTC.

    Sources are only added through ``add_flowfile``, which updates the sums.
    """

    seq: int
    group: Group
    created_at: int
    sources: list[FlowFile] = field(default_factory=list)
    expected: int | None = None
    records: int = 0
    bytes: int = 0

    @property
    def id(self) -> str:
        """The ID of the bin: its position in the order in which bins were opened."""
        return f"bin-{self.seq}"

    def add_flowfile(self, source: FlowFile) -> None:
        """Add a FlowFile with all of its records."""
        self.sources.append(source)
        self.records += source.records
        self.bytes += source.bytes

    def remove_flowfiles(self, uuids: Iterable[str]) -> Bin:
        """Return the bin without these FlowFiles, as if they had never been added."""
        removed_uuids = set(uuids)
        remaining_bin = Bin(self.seq, self.group, self.created_at)
        for source in self.sources:
            if source.uuid not in removed_uuids:
                remaining_bin.add_flowfile(source)
        remaining_bin.expected = next(
            (count for count in map(fragment_count, remaining_bin.sources) if isinstance(count, int)), None
        )
        return remaining_bin

    def as_json(self) -> dict[str, Any]:
        """Return the stored form, without the sums."""
        written = Stored.as_json(self)
        del written["records"], written["bytes"]
        return {"id": self.id, "label": " / ".join(part for part in self.group if part), **written}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Parse the stored form, and add up the sources."""
        bin_ = super(Bin, cls).from_json({**raw, "sources": ()})
        for source in raw["sources"]:
            bin_.add_flowfile(FlowFile.from_json(source))
        return bin_


@dataclass(frozen=True, slots=True)
class EndedBin:
    """A bin that ended, merged or ``failed``; ``culprit`` is the uuid of the FlowFile that made it fail."""

    bin: Bin
    reason: Reason
    sources: tuple[FlowFile, ...]
    failed: bool = False
    culprit: str | None = None


class Bins:
    """The open bins of one run; ``now`` is the same instant for the whole run."""

    def __init__(self, config: MergeRecordConfig, open_bins: Iterable[Bin], next_seq: int, now: int) -> None:
        self.ended: list[EndedBin] = []
        self.next_seq = next_seq
        self._config = config
        self._now = now
        self._open = {bin_.group: bin_ for bin_ in sorted(open_bins, key=lambda bin_: bin_.seq)}
        # Files that waited together are not separated by their age: only bins of earlier runs end on arrival.
        self._first_of_run = next_seq

    @property
    def open(self) -> list[Bin]:
        """The open bins, the oldest first."""
        return sorted(self._open.values(), key=lambda bin_: bin_.seq)

    def offer_flowfile(self, flowfile: FlowFile) -> None:
        """Add one FlowFile to the open bin of its group, or open a bin for it."""
        group = self._find_group(flowfile)
        open_bin = self._open.get(group)
        if (problem := self._find_problem(flowfile)) is not None:
            bin_ = self._open_bin(group, flowfile.arrival)
            bin_.add_flowfile(flowfile)
            self._fail_bin(bin_, problem, flowfile.uuid)
            return
        bin_ = open_bin or self._open_bin(group, flowfile.arrival)
        bin_.add_flowfile(flowfile)
        is_open = self._check_bin(bin_, flowfile)
        if open_bin is None and is_open:
            self._open[group] = bin_
            if self._config.max_bins is not None and len(self._open) > self._config.max_bins:
                self._complete_bin(self.open[0], EVICTED)

    def end_bins(self, *, queue_was_empty: bool) -> None:
        """End bins after all FlowFiles have been added: first by age, then those that are full enough."""
        self._complete_all(self._is_older, AGE)
        if queue_was_empty:
            self._complete_all(self._is_full_enough, FULL_ENOUGH)
        if self._config.flush:
            self._complete_all(lambda _: True, FLUSH)

    def _open_bin(self, group: Group, arrival: int) -> Bin:
        from_arrival = self._config.bin_age_from == "arrival"
        created_at = min(arrival, self._now) if from_arrival else self._now
        self.next_seq += 1
        return Bin(self.next_seq - 1, group, created_at)

    def _find_problem(self, flowfile: FlowFile) -> Reason | None:
        """Return why a FlowFile fails alone; None if it is added to a bin."""
        if flowfile.unreadable is not None:
            return describe_unreadable(flowfile.unreadable)
        if flowfile.rejected is not None:
            return describe_rejected(flowfile.name, flowfile.rejected)
        if flowfile.lost is not None:
            return describe_lost(flowfile.name, flowfile.lost)
        if flowfile.malformed is not None and self._config.failure_scope == "flowfile":
            return describe_malformed(flowfile.name, flowfile.malformed)
        return None

    def _find_group(self, flowfile: FlowFile) -> Group:
        """Return the group of a FlowFile; a missing value and an empty value are the same."""
        if self._config.defragment:
            return (flowfile.attributes.get(IDENTIFIER, ""),)
        schema = "" if self._config.schema_merge == "union" else flowfile.schema
        name = self._config.correlation_attribute_name
        return schema, flowfile.attributes.get(name, "") if name else ""

    def _check_bin(self, bin_: Bin, newcomer: FlowFile) -> bool:
        """Check a bin that has just received a FlowFile; return True while it stays open."""
        if newcomer.malformed is not None:
            self._fail_bin(bin_, describe_malformed(newcomer.name, newcomer.malformed), newcomer.uuid)
        elif self._config.defragment and (problem := _check_fragment_count(bin_, newcomer)):
            self._fail_bin(bin_, problem, newcomer.uuid)
        elif self._is_full(bin_):
            self._complete_bin(bin_, FULL)
        elif bin_.seq < self._first_of_run and self._is_older(bin_):
            age = self._config.max_bin_age
            self._complete_bin(bin_, age_on_arrival(age.text if age else ""))
        else:
            return True
        return False

    def _is_older(self, bin_: Bin) -> bool:
        age = self._config.max_bin_age
        return age is not None and age.is_exceeded_by(self._now - bin_.created_at)

    def _is_full_enough(self, bin_: Bin) -> bool:
        if self._config.defragment:
            return len(bin_.sources) == bin_.expected
        return bin_.records >= self._config.min_records and bin_.bytes >= self._config.min_bin_size

    def _is_full(self, bin_: Bin) -> bool:
        if not self._is_full_enough(bin_) or self._config.defragment:
            return self._is_full_enough(bin_)
        records, size = self._config.max_records, self._config.max_bin_size
        return (records is not None and bin_.records >= records) or (size is not None and bin_.bytes >= size)

    def _complete_all(self, is_due: Callable[[Bin], bool], reason: Reason) -> None:
        for bin_ in self.open:
            if is_due(bin_):
                self._complete_bin(bin_, reason)

    def _complete_bin(self, bin_: Bin, reason: Reason) -> None:
        """Merge a bin; an incomplete set of fragments, or one that violates the index policy, fails."""
        sources = tuple(bin_.sources)
        if self._config.defragment:
            if len(sources) != bin_.expected:
                self._fail_bin(bin_, describe_incomplete(len(sources), bin_.expected, reason), None)
                return
            if self._config.fragment_index_policy == "strict" and (index_problem := _index_problem(sources)):
                self._fail_bin(bin_, *index_problem)
                return
            if self._config.fragment_index_policy != "ignore":
                sources = _by_index(sources)
        self._end_bin(EndedBin(bin_, reason, sources))

    def _fail_bin(self, bin_: Bin, reason: Reason, culprit: str | None) -> None:
        self._end_bin(EndedBin(bin_, reason, tuple(bin_.sources), failed=True, culprit=culprit))

    def _end_bin(self, ended: EndedBin) -> None:
        if self._open.get(ended.bin.group) is ended.bin:
            del self._open[ended.bin.group]
        self.ended.append(ended)


def fragment_count(flowfile: FlowFile) -> int | str | None:
    """Return the number of fragments: an integer, the text if it is not an integer, None if it is missing."""
    return _parse_integer(flowfile.attributes.get(COUNT))


def _check_fragment_count(bin_: Bin, newcomer: FlowFile) -> Reason | None:
    """Compare a newcomer's fragment count with that of its set; the first count found is the expected one."""
    count = fragment_count(newcomer)
    if isinstance(count, str):
        return count_invalid(count)
    if count is None:
        return None
    if bin_.expected is not None and count != bin_.expected:
        return count_differs(bin_.expected, count)
    bin_.expected = count
    return None


def _by_index(sources: tuple[FlowFile, ...]) -> tuple[FlowFile, ...]:
    """Order fragments by their index as a number, or by arrival if one has no index."""
    indexes = [_parse_integer(source.attributes.get(INDEX)) for source in sources]
    numbers = [index for index in indexes if isinstance(index, int)]
    if len(numbers) < len(sources):
        return sources
    return tuple(source for _, source in sorted(zip(numbers, sources, strict=True), key=lambda pair: pair[0]))


def _index_problem(sources: tuple[FlowFile, ...]) -> tuple[Reason, str] | None:
    """Return the fragment that violates the strict policy, with the reason."""
    indexes: set[int] = set()
    for source in sources:
        index = _parse_integer(source.attributes.get(INDEX))
        if not isinstance(index, int):
            return index_missing(source.name), source.uuid
        if index in indexes:
            return index_repeated(index), source.uuid
        indexes.add(index)
    return None


def _parse_integer(text: str | None) -> int | str | None:
    """Parse a 32-bit integer; return a text that is not one unchanged."""
    if text is None or not _INTEGER_OPTION.fullmatch(text):
        return text
    number = int(text)
    return number if -_INTEGER_END <= number < _INTEGER_END else text
