"""Oracle of the joiner, slow and simple: groups of matching keys, then every combination.

Source: docs/semantics/joiner.md, Groups and rows. Nothing of the package is used here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

Row = Mapping[str, Any]


def join_inputs(
    inputs: Mapping[str, Sequence[Row]],
    keys: Mapping[str, Sequence[str]],
    required: set[str],
    columns: Sequence[tuple[str, str]],
    *,
    nulls_match: bool,
) -> list[tuple[Any, ...]]:
    """Return the joined rows: the key, the columns, and the names of the inputs in the row."""
    out = []
    for group in _group_by_key(inputs, keys, nulls_match=nulls_match):
        if not required <= set(group):
            continue
        some = next(iter(group))
        key = [group[some][0][field] for field in keys[some]]
        for rows in product(*(group.get(stage, [None]) for stage in inputs)):
            present = dict(zip(inputs, rows, strict=True))
            values = [None if present[stage] is None else present[stage][field] for stage, field in columns]
            present_stages = tuple(stage for stage, row in present.items() if row is not None)
            out.append((*key, *values, present_stages))
    return out


def list_left_out(
    inputs: Mapping[str, Sequence[Row]],
    keys: Mapping[str, Sequence[str]],
    required: set[str],
    *,
    nulls_match: bool,
) -> list[tuple[str, Row]]:
    """Return the rows that are in no output row, each with its input."""
    groups = _group_by_key(inputs, keys, nulls_match=nulls_match)
    lost = [group for group in groups if not required <= set(group)]
    return [(stage, row) for group in lost for stage, rows in group.items() for row in rows]


def _group_by_key(
    inputs: Mapping[str, Sequence[Row]], keys: Mapping[str, Sequence[str]], *, nulls_match: bool
) -> list[dict[str, list[Row]]]:
    groups: dict[Any, dict[str, list[Row]]] = {}
    for stage, rows in inputs.items():
        for index, row in enumerate(rows):
            key: Any = tuple(row[field] for field in keys[stage])
            if None in key and not nulls_match:
                key = (stage, index)
            groups.setdefault(key, {}).setdefault(stage, []).append(row)
    return list(groups.values())
