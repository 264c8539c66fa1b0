"""The options that all strategies of a merge load share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.expectations.config import find_problems
from airflow_merge_provider.core.model import (
    CONDITION,
    INPUT,
    KEY,
    NO_COLUMN,
    OUTPUT,
    SOURCE_COLUMN,
    Config,
)

ALLOW_MISSING = "allow_missing"
_NEW_COLUMNS = ("add", "error", "ignore")
ABSENT_ROWS = "the load would delete or close the stored rows of a row that it leaves out"
ROW_ID, PARENT_ID, ROOT_ID, LIST_INDEX = "_row_id", "_parent_id", "_root_id", "_list_index"


def _read_columns(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(_is_name(name) for name in names):
        raise ValueError("must be a column name, or a list of column names")
    duplicates = sorted({name for name in names if list(names).count(name) > 1})
    if duplicates:
        raise ValueError(f"column {duplicates[0]!r} is named more than once")
    return tuple(names)


def _read_column(value: Any) -> str | None:
    if value is None:
        return None
    if not _is_name(value):
        raise ValueError("must be the name of one column")
    return str(value)


def _dedup_sort(value: Any) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or len(value) != 1 or not all(_is_name(name) for name in value):
        raise ValueError('must name one column and its direction, such as {"updated_at": "desc"}')
    (direction,) = value.values()
    if direction not in ("asc", "desc"):
        raise ValueError(f"the direction must be 'asc' or 'desc', not {direction!r}")
    return dict(value)


@dataclass(frozen=True, slots=True)
class SchemaEvolution:
    """How a load handles differences between the columns of the source and the target.

    ``new_columns`` is ``add``, ``error`` or ``ignore``. Columns that the source lacks are NULL in the rows
    that are written if ``allows_missing``, and an error otherwise.
    """

    new_columns: str
    allows_missing: bool


def _schema_evolution(value: Any) -> str:
    """Return the words of a schema evolution in canonical spelling.

    >>> _schema_evolution(["allow_missing"])
    'add, allow_missing'
    """
    settings = value.replace(",", " ").split() if isinstance(value, str) else value
    is_list = isinstance(settings, list | tuple) and all(isinstance(setting, str) for setting in settings)
    unique_settings = set(settings) if is_list else set()
    column_settings = unique_settings - {ALLOW_MISSING}
    if (
        not unique_settings
        or len(unique_settings) < len(settings)
        or len(column_settings) > 1
        or not column_settings <= {*_NEW_COLUMNS}
    ):
        raise ValueError(
            "must be 'add', 'error' or 'ignore' (for new columns), optionally with 'allow_missing' (for "
            "columns that the source no longer has), such as ['add', 'allow_missing']"
        )
    new_columns = column_settings.pop() if column_settings else _NEW_COLUMNS[0]
    return f"{new_columns}, {ALLOW_MISSING}" if ALLOW_MISSING in unique_settings else new_columns


def dataset_ref(value: Any) -> Any:
    """Validate the value of a dataset reference; None is left to the field's own check."""
    if value is not None and not isinstance(value, str | Mapping):
        raise ValueError("must be a dataset: a string or an object")
    return value


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _read_condition(value: Any) -> str | None:
    return None if value is None else check_condition(value)


Columns = Annotated[tuple[str, ...] | None, BeforeValidator(_read_columns), SOURCE_COLUMN]
KeyColumns = Annotated[Columns, KEY]
Column = Annotated[str | None, BeforeValidator(_read_column), SOURCE_COLUMN]
Condition = Annotated[str | None, BeforeValidator(_read_condition), CONDITION]


