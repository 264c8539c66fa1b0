"""Find which rows two versions of a table can differ in, from the statistics of the files that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_merge_provider.delta_rs import read_columns
from airflow_merge_provider.explain.reading import list_types, quote_name, render_literal

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Types whose statistics are exact: those of strings are cut off, those of timestamps are rounded.
_EXACT_TYPES = frozenset({"byte", "short", "integer", "long", "date"})
_VECTORS = "deletionVectors"


def build_range_condition(before: DeltaTable, after: DeltaTable) -> str | None:
    """Return a condition that holds for every row which differs; None if no file differs.

    Files that both versions contain with the same deletion vector hold the same rows. All other rows are
    inside the ranges that the statistics of the remaining files give, and delta-rs skips files outside them.
    """
    files = _list_files(before), _list_files(after)
    differing = [side[path] for side, other in (files, files[::-1]) for path in side.keys() - other.keys()]
    for path in _find_differing_vectors(before, after):
        entries = [files[1][name] for name in files[1] if path.endswith((name, unquote(name)))]
        if not entries:
            return "true"
        differing += entries
    if not differing:
        return None
    types = {**list_types(before), **list_types(after)}
    ranges = ((name, _find_range(differing, name)) for name, kind in types.items() if kind in _EXACT_TYPES)
    conditions = [
        f"({quote_name(name)} IS NULL OR {quote_name(name)} BETWEEN {low} AND {high})"
        for name, limits in ranges
        if limits is not None and name in list_types(before) and name in list_types(after)
        for low, high in [[render_literal(limit, types[name]) for limit in limits]]
    ]
    return " AND ".join(conditions) or "true"


def _list_files(table: DeltaTable) -> dict[str, Mapping[str, Any]]:
    """Return the log entries of the files of a version by their paths."""
    columns = read_columns(table.get_add_actions(flatten=True))
    entries = (dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True))
    return {str(entry["path"]): entry for entry in entries}


def _find_differing_vectors(before: DeltaTable, after: DeltaTable) -> list[str]:
    """Return the full paths of the files with another deletion vector in each version."""
    first, last = dict(_digest_vectors(before)), dict(_digest_vectors(after))
    return [path for path in first.keys() | last.keys() if first.get(path) != last.get(path)]


def _digest_vectors(table: DeltaTable) -> Iterator[tuple[str, str]]:
    """Yield the path of each file with a deletion vector, and the digest of the vector."""
    if _VECTORS not in (table.protocol().reader_features or ()):
        return
    from arro3.core import list_flatten  # noqa: PLC0415 - a dependency of deltalake

    for batch in table.deletion_vectors():
        vectors = batch.column("selection_vector")
        for number, path in enumerate(batch.column("filepath").to_pylist()):
            vector = list_flatten(vectors.slice(number, 1)).to_numpy()
            yield str(path), sha256(vector.tobytes()).hexdigest()


def _find_range(entries: list[Mapping[str, Any]], name: str) -> tuple[Any, Any] | None:
    """Return the smallest and the largest value of a column in files; None if a file does not tell."""
    lows: list[Any] = []
    highs: list[Any] = []
    for entry in entries:
        partition = entry.get(f"partition.{name}")
        low, high = entry.get(f"min.{name}", partition), entry.get(f"max.{name}", partition)
        if low is None or high is None:
            return None
        lows.append(low)
        highs.append(high)
    return min(lows), max(highs)
