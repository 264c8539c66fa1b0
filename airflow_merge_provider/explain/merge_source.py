"""Explain why entities were merged; reads only the target table, without Spark and Airflow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from airflow_merge_provider.core.dataset import Dataset, resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, DataError, MergeError, Problem
from airflow_merge_provider.core.merge_source.explanation import (
    EntityExplanation,
    EntityRef,
    Explanation,
    Link,
    explain_entities,
    explain_row,
    find_links_between,
    format_entity,
    list_links,
    unknown_output,
)
from airflow_merge_provider.core.run.previous_run import list_state_commits
from airflow_merge_provider.core.source_offset import SourceOffset, find_offset, read_offsets
from airflow_merge_provider.core.value_text import Row
from airflow_merge_provider.explain.model.joins import InputRows
from airflow_merge_provider.explain.reading import query_rows, quote_text, read_input_rows, read_lineage
from airflow_merge_provider.explain.target import open_target

if TYPE_CHECKING:
    from deltalake import DeltaTable

_ENTITY_COLUMNS = ("_id", "_deleted", "$replaced", "$replaced_by", "_members")
_CANDIDATES_MAX = 2000
_STABLE_ID = "$stable_id"


def explain_output(
    target: str, output_id: str, *, warehouse: str | None = None, version: int | None = None
) -> Explanation:
    """Return the entities of an output of a merge source, and the values that link them.

    ``version`` is the version of the target to read.

    :raises ConfigError: when the target has no location.
    :raises DataError: when it is not the target of a merge source, or has no such output.
    """
    return explain_row(_find_row(target, output_id, warehouse, version))


def explain_entity(
    target: str, entity: str, *, warehouse: str | None = None, version: int | None = None
) -> EntityExplanation:
    """Return the output of an entity, given as its ID or as ``dataset/id``.

    Entities of several datasets may have the same ID.

    :raises DataError: as ``explain_output`` does.
    """
    dataset, table = _open_golden_target(target, warehouse, version)
    explanation = _find_entity(dataset, table, entity)
    if not explanation.outputs:
        raise unknown_output(entity, dataset.uri, *_find_near(dataset, table, entity))
    return explanation


def explain_output_or_entity(
    target: str, key: str, *, warehouse: str | None = None, version: int | None = None
) -> Explanation | EntityExplanation:
    """Return the explanation of an output by its ID, by that of an entity, or by its ``$stable_id``.

    :raises DataError: as ``explain_output`` does.
    """
    dataset, table = _open_golden_target(target, warehouse, version)
    rows = _query_outputs(dataset, table, f'"_id" = {quote_text(key)}')
    row: Row | None = next(rows, None)
    if row is None:
        entity = _find_entity(dataset, table, key)
        if entity.outputs:
            return entity
        row = _find_stable_row(dataset, table, key)
    if row is None:
        raise unknown_output(key, dataset.uri, *_find_near(dataset, table, key))
    return explain_row(row)


def read_members(
    dataset: Dataset, table: DeltaTable, members: Sequence[EntityRef], warehouse: str | None
) -> Iterator[InputRows]:
    """Yield the row of each member of an output, as the newest run has read it in its dataset."""
    commits = list_state_commits(read_lineage(dataset, table).entries, "merge_source")
    offsets = read_offsets(commits[0].state) if commits else []
    for member in members:
        key, name = {"_id": member.id}, format_entity(member)
        try:
            uri = resolve_dataset(member.dataset, warehouse).uri
            offset = find_offset(offsets, SourceOffset(uri, None))
            if offset is None:
                raise DataError("the newest run has not read this dataset")
            yield InputRows(name, uri, offset.version, key, tuple(read_input_rows(offset, key)[1]))
        except MergeError as error:
            yield InputRows(name, member.dataset, None, key, missing=str(error).splitlines()[0])


def find_output_key(dataset: Dataset, table: DeltaTable, key: str) -> dict[str, str]:
    """Return the column and the value by which the rows of an output are read, as text.

    :param key: the ID of the output or of an entity, or its ``$stable_id``, as ``explain_output_or_entity``
        takes it.
    :raises ConfigError: if several outputs have an entity with this ID.
    """
    if next(_query_outputs(dataset, table, f'"_id" = {quote_text(key)}'), None) is not None:
        return {"_id": key}
    ids = list(dict.fromkeys(output.output_id for _, output in _find_entity(dataset, table, key).outputs))
    if len(ids) > 1:
        message = f"{key!r} is an entity of {', '.join(map(repr, ids))}"
        raise ConfigError.from_problems([Problem("key", "several", message, "name one of them")])
    is_stable = not ids and _find_stable_row(dataset, table, key) is not None
    return {_STABLE_ID: key} if is_stable else {"_id": ids[0] if ids else key}


def explain_between(
    target: str,
    output_id: str,
    start: str,
    end: str,
    *,
    warehouse: str | None = None,
    version: int | None = None,
) -> list[Link]:
    """Return the shortest chain of values between two members of an output, each given as ``dataset/id``.

    :raises DataError: as ``explain_output`` does, and when one of the two is not a member.
    """
    return find_links_between(_find_row(target, output_id, warehouse, version)["_members"] or [], start, end)


def list_all_links(
    target: str, *, warehouse: str | None = None, version: int | None = None
) -> Iterator[dict[str, str]]:
    """Yield the links of all outputs: output_id, left, right, rule and key, n - 1 rows for n members."""
    dataset, table = _open_golden_target(target, warehouse, version)
    query = 'SELECT "_id", "_members" FROM target WHERE cardinality("_members") > 1'
    for row in query_rows(dataset, table, query, ("_id", "_members")):
        yield from list_links(row["_id"], row["_members"])


def _find_entity(dataset: Dataset, table: DeltaTable, entity: str) -> EntityExplanation:
    """Return the outputs of the entities with an ID, or ``dataset/id``; empty if there are none."""
    # A dataset and an ID may contain slashes.
    parts = entity.split("/")
    ids = ["/".join(parts[start:]) for start in range(len(parts))]
    return explain_entities(_query_outputs(dataset, table, _has_member(ids)), entity)


def _find_stable_row(dataset: Dataset, table: DeltaTable, key: str) -> Row | None:
    """Return the output with a ``$stable_id``; a replaced one only if there is no other."""
    if _STABLE_ID not in _list_columns(table) or not (key.isascii() and key.isdecimal()):
        return None
    rows = list(_query_outputs(dataset, table, f'"{_STABLE_ID}" = {int(key)}'))
    return next((row for row in rows if row["_members"]), next(iter(rows), None))


def _find_row(target: str, output_id: str, warehouse: str | None, version: int | None) -> Row:
    dataset, table = _open_golden_target(target, warehouse, version)
    row = next(_query_outputs(dataset, table, f'"_id" = {quote_text(output_id)}'), None)
    if row is None:
        raise unknown_output(output_id, dataset.uri, *_find_near(dataset, table, output_id))
    return row


def _query_outputs(dataset: Dataset, table: DeltaTable, where: str) -> Iterator[Row]:
    """Yield the outputs that meet a condition, with the columns that an explanation needs."""
    names = [name for name in _ENTITY_COLUMNS if name in _list_columns(table)]
    columns = ", ".join(f'"{name}"' for name in names)
    yield from query_rows(dataset, table, f'SELECT {columns} FROM target WHERE {where} ORDER BY "_id"', names)


def _has_member(ids: Sequence[str]) -> str:
    """Return the condition on outputs with an entity of one of the IDs; ``$ids`` may have other ones."""
    members = 'SELECT "_id", unnest("_members") AS member FROM target'
    texts = ", ".join(map(quote_text, ids))
    return f""""_id" IN (SELECT "_id" FROM ({members}) WHERE member['id'] IN ({texts}))"""


def _find_near(dataset: Dataset, table: DeltaTable, output_id: str) -> tuple[list[str], list[str]]:
    """Return outputs that contain an entity with this id, and output ids with the same prefix."""

    def query_ids(where: str) -> list[str]:
        query = f'SELECT "_id" FROM target WHERE {where} LIMIT {_CANDIDATES_MAX}'
        return [row["_id"] for row in query_rows(dataset, table, query, ("_id",))]

    entity = output_id.rpartition("/")[2]
    holders = query_ids(_has_member([entity]))
    begin = output_id[: max(1, len(output_id) // 2)]
    return holders, [] if holders else query_ids(f'starts_with("_id", {quote_text(begin)})') or query_ids(
        "true"
    )


def _open_golden_target(
    target: str, warehouse: str | None, version: int | None
) -> tuple[Dataset, DeltaTable]:
    dataset, table = open_target(target, warehouse, version)
    if "_members" not in _list_columns(table):
        problem = Problem("target", "foreign-target", f"{dataset.uri} is not the target of a merge source")
        raise DataError.from_problems([problem])
    return dataset, table


def _list_columns(table: DeltaTable) -> list[str]:
    return [field.name for field in table.schema().fields]
