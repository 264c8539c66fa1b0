"""The merge strategies on plain entities: the reference for all other implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_merge_provider.core.merge_source.dtl.values import as_list, distinct_values
from airflow_merge_provider.core.merge_source.identity import Member, output_id

IDS, REPLACED, MERGED = "$ids", "$replaced", "$merged"
Entity = Mapping[str, Any]


def is_deleted(entity: Entity) -> bool:
    """Return whether an entity is deleted: only the value ``true`` counts; a filtered entity is deleted."""
    return entity.get("_deleted") is True or entity.get("_filtered") is True


def merge_members(
    members: Sequence[Entity], strategy: str, *, include_internal: bool = False
) -> dict[str, Any]:
    """Return ``$ids`` and the properties of entities merged in this order.

    >>> merge_members([{"_id": "a", "y": [2, 1]}, {"_id": "b", "y": 2, "z": [3, 3]}], "default")
    {'$ids': ['a', 'b'], 'y': [2, 1, 2], 'z': [3, 3]}
    """
    output: dict[str, Any] = {IDS: merge_ids(members)}
    if strategy == "list":
        output[MERGED] = [_list_member(member, include_internal=include_internal) for member in members]
        return output
    for name, values in _collect_values(members).items():
        if strategy == "default":
            output[name] = values[0] if len(values) == 1 else _splice_values(values)
        elif distinct := distinct_values(_splice_values(values)):
            # A list inside the list stays wrapped: [[1]] is one value, and that value is a list.
            output[name] = distinct if len(distinct) > 1 or isinstance(distinct[0], list) else distinct[0]
    return output


def merge_ids(members: Sequence[Entity]) -> list[Any]:
    """Return the union of the original IDs: the ``$ids`` of an entity, else its own ID."""
    return distinct_values(
        item
        for member in members
        for item in as_list(member["_id"] if member.get(IDS) is None else member[IDS])
        if item is not None
    )


def render_output(
    members: Mapping[Member, Entity], *, identity: str, strategy: str, include_internal: bool = False
) -> dict[str, Any]:
    """Return the output of a cluster, or of one deleted entity, without its sequence number."""
    entities = [members[member] for member in sorted(members)]
    output = {
        "_id": output_id(members, identity),
        **merge_members(entities, strategy, include_internal=include_internal),
    }
    if is_deleted(entities[0]):
        output["_deleted"] = True
        # The tombstone of an upstream merge stays a tombstone; on a live entity the flag is dropped.
        if entities[0].get(REPLACED) is True:
            output[REPLACED] = True
    return output


def _collect_values(members: Sequence[Entity]) -> dict[str, list[Any]]:
    """Collect the values of each property in member order; root properties with ``_`` are not content."""
    values_by_name: dict[str, list[Any]] = {}
    for member in members:
        for name, value in member.items():
            if not name.startswith("_") and name not in (IDS, REPLACED):
                values_by_name.setdefault(name, []).append(value)
    return values_by_name


def _splice_values(values: Sequence[Any]) -> list[Any]:
    """Concatenate values into one list: lists are unpacked one level deep, and null is an item."""
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def _list_member(member: Entity, *, include_internal: bool) -> dict[str, Any]:
    if include_internal:
        return {name: value for name, value in member.items() if name not in ("_deleted", "_filtered")}
    return {name: value for name, value in member.items() if name == "_id" or not name.startswith("_")}
