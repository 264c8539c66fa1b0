"""The report of a run, as Airflow, the command line and notifications show it.

Every run of every capability returns the same keys. A capability adds a fixed set of counts, each with a unit
and a description, and its own ``details``. A value that a run cannot determine is null. Its JSON Schema
and the tables of its keys and counts in the documentation follow from the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

from airflow_merge_provider.core.change_plan.summary import ChangeExample, ChangeSummary
from airflow_merge_provider.core.expectations.result import ExpectationResult
from airflow_merge_provider.core.run_mode import RunMode

Scope = Literal["run", "target"]
# What a report says beyond the keys that all have: each capability has a form of its own.
Details = Mapping[str, Any]

REPORT_MAX_BYTES = 4096
# The XCom key of the report.
REPORT_KEY = "merge_report"
# The XCom key of the changes of a plan, and the limit of its bytes.
PLAN_KEY = "merge_plan"
_PLAN_MAX_BYTES = 48 << 10
# The time of a run outside its process, and the time inside the process that belongs to no step.
LAUNCH, OTHER = "launch", "other"
# Limits for a report that is too long: the bytes of JSON of a text, and the number of sources and warnings.
_TEXT_MAX_BYTES = 160
_NAMED_SOURCES_MAX = 3
_SUMMARY_WARNINGS_MAX = 3
_ELLIPSIS = "…"


class Measure(NamedTuple):
    """One count of a capability: its name, its unit, and what is counted.

    A measure of the ``run`` counts what this run did; it is 0 if the run did nothing. A measure of the
    ``target`` counts what the target holds after the run.
    """

    name: str
    unit: str
    description: str
    scope: Scope = "run"


class _ReportPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TargetReport(_ReportPart):
    """The target of a run and its versions."""

    dataset: str = Field(description="The dataset as it is named in the configuration.")
    uri: str = Field(description="The location of the dataset, or `table:` and the name of a catalog table.")
    version_before: int | None = Field(description="The version before the run; null if there was none.")
    version: int | None = Field(description="The version with the result of the run; null if there is none.")


class SourceReport(_ReportPart):
    """A source of a run and the version that was read."""

    uri: str = Field(description="The location of the dataset, or `table:` and the name of a catalog table.")
    version: int | None = Field(description="The version that was read; null if the source does not exist.")
    rows: int | None = Field(
        description="The number of rows at that version; null if only a scan can determine it."
    )


class RowCounts(_ReportPart):
    """How the commit of a run changes the rows of the target."""

    inserted: int | None = Field(None, description="New rows.")
    updated: int | None = Field(None, description="Existing rows with changed values.")
    deleted: int | None = Field(None, description="Removed rows.")
    unchanged: int | None = Field(None, description="Rows that did not change.")

    @property
    def before(self) -> int | None:
        """The number of rows before the change; None if a count is unknown."""
        counts = (self.updated, self.deleted, self.unchanged)
        return None if None in counts else sum(count or 0 for count in counts)

    @classmethod
    def for_noop(cls, unchanged: int | None = None) -> Self:
        """Return the counts of a run that writes nothing; the target has ``unchanged`` rows."""
        return cls(inserted=0, updated=0, deleted=0, unchanged=unchanged)

    @classmethod
    def for_overwrite(cls, *, rows_before: int | None, rows_after: int | None) -> Self:
        """Return the counts of a run that replaces all rows."""
        return cls(inserted=rows_after, updated=0, deleted=rows_before, unchanged=0)

    @classmethod
    def for_change(cls, *, rows_before: int | None, inserted: int | None, updated: int, deleted: int) -> Self:
        """Return the counts of a run that changes some of the ``rows_before`` rows."""
        unchanged = None if rows_before is None else max(rows_before - updated - deleted, 0)
        return cls(inserted=inserted, updated=updated, deleted=deleted, unchanged=unchanged)


class Report(_ReportPart):
    """The report of a run or a dry run."""

    job: str = Field(description="The capability that ran.")
    run_mode: RunMode = Field(
        description="`initial`: the first run; `full`: all data was evaluated; `incremental`: only changes"
        " since the previous run were evaluated; `noop`: nothing had to be done; `undo`: earlier runs were"
        " undone."
    )
    run_mode_reason: str = Field(description="The reason for the run mode.")
    changed: bool = Field(
        description="Whether the run changed rows of the target. A join that replaces its rows has changed "
        "them, equal or not."
    )
    dry_run: bool = Field(description="Whether the run stopped before its commit.")
    target: TargetReport = Field(description="The target and its versions.")
    sources: dict[str, SourceReport] = Field(description="The sources by name.")
    rows: RowCounts = Field(description="The effect of the run on the rows of the target.")
    counts: dict[str, int | None] = Field(description="The counts that are specific to the capability.")
    details: dict[str, Any] = Field(description="Other information that is specific to the capability.")
    seconds: dict[str, float] = Field(
        description="The duration of every step; with `launch` (starting and stopping the process) and"
        " `other`, they add up to the duration of the run."
    )
    warnings: list[str] = Field(description="Warnings that the user should check.")
    populated: bool | None = Field(
        None, description="Whether the target is populated; null if the run does not determine it."
    )
    became_populated: bool = Field(
        default=False, description="Whether the target became populated by this run."
    )
    approved_by: str | None = Field(
        None,
        description="The user who approved the changes of the run; null without an approval.",
    )
    plan: ChangeSummary | None = Field(
        None,
        description="The rows that a run without a commit would change; null for a run with a commit, and for"
        " one that reads no rows.",
    )
    expectations: list[ExpectationResult] = Field(
        [], description="The expectations that were checked, and how many rows do not meet them."
    )
    summary: str = Field("", description="What the run did, in a sentence; empty outside of Airflow.")
    truncated: list[str] = Field(
        [], description="The parts that were truncated because the report exceeds 4 KiB."
    )

    def as_json(self) -> dict[str, Any]:
        """Return the report as it leaves a process: values that JSON has."""
        return self.model_dump(mode="json")

    def with_seconds(self, seconds: Mapping[str, float]) -> Self:
        """Return the report with other durations."""
        return self.model_copy(update={"seconds": dict(seconds)})

    def with_population(self, *, populated: bool | None, became_populated: bool) -> Self:
        """Return the report with what the run did to the flag of its target."""
        return self.model_copy(update={"populated": populated, "became_populated": became_populated})

    def add_launch_seconds(self, elapsed: float) -> Self:
        """Return the report with the time to start and end its process; ``elapsed`` is the total."""
        launch_seconds = round(max(elapsed - sum(self.seconds.values()), 0.0), 3)
        return self.with_seconds({LAUNCH: launch_seconds, **self.seconds})


def fill_counts(measures: Iterable[Measure], counts: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return all counts of a capability, with 0 for those that a run does not set.

    :raises ValueError: if there is a count that the capability does not declare.
    """
    names = [measure.name for measure in measures]
    if unknown := sorted(counts.keys() - set(names)):
        raise ValueError(f"undeclared counts: {', '.join(unknown)}")
    return {name: counts.get(name, 0) for name in names}


