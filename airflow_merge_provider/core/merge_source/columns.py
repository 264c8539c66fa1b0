"""Check the columns of the datasets that a merge source merges."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from airflow_merge_provider.core.errors import DataError, Problem, suggest_name
from airflow_merge_provider.core.merge_source import refusals
from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.equality import find_unknown_columns, plan_rules
from airflow_merge_provider.core.merge_source.survivorship import DEFAULT, list_properties
from airflow_merge_provider.core.schema.key_types import is_comparable
from airflow_merge_provider.core.source_offset import RunState

IDS, REPLACED_COLUMN, FILTERED = "$ids", "$replaced", "_filtered"
ENTITY = "entity"
# The columns of merge source targets besides properties, so that such a target can be merged again.
_OF_TARGETS = ("$provenance", "$stable_id", "$replaced_by")
# The columns of a target that follow from its members, or that later runs read.
INTERNAL_COLUMNS = (
    "_updated", "_deleted", IDS, REPLACED_COLUMN, "_hash", "_previous", "_ts", "$provenance", "_members",
)  # fmt: skip
# The key in the state of a run that holds the columns of each dataset.
COLUMNS_STATE = "columns"


def list_property_names(names: Sequence[str]) -> list[str]:
    """Return the columns of a dataset that are merged."""
    return [name for name in names if not name.startswith(("_", "$"))]


def is_property(name: str, config: MergeSourceConfig) -> bool:
    """Return whether a column is content; the ID column is, unless its name starts with an underscore."""
    system_columns = (IDS, REPLACED_COLUMN, *_OF_TARGETS, config.deleted_column, config.sequence_column)
    return not name.startswith("_") and name not in system_columns


def check_lost_columns(
    config: MergeSourceConfig, previous_state: RunState, columns: Mapping[str, Sequence[str]]
) -> None:
    """Check that datasets still have the columns that the previous run merged, unless they may lack them.

    :param columns: the columns of every dataset that is there.
    :raises DataError: with every column that no longer exists.
    """
    if config.schema_evolution == "allow_missing" or config.reset:
        return
    error = refusals.refuse_missing_columns(previous_state.get(COLUMNS_STATE, {}), columns)
    if error is not None:
        raise error


def find_entity_column(types: Mapping[str, str], config: MergeSourceConfig) -> str | None:
    """Return the column that holds whole entities: the configured one, or a VARIANT called ``entity``.

    :param types: the types of a dataset's columns, by their names.
    """
    name = config.entity_column
    if name is None:
        return ENTITY if types.get(ENTITY) == "variant" else None
    return name if name in types and (types[name] == "variant" or _is_text(types[name])) else None


def find_order_problems(types: Mapping[str, str], name: str, config: MergeSourceConfig) -> Iterator[Problem]:
    """Yield the problem of a dataset whose sequence column has a type without an order.

    :param types: the types of its columns, by their names.
    :param name: the dataset.
    """
    kind = types.get(config.sequence_column or "", "")
    if not is_comparable(kind):
        message = f"column {config.sequence_column!r} is {kind.upper()}, which has no order"
        hint = "set sequence_column to a column of numbers, times or texts"
        yield Problem(f"dataset {name!r}", "sequence-type", message, hint)


def find_column_problems(types: Mapping[str, str], name: str, config: MergeSourceConfig) -> Iterator[Problem]:
    """Yield the problems of a dataset without a column of whole entities.

    :param types: the types of its columns, by their names.
    :param name: the dataset.
    """
    at, column_list = f"dataset {name!r}", f"columns: {', '.join(types)}"
    if config.entity_column is not None:
        yield _refuse_entity_column(config.entity_column, types, at, column_list)
        return
    id_column = config.id_column
    if id_column not in types:
        hint = f"set id_column to the column with the IDs; {column_list}"
        yield Problem(
            at, "no-id-column", f"entity without a string _id: there is no column {id_column!r}", hint
        )
    elif not _is_text(types[id_column]):
        kind = types[id_column].upper()
        yield Problem(
            at, "id-type", f"entity without a string _id: column {id_column!r} is {kind}", "cast it to STRING"
        )
    for flag in {config.deleted_column, FILTERED, REPLACED_COLUMN} & set(types):
        if types[flag] != "boolean":
            message = f"column {flag!r} is {types[flag].upper()}"
            yield Problem(at, "flag-type", message, "cast it to BOOLEAN upstream")
    if IDS in types and not _is_text(types[IDS].removeprefix("array<").removesuffix(">")):
        message = f"column {IDS!r} is {types[IDS].upper()}"
        yield Problem(at, "ids-type", message, "must be STRING or ARRAY<STRING>")


def check_rule_columns(
    config: MergeSourceConfig, columns: Mapping[int, Collection[str]], *, is_complete: bool
) -> None:
    """Check that the columns exist that rules and arguments name.

    :param columns: the columns of the datasets that have typed columns, by their offsets.
    :param is_complete: whether these are all datasets.
    :raises DataError: with every column that does not exist.
    """
    problems = list(find_unknown_columns(plan_rules(config), columns, config.dataset_ids))
    named = {"sequence_column": config.sequence_column, "deleted_column": config.deleted_column}
    named |= {"label_column": config.label_column} if config.label_column else {}
    known_columns = sorted({column for dataset_columns in columns.values() for column in dataset_columns})
    for argument, name in named.items():
        is_default = name == type(config).model_fields[argument].default
        if not is_default and is_complete and name not in known_columns:
            hint = suggest_name(name, known_columns, "columns")
            problems.append(Problem(argument, "unknown-column", f"no dataset has a column {name!r}", hint))
    if problems:
        raise DataError.from_problems(problems)


def check_survivorship_columns(
    config: MergeSourceConfig, columns: Mapping[int, Collection[str]]
) -> list[str]:
    """Check that a dataset has each property that a survivorship rule names.

    If some datasets do not exist yet, or have whole entities in one column, their properties are unknown; and
    with ``allow_missing``, a rule may name a column that the datasets have lost. This is a warning then.

    :param columns: the columns of the datasets that have typed columns, by their offsets.
    :return: the warnings.
    :raises DataError: with every property that does not exist.
    """
    properties = sorted({name for names in columns.values() for name in list_property_names([*names])})
    problems = [
        Problem(
            f"survivorship.{rule}",
            "unknown-column",
            f"no dataset has a column {name!r}",
            suggest_name(name, properties, "columns"),
        )
        for rule, raw_rule in (config.survivorship or {}).items()
        for name in list_properties(rule, raw_rule)
        if name not in (*properties, DEFAULT)
    ]
    if problems and len(columns) == len(config.datasets) and config.schema_evolution != "allow_missing":
        raise DataError.from_problems(problems)
    return [str(problem) for problem in problems if columns]


def _refuse_entity_column(name: str, types: Mapping[str, str], at: str, column_list: str) -> Problem:
    if name not in types:
        message = f"has no column {name!r}, which entity_column names"
        return Problem(at, "no-entity-column", message, column_list)
    hint = "entity_column must be a VARIANT column, or a STRING column with JSON"
    return Problem(at, "entity-type", f"column {name!r} is {types[name].upper()}", hint)


def _is_text(kind: str) -> bool:
    return kind == "string" or kind.startswith("string collate ")
