"""The sentence that says what a run did: what those of all capabilities have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from airflow_merge_provider.core.report import Report


@dataclass(frozen=True)
class ReportText:
    """A report in the words of a sentence: a plan is not told as a fact, and a count may be unknown."""

    report: Report

    @cached_property
    def counts(self) -> Mapping[str, int | None]:
        """The counts; the report of a retry may be that of an earlier release, which had fewer ones."""
        return defaultdict(lambda: None, self.report.counts)

    @property
    def target(self) -> str:
        """The name of the target."""
        return self.report.target.dataset

    def format_count(self, name: str, noun: str) -> str:
        """Return a count with its noun."""
        return format_amount(self.counts[name], noun)

    def format_sources(self, noun: str) -> str:
        """Return the number of sources with the noun of the capability."""
        return format_amount(len(self.report.sources), noun)

    def choose_verb(self, name: str, singular: str, plural: str) -> str:
        """Return the verb that agrees with a count."""
        return singular if self.counts[name] == 1 else plural

    def choose_tense(self, fact: str, plan: str) -> str:
        """Return the verb of a fact, or that of a plan: nothing was written yet."""
        return plan if self.report.dry_run or self.report.plan else fact

    def describe_changes(self) -> str:
        """Return how many rows were inserted, updated and deleted, without zeros and unknown counts."""
        rows = {kind: count for kind, count in self.report.rows if kind != "unchanged"}
        if None in rows.values() and not any(rows.values()):
            return "the number of changed rows is unknown"
        changes = [f"{count:,} {kind}" for kind, count in rows.items() if count]
        return ", ".join(changes) or f"no row {self.choose_tense('changed', 'would change')}"

    def describe_rejected(self) -> str:
        """Return how many rows the expectations of the run left out."""
        results = self.report.expectations
        counts = [item.failed for item in results if item.action == "quarantine" and item.failed]
        if not counts:
            return f"nothing {self.choose_tense('was', 'would be')} rejected"
        # A row may fail several expectations, so their sum is not the number of rows.
        prefix, rejected = "at least " if len(counts) > 1 else "", max(counts)
        verb = self.choose_tense("was" if rejected == 1 else "were", "would be")
        return f"{prefix}{format_amount(rejected, 'row')} {verb} rejected"


# Yields the parts of the sentence about a run, some of which may be empty.
DescribeRun = Callable[[ReportText], Iterable[str]]


def summarize_run(report: Report, describe: DescribeRun) -> str:
    """Return a sentence about a run from its report; what the report does not know is left out.

    >>> from airflow_merge_provider.core.report import RowCounts
    >>> rows = RowCounts(inserted=2, updated=1, deleted=0, unchanged=7)
    >>> report = Report.model_construct(run_mode="incremental", dry_run=False, rows=rows, counts={})
    >>> summarize_run(report, lambda text: (text.describe_changes(), text.describe_rejected()))
    '2 inserted, 1 updated; nothing was rejected'

    :param describe: the function of the capability that ran.
    """
    if report.run_mode == "noop":
        return f"Nothing to do: {report.run_mode_reason}"
    text = ReportText(report)
    is_unread = not {*dict(report.rows).values(), *report.counts.values()} - {None}
    if report.dry_run and report.plan is None and is_unread:
        return f"The configuration suits the tables of {text.target}; no rows were read"
    return "; ".join(filter(None, describe(text))) or report.run_mode_reason


def format_amount(number: int | None, noun: str) -> str:
    """Return a number with its noun in the singular or plural; None is an unknown number."""
    plural = f"{noun[:-1]}ies" if noun.endswith("ty") else f"{noun}s"
    return (
        f"an unknown number of {plural}"
        if number is None
        else f"{number:,} {noun if number == 1 else plural}"
    )