def clear_run_counts(measures: Iterable[Measure], counts: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return the counts of a run that does nothing, given the ``counts`` of the run before."""
    return {
        measure.name: counts.get(measure.name) if measure.scope == "target" else 0 for measure in measures
    }


def summarize_report(report: Report) -> str:
    """Return one line for the log: what the run did, to how many rows, and why."""
    mode, reason, is_dry_run = report.run_mode, report.run_mode_reason, report.dry_run
    if mode == "noop":
        return f"nothing to do: {reason}"
    target = report.target
    version_text = "" if is_dry_run or target.version is None else f"; version {target.version}"
    if mode == "undo":
        return f"{_summarize_undo(report)} of {target.dataset}: {reason}{version_text}"
    run = f"{mode} {'dry run' if is_dry_run else 'run'} ({reason})"
    rows = f"{'would write' if is_dry_run else 'wrote'} {_summarize_rows(report.rows, target.dataset)}"
    return f"{run}: {rows}{version_text}{_summarize_sources(report.sources)}"


def _summarize_undo(report: Report) -> str:
    runs = report.counts["runs"]
    # The undo of an undo.
    if not runs and (restored := report.details.get("restored")):
        number = "1 run" if len(restored) == 1 else "several runs"
        return f"{'would restore' if report.dry_run else 'restored'} {number}"
    return f"{'would undo' if report.dry_run else 'undid'} {'1 run' if runs == 1 else f'{runs} runs'}"


def _summarize_rows(rows: RowCounts, target: str) -> str:
    """Return how many rows are written, by kind; rows that stay as they are are not written."""
    counts = {kind: count for kind, count in rows if kind != "unchanged" and count != 0}
    if None in counts.values():
        return f"an unknown number of rows to {target}"
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    total = sum(count or 0 for count in counts.values())
    return f"{total} {'row' if total == 1 else 'rows'} to {target}{f': {kinds}' if kinds else ''}"


def _summarize_sources(sources: Mapping[str, SourceReport]) -> str:
    """Return how many rows the sources have, as far as they are counted."""
    texts = [f"{name} with {source.rows} rows" for name, source in sources.items() if source.rows is not None]
    if not texts:
        return ""
    more = len(texts) - _NAMED_SOURCES_MAX
    return f"; read {', '.join(texts[:_NAMED_SOURCES_MAX])}{f' and {more} more' if more > 0 else ''}"


def build_event_extra(report: Report, run_id: str) -> dict[str, Any]:
    """Return the extra of the target's asset event: the run, the version of the table and the counts."""
    reasons = report.details.get("reasons")
    return {
        "job": report.job,
        "run": run_id,
        "run_mode": report.run_mode,
        "version": report.target.version,
        "uri": report.target.uri,
        "rows": report.rows.model_dump(),
        "counts": report.counts,
        **({} if report.populated is None else {"populated": report.populated}),
        **({"reasons": reasons} if reasons else {}),
    }


def truncate_report(report: Report, limit: int = REPORT_MAX_BYTES) -> Report:
    """Return a report of at most ``limit`` bytes of JSON, with the same keys.

    The example rows of a plan and of expectations are removed first, then the largest parts of ``details``.
    Then warnings and sources are shortened, and finally long texts. ``truncated`` lists what was shortened.
    """
    result = report
    for name, changes in _list_truncations(report):
        if count_bytes(result) <= limit:
            return result
        result = result.model_copy(update={**changes, "truncated": [*result.truncated, name]})
    return result if count_bytes(result) <= limit else Report.model_validate(_cut_texts(result.as_json()))


def _list_truncations(report: Report) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the parts that a report can be truncated by, with the shorter values, in their order."""
    if report.plan is not None and report.plan.examples:
        yield "plan.examples", {"plan": report.plan.model_copy(update={"examples": []})}
    if any(item.examples for item in report.expectations):
        shorter = [item.model_copy(update={"examples": []}) for item in report.expectations]
        yield "expectations.examples", {"expectations": shorter}
    details = report.details
    for name in sorted(details, key=lambda key: (-count_bytes(report.details[key]), key)):
        details = {key: value for key, value in details.items() if key != name}
        yield f"details.{cut_text(name, _TEXT_MAX_BYTES)}", {"details": details}
    warnings = [cut_text(warning, _TEXT_MAX_BYTES) for warning in report.warnings[:_SUMMARY_WARNINGS_MAX]]
    yield "warnings", {"warnings": warnings}
    sources = {
        cut_text(name, _TEXT_MAX_BYTES // 2): SourceReport.model_validate(_cut_texts(source.model_dump()))
        for name, source in list(report.sources.items())[:_NAMED_SOURCES_MAX]
    }
    yield "sources", {"sources": sources}
    # Only the total: a report this long leaves out the times of the steps.
    yield "seconds", {"seconds": {OTHER: round(sum(report.seconds.values()), 3)}}


def truncate_plan(plan: ChangeSummary) -> ChangeSummary:
    """Return the changes of a plan in at most 48 KiB of JSON: with all examples, or with the first ones."""
    examples: list[ChangeExample] = []
    size = count_bytes(plan.model_copy(update={"examples": examples}))
    for example in plan.examples:
        size += count_bytes(example) + 2
        if size > _PLAN_MAX_BYTES:
            break
        examples.append(example)
    return plan.model_copy(update={"examples": examples})


def count_bytes(value: Any) -> int:
    """Return the bytes of a value, or of a model, as JSON."""
    json_value = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return len(json.dumps(json_value, default=str).encode())


def cut_text(text: str, limit: int) -> str:
    """Shorten a text to ``limit`` bytes of JSON; keep both ends, as a path is most specific at its end."""
    if count_bytes(text) <= limit:
        return text
    half = len(text) // 2
    while half and count_bytes(text[:half] + _ELLIPSIS + text[-half:]) > limit:
        half = half * 3 // 4
    return text[:half] + _ELLIPSIS + text[len(text) - half :]


def _cut_texts(value: Any) -> Any:
    if isinstance(value, str):
        return cut_text(value, _TEXT_MAX_BYTES)
    if isinstance(value, Mapping):
        return {cut_text(str(name), _TEXT_MAX_BYTES): _cut_texts(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_cut_texts(item) for item in value]
    return value


_NULLABLE_INTEGER = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


def build_report_schema(counts: Iterable[tuple[str, Sequence[Measure]]]) -> dict[str, Any]:
    """Return the JSON Schema of the reports of all capabilities.

    :param counts: jobs and the counts of their reports; a job may have several kinds of reports.
    """
    schema = Report.model_json_schema(mode="serialization")
    cases = [
        {"properties": {"job": {"const": job}, "counts": _build_counts_schema(measures)}}
        for job, measures in counts
    ]
    return {**schema, "oneOf": cases}


def _build_counts_schema(measures: Sequence[Measure]) -> dict[str, Any]:
    properties = {
        measure.name: {**_NULLABLE_INTEGER, "description": f"{measure.description} ({measure.unit})"}
        for measure in measures
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(properties),
    }


def render_keys() -> str:
    """Return the keys of a report as a Markdown table."""
    return _render_table(["key", "meaning"], _list_keys(Report.model_json_schema(mode="serialization")))


def render_counts(measures: Sequence[Measure]) -> str:
    """Return the counts of a capability as a Markdown table."""
    rows = ([f"`{measure.name}`", measure.unit, measure.scope, measure.description] for measure in measures)
    return _render_table(["count", "unit", "of the", "meaning"], rows)


def _list_keys(schema: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, key_schema in schema["properties"].items():
        yield [f"`{name}`", key_schema["description"]]
        value_schema = key_schema.get("additionalProperties", key_schema)
        reference = value_schema.get("$ref", "") if isinstance(value_schema, Mapping) else ""
        definition = schema.get("$defs", {}).get(reference.rpartition("/")[2], {})
        path = f"{name}.*" if value_schema is not key_schema else name
        for field, field_schema in definition.get("properties", {}).items():
            yield [f"`{path}.{field}`", field_schema["description"]]


def _render_table(titles: Sequence[str], rows: Iterator[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
