"""Why were these entities merged: the target table alone answers, without Spark and without Airflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_merge_provider.core.dataset import Dataset
from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.merge_source.chain import Link
from airflow_merge_provider.core.merge_source.explanation import (
    Explanation,
    between,
    explained,
    linked,
    unknown_output,
)
from airflow_merge_provider.explain.target import opened

if TYPE_CHECKING:
    from deltalake import DeltaTable

_COLUMNS = ("_id", "_deleted", "$replaced", "$replaced_by", "_members")
_CANDIDATES = 2000


def explain(
    target: str, output_id: str, *, warehouse: str | None = None, version: int | None = None
) -> Explanation:
    """Say of which entities an output of a merge source consists, and by which values they became one.

    ``version`` looks at the target as it was then.

    :raises ConfigError: when the target has no location.
    :raises DataError: when it is no merge source's target, or has no such output.
    """
    return explained(_row(target, output_id, warehouse, version))


def explain_between(
    target: str,
    output_id: str,
    start: str,
    end: str,
    *,
    warehouse: str | None = None,
    version: int | None = None,
) -> list[Link]:
    """Give the shortest chain of values between two members of an output, each named ``dataset/id``.

    :raises DataError: as ``explain`` does, and when one of the two is no member.
    """
    return between(_row(target, output_id, warehouse, version)["_members"] or [], start, end)


def links(
    target: str, *, warehouse: str | None = None, version: int | None = None
) -> Iterator[dict[str, str]]:
    """Yield the links of all outputs: output_id, left, right, rule and key, n - 1 rows for n members."""
    dataset, table = _opened(target, warehouse, version)
    query = 'SELECT "_id", "_members" FROM target WHERE cardinality("_members") > 1'
    for row in _selected(dataset, table, query, ("_id", "_members")):
        yield from linked(row["_id"], row["_members"])


def _row(target: str, output_id: str, warehouse: str | None, version: int | None) -> Mapping[str, Any]:
    dataset, table = _opened(target, warehouse, version)
    names = [name for name in _COLUMNS if name in _names(table)]
    columns = ", ".join(f'"{name}"' for name in names)
    query = f'SELECT {columns} FROM target WHERE "_id" = {_text(output_id)}'
    found = next(_selected(dataset, table, query, names), None)
    if found is None:
        raise unknown_output(output_id, dataset.uri, *_near(dataset, table, output_id))
    return found


def _near(dataset: Dataset, table: DeltaTable, output_id: str) -> tuple[list[str], list[str]]:
    """Find outputs that hold an entity of this id, and ids that begin alike."""

    def ids(where: str) -> list[str]:
        query = f'SELECT "_id" FROM target WHERE {where} LIMIT {_CANDIDATES}'
        return [row["_id"] for row in _selected(dataset, table, query, ("_id",))]

    entity = output_id.rpartition("/")[2]
    holders = ids(f'array_has("$ids", {_text(entity)})')
    begin = output_id[: max(1, len(output_id) // 2)]
    return holders, [] if holders else ids(f'starts_with("_id", {_text(begin)})') or ids("true")


def _opened(target: str, warehouse: str | None, version: int | None) -> tuple[Dataset, DeltaTable]:
    dataset, table = opened(target, warehouse, version)
    if "_members" not in _names(table):
        problem = Problem("target", "foreign-target", f"{dataset.uri} is no merge source's target")
        raise DataError.of([problem])
    return dataset, table


def _names(table: DeltaTable) -> list[str]:
    return [field.name for field in table.schema().fields]


def _selected(
    dataset: Dataset, table: DeltaTable, query: str, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query; the reader respects deletion vectors, which ``to_pyarrow_table`` refuses."""
    from deltalake import QueryBuilder
    from deltalake.exceptions import DeltaError

    try:
        batches = QueryBuilder().register("target", table).execute(query)
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in names]
            yield from (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    except DeltaError as error:
        raise DataError(f"{dataset.uri} cannot be read here: {error}") from error


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
