"""Say in one sentence what a run did, in the terms of its capability."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_Report = Mapping[str, Any]


def summarize_run(report: _Report) -> str:
    """Return a sentence about a run from its report; what the report does not know is left out.

    >>> rows = {"inserted": 2, "updated": 1, "deleted": 0, "unchanged": 7}
    >>> summarize_run(
    ...     {
    ...         "job": "merge_load",
    ...         "run_mode": "incremental",
    ...         "dry_run": False,
    ...         "rows": rows,
    ...         "counts": {"loaded": 3},
    ...         "target": {"dataset": "orders"},
    ...         "plan": None,
    ...     }
    ... )
    '3 rows were loaded into orders: 2 inserted, 1 updated; nothing was rejected'
    """
    if report["run_mode"] == "noop":
        return f"Nothing to do: {report['run_mode_reason']}"
    if "overlapping" in report["counts"]:
        return _describe_check(report)
    if report["dry_run"] and report["plan"] is None and set(report["rows"].values()) == {None}:
        return f"The configuration suits the tables of {report['target']['dataset']}; no rows were read"
    # The report of a retry may be that of an earlier release, which had fewer counts.
    counts: defaultdict[str, int | None] = defaultdict(lambda: None, report["counts"])
    clauses = _DESCRIPTIONS[report["job"]]({**report, "counts": counts})
    return "; ".join([clause for clause in clauses if clause]) or report["run_mode_reason"]


def _describe_merge_source(report: _Report) -> Iterable[str]:
    counts, target = report["counts"], report["target"]["dataset"]
    entities, rows = counts["entities"], counts["live_rows"]
    if entities is not None:
        entities -= counts["deleted_entities"] or 0
    if None in (entities, rows):
        yield f"{_count_changes(report)} in {target}"
    elif report["run_mode"] == "incremental":
        yield f"{_count(counts['entities_changed'], 'changed entity')}: {_count_changes(report)} in {target}"
        verb = "would have" if _is_planned(report) else "has"
        yield f"it {verb} {_count(rows, 'golden record')} of {_count(entities, 'entity')}"
    else:
        sources = _count(len(report["sources"]), "source")
        verb = "would become" if _is_planned(report) else "became"
        yield f"{_count(entities, 'entity')} of {sources} {verb} {_count(rows, 'golden record')} in {target}"
    if counts["merged_rows"]:
        verb = _agree(counts["merged_rows"], "has", "have")
        yield f"{_number(counts['merged_rows'])} {verb} several sources"
    yield _describe_rejected(report)


def _describe_merge_engine(report: _Report) -> Iterable[str]:
    counts, target = report["counts"], report["target"]["dataset"]
    records = _count(counts["records"], "record")
    keys = f" of {_count(counts['keys'], 'key')}" if counts["keys"] is not None else ""
    verb = _agree(counts["records"], "was", "were")
    yield f"{records}{keys} {_tense(report, verb, 'would be')} merged into {target}: {_count_changes(report)}"
    if counts["late"]:
        yield f"{_count(counts['late'], 'record')} {_agree(counts['late'], 'was', 'were')} late"
    yield _describe_rejected(report)


def _describe_merge_load(report: _Report) -> Iterable[str]:
    counts, target = report["counts"], report["target"]["dataset"]
    verb = _tense(report, _agree(counts["loaded"], "was", "were"), "would be")
    changes = _count_changes(report)
    if counts.get("opened") or counts.get("closed"):
        changes = f"{_count(counts['opened'], 'version')} opened, {_number(counts['closed'])} closed"
    tables = (
        f" into {_count(counts['tables'], 'table')}" if (counts.get("tables") or 0) > 1 else f" into {target}"
    )
    yield f"{_count(counts['loaded'], 'row')} {verb} loaded{tables}: {changes}"
    if counts.get("duplicates"):
        yield f"{_count(counts['duplicates'], 'duplicate')} left out"
    yield _describe_rejected(report)


def _describe_check(report: _Report) -> str:
    counts = report["counts"]
    versions, keys = _count(counts["versions"], "version"), _count(counts["keys"], "key")
    return f"{report['target']['dataset']} is a valid history: {versions} of {keys}"


def _describe_merge_record(report: _Report) -> Iterable[str]:
    counts = report["counts"]
    verb = _tense(report, "became", "would become")
    if counts["merged"] or not counts["open_files"]:
        records = f" with {_count(counts['outputs'], 'record')}" if counts["outputs"] is not None else ""
        yield f"{_count(counts['files'], 'file')} {verb} {_count(counts['merged'], 'merged file')}{records}"
    if counts["open_files"]:
        bins, verb = _count(counts["open_bins"], "open bin"), _agree(counts["open_files"], "waits", "wait")
        yield f"{_count(counts['open_files'], 'file')} {verb} in {bins}"
    failed = _count(counts["failed_files"], "file") if counts["failed_files"] else "no file"
    yield f"{failed} {_tense(report, 'failed', 'would fail')}"


def _describe_joiner(report: _Report) -> Iterable[str]:
    counts, target = report["counts"], report["target"]["dataset"]
    inputs = _count(len(report["sources"]), "input")
    verb = _tense(report, "became", "would become")
    rows_in, rows = _count(counts["records_in"], "row"), _count(counts["outputs"], "joined row")
    yield f"{rows_in} of {inputs} {verb} {rows} in {target}"
    if counts["unmatched"]:
        yield f"{_count(counts['unmatched'], 'row')} {_agree(counts['unmatched'], 'has', 'have')} no match"
    yield _describe_rejected(report)


def _describe_undo(report: _Report) -> Iterable[str]:
    counts, target = report["counts"], report["target"]["dataset"]
    # The report names only the first of many runs that are restored.
    restored = len(report["details"].get("restored") or ())
    clauses = []
    if counts["runs"] or not restored:
        verb = _tense(report, _agree(counts["runs"], "was", "were"), "would be")
        clauses.append(f"{_count(counts['runs'], 'run')} of {target} {verb} undone")
    if restored:
        verb = _tense(report, _agree(restored, "was", "were"), "would be")
        clauses.append(f"{_agree(restored, '1 run', 'several runs')} of {target} {verb} restored")
    yield f"{'; '.join(clauses)}: {report['run_mode_reason']}"


_DESCRIPTIONS: Mapping[str, Callable[[_Report], Iterable[str]]] = {
    "merge_source": _describe_merge_source,
    "merge_engine": _describe_merge_engine,
    "merge_load": _describe_merge_load,
    "merge_record": _describe_merge_record,
    "joiner": _describe_joiner,
    "undo": _describe_undo,
}


def _describe_rejected(report: _Report) -> str:
    """Return how many rows the expectations of the run left out."""
    results = report.get("expectations") or []
    rejected = max((item["failed"] for item in results if item["action"] == "quarantine"), default=0)
    if not rejected:
        return f"nothing {_tense(report, 'was', 'would be')} rejected"
    # A row may fail several expectations, so their sum is not the number of rows.
    several = sum(1 for item in results if item["action"] == "quarantine" and item["failed"]) > 1
    verb = _tense(report, _agree(rejected, "was", "were"), "would be")
    return f"{'at least ' if several else ''}{_count(rejected, 'row')} {verb} rejected"


def _count_changes(report: _Report) -> str:
    """Return how many rows were inserted, updated and deleted; zeros and unknown counts are left out."""
    rows = {kind: count for kind, count in report["rows"].items() if kind != "unchanged"}
    if None in rows.values() and not any(rows.values()):
        return "the number of changed rows is unknown"
    changes = [f"{_number(count)} {kind}" for kind, count in rows.items() if count]
    return ", ".join(changes) or f"no row {_tense(report, 'changed', 'would change')}"


def _is_planned(report: _Report) -> bool:
    """Return whether the counts are those of a plan: nothing was written yet."""
    return bool(report["dry_run"] or report["plan"])


def _tense(report: _Report, fact: str, plan: str) -> str:
    return plan if _is_planned(report) else fact


def _count(number: int | None, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("ty") else f"{noun}s"
    return f"{_number(number)} {plural}"


def _number(number: int | None) -> str:
    return "an unknown number of" if number is None else f"{number:,}"


def _agree(number: int | None, singular: str, plural: str) -> str:
    return singular if number == 1 else plural
