"""The configuration of a merge engine: the table options of Paimon and the operator's settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import ErrorDetails

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem, did_you_mean
from airflow_merge_provider.core.expectations.config import find_problems
from airflow_merge_provider.core.merge_engine.option_conflicts import find_contradictions, is_among
from airflow_merge_provider.core.merge_engine.options import (
    AGGREGATION,
    DEDUPLICATE,
    ENGINES,
    FIRST_ROW,
    PARTIAL,
    WITHOUT_EFFECT,
    Options,
    read_options,
)
from airflow_merge_provider.core.model import INPUT, KEY, NO_COLUMN, OUTPUT, SOURCE_COLUMN, Config
from airflow_merge_provider.core.source_offset import RunState

STRICT = ("tie", "null-sequence", "orphan-retract", "lone-update")
_OF_SEQUENCE = ("tie", "null-sequence")
_RETENTION = re.compile(r"(\d+(?:\.\d+)?)\s*(hour|day|week)s?\Z")
_NO_KEY = "must be a list with at least one column"


def _read_columns(value: Any) -> tuple[str, ...]:
    """Parse a list of names, or a text with commas as Paimon writes it."""
    raw_names = value.split(",") if isinstance(value, str) else value
    if not isinstance(raw_names, list | tuple) or not all(isinstance(word, str) for word in raw_names):
        raise ValueError(f"must be a list of column names, not {value!r}")
    names = tuple(word.strip() for word in raw_names)
    if not all(names):
        raise ValueError(f"must be a list of column names without empty names, not {value!r}")
    duplicate = next((word for at, word in enumerate(names) if is_among(word, names[:at])), None)
    if duplicate is not None:
        raise ValueError(f"column {duplicate!r} appears more than once")
    return names


def _read_key(value: Any) -> tuple[str, ...]:
    key = _read_columns(value)
    if not key:
        raise ValueError(_NO_KEY)
    return key


def _read_engine(value: Any) -> Any:
    if value not in ENGINES:
        suggestion = did_you_mean(str(value), ENGINES)
        valid_values = f"one of {', '.join(ENGINES)}"
        raise ValueError(
            f"must be {valid_values}, not {value!r} (merge-engine in Paimon)"
            + (f"; {suggestion}" if suggestion else "")
        )
    return value


def _read_options(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError(f"must be an object of table options, not {value!r}")  # noqa: TRY004 - what pydantic understands
    return {str(name): option for name, option in value.items()}


def _fail_on(value: Any) -> tuple[str, ...]:
    conditions = _read_columns(value)
    unknown_condition = next((word for word in conditions if word not in STRICT), None)
    if unknown_condition is not None:
        raise ValueError(f"must contain only {', '.join(STRICT)}, not {unknown_condition!r}")
    return conditions


def _read_duration(value: Any) -> timedelta | None:
    """Parse a duration: a number of days, or a text such as ``12 hours``; 0 becomes None."""
    if value is None or isinstance(value, timedelta):
        return value or None
    number, unit = value, "day"
    if isinstance(value, str) and (match := _RETENTION.match(value.strip().lower())):
        number, unit = float(match[1]), match[2]
    if isinstance(number, int | float) and not isinstance(number, bool) and number >= 0:
        try:
            return timedelta(**{f"{unit}s": number}) or None
        except OverflowError:
            raise ValueError(f"{value!r} is too long: the maximum is 999999999 days") from None
    if isinstance(value, str) and value.strip() == "0":
        return None
    raise ValueError(f"must be a number of days, or a string such as '12 hours', not {value!r}")


Columns = Annotated[tuple[str, ...], BeforeValidator(_read_columns), SOURCE_COLUMN]
Name = Annotated[str, Field(min_length=1)]


class MergeEngineConfig(Config):
    """A validated merge engine; ``checks.plan_fold`` checks what depends on the columns of the table."""

    unknown_word: ClassVar[str] = "unknown argument"

    source: Annotated[str | None, INPUT] = Field(None, description="The dataset of records to fold.")
    target: Annotated[str | None, OUTPUT] = Field(
        None, description="The table that the records are folded into."
    )
    primary_key: Annotated[tuple[str, ...], BeforeValidator(_read_key), KEY] = Field(
        description="The key columns; records with the same key are folded into one row."
    )
    merge_engine: Annotated[
        Literal["deduplicate", "partial-update", "aggregation", "first-row"], BeforeValidator(_read_engine)
    ] = Field("deduplicate", description="How the records of a key are folded into one row.")
    options: Annotated[dict[str, Any] | None, BeforeValidator(_read_options), SOURCE_COLUMN] = Field(
        None, description="Table options with their names in Paimon, such as sequence.field."
    )
    row_kind_column: Annotated[Name | None, SOURCE_COLUMN] = Field(
        None,
        description="The source column with the row kind (+I, -U, +U or -D); the target does not store it.",
    )
    order_by: Columns = Field(
        (),
        description="The columns that define the arrival order; by default, source commits and files do.",
    )
    partition_by: Columns = Field((), description="The partition columns of a new target.")
    clear_column: Annotated[Name | None, SOURCE_COLUMN] = Field(
        None, description="The source column that lists the columns which a record sets to NULL."
    )
    tombstone_retention: Annotated[timedelta | None, BeforeValidator(_read_duration)] = Field(
        None,
        description="How long removals are stored, so that older records are ignored, such as 7 days.",
    )
    compact_ratio: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Compact the target when more than this share of its stored rows is outdated."
    )
    expect: Annotated[dict[str, Any] | None, SOURCE_COLUMN] = Field(
        None,
        description="Conditions on records of the source, or on the rows that the run changes, by name.",
    )
    batch_id: Annotated[Name | None, NO_COLUMN] = Field(
        None, description="The ID of the batch; a batch that was already folded is not folded again."
    )
    changelog: Annotated[str | None, OUTPUT] = Field(
        None,
        description="The table to which runs append their net changes, with row kinds and run numbers.",
    )
    fail_on: Annotated[tuple[str, ...], BeforeValidator(_fail_on), NO_COLUMN] = Field(
        (),
        description="Conditions that fail a run: tie, null-sequence, orphan-retract, lone-update; "
        "by default none.",
    )
    incremental: bool = Field(
        default=True,
        description="Whether a run reads only records added to the source since the previous run.",
    )

    @property
    def table_options(self) -> Options:
        """The parsed table options."""
        return read_options(self.options or {}, self.merge_engine)[0]

    @property
    def options_without_effect(self) -> tuple[str, ...]:
        """The options that are accepted but have no effect."""
        return tuple(name for name in WITHOUT_EFFECT if name in (self.options or {}))

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        yield from _reference_problems(fields)
        yield from find_problems(fields.get("expect"))
        if "options" not in fields:
            return
        engine = fields.get("merge_engine")
        options, problems = read_options(fields["options"] or {}, engine)
        yield from problems
        key = fields.get("primary_key", ())
        partition_by = fields.get("partition_by", ())
        if engine is not None:
            yield from find_contradictions(options, engine, key, partition_by)
            yield from _partition_problems(engine, key, partition_by)
            yield from _retention_problems(fields, options, engine)
            if fields.get("clear_column") and engine in {DEDUPLICATE, FIRST_ROW}:
                message = f"clear_column requires columns that skip NULLs, but {engine} stores whole records"
                yield Problem("clear_column", "engine", message, "remove it")
        unordered = [word for word in fields.get("fail_on", ()) if word in _OF_SEQUENCE]
        if unordered and not options.sequence:
            message = f"{unordered[0]} requires the option sequence.field, which is not set"
            yield Problem("fail_on", "contradiction", message, "set it to the columns that order the records")
        if fields.get("row_kind_column") and options.row_kind_field:
            message = "row_kind_column cannot be combined with the option rowkind.field"
            yield Problem("row_kind_column", "contradiction", message, "remove one of them")

    def list_warnings(self) -> list[str]:
        options = self.table_options
        key = {name.casefold() for name in self.primary_key}
        ordering = {name.casefold() for group in options.groups for name in group.order}
        warnings = [
            f"options.fields.{column}.aggregate-function: has no effect on a column of "
            + ("primary_key" if column.casefold() in key else "an ordering field")
            for column, column_options in options.columns.items()
            if column_options.function and column.casefold() in key | ordering
        ]
        warnings += [f"options.{name}: has no effect (remove it)" for name in self.options_without_effect]
        if options.producer == "input":
            warnings.append("options.changelog-producer: input writes the net changes of a run, like lookup")
        if self.merge_engine == PARTIAL and options.sequence and not options.groups:
            warnings.append(
                "options.sequence.field: orders whole rows, so the result depends on the order of arrival:"
                " among records older than the row, the first to arrive fills a NULL column, not the newest "
                "(if records fill different columns, set fields.<ordering column>.sequence-group for them)"
            )
        return warnings

    @classmethod
    def _build_problem(cls, detail: ErrorDetails) -> Problem:
        if detail["type"] == "missing" and detail["loc"] == ("primary_key",):
            return Problem("primary_key", "missing", _NO_KEY)
        return super()._build_problem(detail)


def find_recorded_key(state: RunState) -> tuple[str, ...] | None:
    """Return the primary key that the state of a run records; None if it records none."""
    configs = state.get("configs")
    return MergeEngineConfig.parse(next(iter(configs.values()))).primary_key if configs else None


def _retention_problems(fields: Mapping[str, Any], options: Options, engine: str) -> Iterator[Problem]:
    """Yield problems for a removal retention without removals, or without an order of records."""
    if fields.get("tombstone_retention") is None:
        return
    removes = options.remove_on_delete or options.remove_on_groups or engine == DEDUPLICATE
    if engine == FIRST_ROW or options.ignore_delete or not removes:
        message, hint = "no option removes rows", "remove it, or set an option that removes rows"
    elif not options.sequence and not options.remove_on_groups:
        message, hint = "no option orders the records of different batches", "set sequence.field"
    else:
        return
    yield Problem("tombstone_retention", "contradiction", f"has no effect: {message}", hint)


def _partition_problems(
    engine: str, key: tuple[str, ...], partition_by: tuple[str, ...]
) -> Iterator[Problem]:
    outside = [name for name in partition_by if not is_among(name, key)]
    if outside and engine in {PARTIAL, AGGREGATION}:
        message = (
            f"column {outside[0]!r} is not in primary_key, and {engine} cannot move rows between partitions"
        )
        yield Problem(
            "partition_by", "contradiction", message, "add it to primary_key, or remove it from partition_by"
        )


def _reference_problems(fields: Mapping[str, Any]) -> Iterator[Problem]:
    uris = {}
    for path in ("source", "target", "changelog"):
        if fields.get(path) is None:
            continue
        try:
            uris[path] = resolve_dataset(fields[path], "/", at=path).uri
        except ConfigError as error:
            yield from error.problems
    for path, uri in uris.items():
        first = next(other_path for other_path in uris if uris[other_path] == uri)
        if first != path:
            yield Problem(path, "duplicate", f"{fields[path]!r} is also the {first}", "set another dataset")
