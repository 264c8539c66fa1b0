"""Explain a row of a join: the input rows that made it, at the versions that the run read.

Neither Spark nor Airflow is needed: the commit records the inputs, their versions and the keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.run.previous_run import list_state_commits
from airflow_merge_provider.core.source_offset import SourceOffset, read_offsets
from airflow_merge_provider.core.value_text import Row, to_json_value
from airflow_merge_provider.explain.model.commits import CommitRef, KeyStates
from airflow_merge_provider.explain.model.joins import (
    InputRows,
    JoinDescription,
    JoinExplanation,
    Texts,
    explain_missing_row,
)
from airflow_merge_provider.explain.model.key import convert_key
from airflow_merge_provider.explain.model.rows import trace_changes
from airflow_merge_provider.explain.reading import (
    ROWS_MAX,
    list_types,
    open_input,
    query_keys,
    query_rows,
    quote_name,
    read_input_rows,
    read_lineage,
    read_states,
    render_key,
)
from airflow_merge_provider.explain.target import open_target, require_owner

if TYPE_CHECKING:
    from deltalake import DeltaTable

_JOINER = "joiner"
# The inputs of a join may hold decimals of different sizes, so one may lack a value of another.
_CONVERT = partial(convert_key, is_fitting=False)


def explain_joined_row(
    target: str, key: str, *, warehouse: str | None = None, version: int | None = None
) -> JoinExplanation:
    """Return the input rows that made the rows of a key, or why the key has no row.

    ``key`` is the value of the only key clause, or a JSON object with a value for each clause, named by the
    field of any input. Without keys, the object names output columns, or fields as ``input.field``.
    ``version`` is the version of the target to explain.

    :raises ConfigError: if the target or the key is not valid.
    :raises DataError: if no join wrote the target, or its commit does not record the join.
    """
    dataset, table = open_target(target, warehouse, version)
    require_owner(dataset, table, _JOINER)
    commit = _find_run(dataset, table)
    join = JoinDescription.from_state(commit.state["join"])
    output_keys = join.list_output_keys(join.parse_key(key))
    if not output_keys:
        return _explain_run(commit, key, missing="the target has no column with the key")
    output_values = [_CONVERT(texts, list_types(table)) for texts in output_keys]
    if not join.append:
        return _explain_run(commit, key, tuple(query_keys(dataset, table, output_values)))
    states = read_states(dataset, table, output_values)
    return _explain_run(_find_newest_append(states) or commit, key, states.newest.rows)


def _explain_run(
    commit: CommitRef, key: str, rows: tuple[Row, ...] | None = None, missing: str = ""
) -> JoinExplanation:
    join = JoinDescription.from_state(commit.state["join"])
    inputs, pairs = _read_inputs(join, commit, join.parse_key(key))
    reasons = () if rows else explain_missing_row(join, inputs, pairs, is_searched=rows is not None)
    return JoinExplanation(_name_key(join, inputs), commit, rows, inputs, reasons, missing)


def _find_run(dataset: Dataset, table: DeltaTable) -> CommitRef:
    """Return the commit of the newest join that no undo has undone.

    :raises DataError: if there is none, or if it does not record the join.
    """
    lineage = read_lineage(dataset, table)
    versions = {run.version for run in list_state_commits(lineage.entries, _JOINER)}
    commits = (CommitRef.from_entry(entry) for entry in lineage.entries if entry.version in versions)
    commit = next(commits, None)
    if commit is None or "join" not in commit.state:
        message = f"the newest run of {dataset.uri} does not record the join"
        if commit is None and lineage.is_complete:
            message = f"{dataset.uri} has no row of a join: all its runs are undone"
        elif commit is None:
            message = f"{dataset.uri} no longer has the commits of its runs in its history"
        hint = "run the task once with full_refresh=True"
        raise DataError.from_problems([Problem("target", "state", message, hint)])
    return commit


def _find_newest_append(states: KeyStates) -> CommitRef | None:
    """Return the newest run that added rows of the key."""
    changes = [change for change in trace_changes(states) if change.added and "join" in change.commit.state]
    return changes[-1].commit if changes else None


def _read_inputs(
    join: JoinDescription, commit: CommitRef, key: Mapping[str, Texts]
) -> tuple[tuple[InputRows, ...], int | None]:
    """Return the rows of each input with the key, and the number of pairs that meet the expression."""
    offsets = {offset.uri: offset for offset in read_offsets(commit.state)}
    inputs = [_read_input(join, stage, offsets[uri], key[stage]) for stage, uri in join.inputs.items()]
    pairs = None
    if join.expression is not None:
        pairs = _read_pairs(join, [offsets[uri] for uri in join.inputs.values()], key)
    if pairs:
        inputs = [
            replace(rows, rows=_list_distinct(pair[side] for pair in pairs), missing="")
            for side, rows in enumerate(inputs)
        ]
    return tuple(inputs), None if pairs is None else len(pairs)


def _read_input(join: JoinDescription, stage: str, offset: SourceOffset, texts: Texts) -> InputRows:
    rows = InputRows(stage, offset.uri, offset.version, texts, is_required=stage in join.required)
    if not texts:
        return replace(rows, missing="KEY has no field of this input")
    try:
        values, input_rows = read_input_rows(offset, texts, _CONVERT)
    except DataError as error:
        return replace(rows, missing=str(error).splitlines()[0])
    return replace(rows, key=values, rows=tuple(input_rows))


def _read_pairs(
    join: JoinDescription, offsets: Sequence[SourceOffset], key: Mapping[str, Texts]
) -> list[tuple[Row, ...]] | None:
    """Return the pairs of input rows that meet the expression; None if only Spark can evaluate it."""
    if '"' in str(join.expression):
        # Double quotes enclose strings in Spark, but names in delta-rs.
        return None
    try:
        (dataset, left), (_, right) = (open_input(offset) for offset in offsets)
        types = [list_types(left), list_types(right)]
        rows = list(query_rows(dataset, left, _build_pair_query(join, types, key), other=right))
    except DataError:
        return None
    return [
        tuple({name: row[f"{side}.{name}"] for name in names} for side, names in enumerate(types))
        for row in rows
    ]


def _build_pair_query(
    join: JoinDescription, types: Sequence[Mapping[str, str]], key: Mapping[str, Texts]
) -> str:
    """Return the query of the pairs; a column is named by the position of its input and its name."""
    aliases = [join.aliases[stage] for stage in join.inputs]
    expression = str(join.expression).replace("`", '"')
    selected = ", ".join(
        f"{quote_name(aliases[side])}.{quote_name(name)} AS {quote_name(f'{side}.{name}')}"
        for side, names in enumerate(types)
        for name in names
    )
    conditions = " AND ".join(
        render_key(_CONVERT(key[stage], types[side]), types[side], aliases[side])
        for side, stage in enumerate(join.inputs)
    )
    return (
        f"SELECT {selected} FROM target AS {quote_name(aliases[0])} JOIN other AS {quote_name(aliases[1])} "
        f"ON ({expression}) WHERE {conditions} LIMIT {ROWS_MAX}"
    )


def _list_distinct(rows: Iterable[Row]) -> tuple[Row, ...]:
    distinct_rows = {json.dumps(to_json_value(row)): row for row in rows}
    return tuple(row for _, row in sorted(distinct_rows.items()))


def _name_key(join: JoinDescription, inputs: Sequence[InputRows]) -> Row:
    """Return the key with its names: those of the key columns, or of the fields."""
    if not join.keys:
        return {f"{rows.stage}.{name}": value for rows in inputs for name, value in rows.key.items()}
    values = next(rows.key for rows in inputs if rows.stage == join.first)
    return dict(zip(join.key_columns or values, values.values(), strict=True))