class LoadConfig(Config):
    """The part of a merge load that all strategies share.

    Source: docs/semantics/merge_load.md, Load options.
    """

    internal_fields: ClassVar[frozenset[str]] = frozenset({"strategy"})

    source: Annotated[str | dict[str, Any], BeforeValidator(dataset_ref), INPUT] = Field(
        description="The dataset that holds the rows to load."
    )
    target: Annotated[str, Field(min_length=1), OUTPUT] = Field(
        description="The Delta table that the run writes."
    )
    source_filter: Condition = Field(
        None, description="A SQL condition: only source rows that match it are loaded."
    )
    hard_delete: Column = Field(
        None,
        description="The column that flags deleted rows: true, or any non-NULL value if it is not a boolean.",
    )
    hard_delete_when: Condition = Field(
        None,
        description="A SQL condition: source rows that match it are deleted rows, instead of hard_delete.",
    )
    dedup_sort: Annotated[dict[str, str] | None, BeforeValidator(_dedup_sort), SOURCE_COLUMN] = Field(
        None, description="Which of several rows with one key is used: the first by {column: asc or desc}."
    )
    on_empty: Literal["error", "skip", "apply"] | None = Field(
        None,
        description="Effect of a load without rows: error, skip, or apply it. By default, error if it would "
        "delete or close rows, otherwise skip.",
    )
    nested: Literal["columns", "tables"] = Field(
        "columns",
        description="columns: lists stay in their columns; tables: each list is written to a side table.",
    )
    schema_evolution: Annotated[
        str, BeforeValidator(_schema_evolution, json_schema_input_type=str | list[str]), NO_COLUMN
    ] = Field(
        "add",
        description="New columns of the source: add, error or ignore. Columns that the source no longer has: "
        "an error, or NULL with allow_missing.",
    )
    dispatch_by: Column = Field(
        None,
        description="The column whose value is the name of the row's table inside the target.",
    )
    expect: Annotated[dict[str, Any] | None, SOURCE_COLUMN] = Field(
        None,
        description="Conditions on rows of the source, or on the rows that the run changes, by name.",
    )
    adopt: bool = Field(
        default=False,
        description="Whether a target that another program has written is taken over, with its rows.",
    )

    @property
    def evolution(self) -> SchemaEvolution:
        """How differences between the columns of the source and the target are handled."""
        new_columns, *flags = self.schema_evolution.split(", ")
        return SchemaEvolution(new_columns, ALLOW_MISSING in flags)

    @property
    def identity_columns(self) -> tuple[str, ...]:
        """The columns of the target that identify a row; empty if no columns do."""
        return ()

    @property
    def has_flags(self) -> bool:
        """Whether rows of the source may be flagged as deleted."""
        return self.hard_delete is not None or self.hard_delete_when is not None

    def find_argument(self, column: str) -> str:
        """Return the argument that names a column; the column itself if no argument does.

        Only arguments that name columns are searched: a source may have the same name as a column.
        """
        for argument, mark in self.list_names().items():
            value = getattr(self, argument)
            is_named = value == column or (isinstance(value, tuple | dict) and column in value)
            if is_named and mark.columns in ("source", "result") and argument != "expect":
                return argument
        return column

    @property
    def absence_deletes(self) -> bool:
        """Whether rows that are missing in the load are deleted or closed."""
        return False

    @property
    def is_idempotent(self) -> bool:
        """Whether loading the same rows again changes nothing, at any time."""
        return False

    @property
    def is_append(self) -> bool:
        """Whether the load adds its rows to those of earlier loads, whatever these contain."""
        return False

    @property
    def empty_load(self) -> str:
        """The effect of a load without rows."""
        return self.on_empty or ("error" if self.absence_deletes else "skip")

    @property
    def sort(self) -> tuple[str, bool] | None:
        """The column that selects among rows with the same key, and whether the highest value wins."""
        if self.dedup_sort is None:
            return None
        ((name, direction),) = self.dedup_sort.items()
        return name, direction == "desc"

    @classmethod
    def explain_absence(cls, fields: Mapping[str, Any]) -> str | None:
        """Return why a row of the source cannot be left out of a load; None if it can."""
        return None

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        yield from find_problems(fields.get("expect"), no_quarantine=cls.explain_absence(fields))
        for path in ("source", "target"):
            if path in fields:
                yield from reference_problems(fields[path], path)
        if fields.get("hard_delete") is not None and fields.get("hard_delete_when") is not None:
            yield Problem(
                "hard_delete_when", "contradiction", "cannot be combined with hard_delete", "set one of them"
            )
        if fields.get("target") is not None and fields.get("target") == fields.get("source"):
            yield Problem("target", "target", "is the source of the load", "choose another target")


def is_timeless(config: LoadConfig, *conditions: str | None) -> bool:
    """Return whether the result depends only on the rows: a condition may depend on the current time.

    Lists in tables of their own are updated after the commit, so an interrupted run may still have to do
    this.
    """
    return config.nested == "columns" and not any(
        (config.source_filter, config.hard_delete_when, *conditions)
    )


def both_sorts(options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problem of two options that both select one of several rows."""
    if options.get("sequence_by") is not None and options.get("dedup_sort") is not None:
        hint = "set one of them: sequence_by rejects ties, dedup_sort uses the first row that arrived"
        yield Problem("sequence_by", "contradiction", "cannot be combined with dedup_sort", hint)


def collect_columns(*options: Iterable[str] | str | None) -> tuple[str, ...]:
    """Return all columns of several options, each once, in order.

    >>> collect_columns(("a", "b"), "c", None, ["a"])
    ('a', 'b', 'c')
    """
    columns: dict[str, None] = {}
    for option in options:
        columns.update(dict.fromkeys((option,) if isinstance(option, str) else option or ()))
    return tuple(columns)


def reference_problems(ref: Any, path: str) -> Iterator[Problem]:
    """Yield the problems of a reference to a dataset."""
    try:
        resolve_dataset(ref, "/", at=path)
    except ConfigError as error:
        yield from error.problems


PLACEHOLDERS = ("table", "staging_table")


def check_condition(value: Any) -> str:
    """Check the braces of a condition. Source: docs/semantics/merge_load.md, Conditions.

    :raises ValueError: when it is empty, its braces do not pair, or a placeholder is unknown.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a SQL condition")
    try:
        placeholders = [name for _, name, _, _ in Formatter().parse(value) if name is not None]
    except ValueError as error:
        raise ValueError(f"has unbalanced braces ({error}); write {{{{ and }}}} for literal braces") from None
    unknown = [name for name in placeholders if name not in PLACEHOLDERS]
    if unknown:
        valid_names = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise ValueError(f"has an unknown placeholder {{{unknown[0]}}} (valid placeholders: {valid_names})")
    return value


def fill_tables(text: str, *, table: str, staging_table: str) -> str:
    """Replace the placeholders of a checked condition with the names of the two tables.

    >>> fill_tables("{table}.day IN (SELECT day FROM {staging_table})", table="t", staging_table="s")
    't.day IN (SELECT day FROM s)'
    """
    return text.format(table=table, staging_table=staging_table)
