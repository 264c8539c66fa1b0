"""Oracle of the merge source, slow and simple: every pair and every value, in Python.

It computes what a first merge writes, and uses no code of the package. An entity is a dict of JSON values; a
``date`` is the value of a DATE column. Rules use paths of one or two elements and ``lower``, ``upper``,
``tuples``, ``combine`` and ``first``.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import pairwise, product
from typing import Any

Entity = dict[str, Any]
Member = tuple[int, str, Entity]


class RefusedError(Exception):
    """Raised if the run must be rejected; the text is part of its message."""


def first_run(config: Mapping[str, Any], inputs: Mapping[str, list[Entity]]) -> list[Entity]:
    """Return the written rows in order; of several versions of an entity the last counts."""
    return [output for output, _ in build_outputs(config, inputs)]


def build_outputs(
    config: Mapping[str, Any], inputs: Mapping[str, list[Entity]]
) -> list[tuple[Entity, set[tuple[int, str]]]]:
    """Return every output of the complete result, in order, each with its members."""
    names = [dataset.split()[0] for dataset in config["datasets"]]
    aliases = [dataset.split()[1] for dataset in config["datasets"]]
    members: list[Member] = []
    for offset, name in enumerate(names):
        latest = {entity["_id"]: entity for entity in inputs.get(name, [])}
        members += [(offset, id_, latest[id_]) for id_ in sorted(latest)]
    clusters = sorted(
        _build_clusters(members, all_rules(config), aliases), key=lambda cluster: cluster[0][:2]
    )
    _check_outputs(config, names, members, clusters)
    outputs: list[tuple[Entity, set[tuple[int, str]]]] = []
    output_ids = {_output_id(config, cluster) for cluster in clusters if not is_deleted(cluster[0][2])}
    for cluster in clusters:
        id_ = _output_id(config, cluster)
        if is_deleted(cluster[0][2]):
            if id_ in output_ids:
                continue
            output_ids.add(id_)
        output = {"_id": id_, "_updated": len(outputs), **render_output(config, cluster)}
        outputs.append((output, {member[:2] for member in cluster}))
    return outputs


class History:
    """A target over several runs: each run writes the difference between two complete results."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self._rows: dict[str, Entity] = {}
        self._members: dict[str, set[tuple[int, str]]] = {}
        self._next = 0

    def run_once(self, inputs: Mapping[str, list[Entity]]) -> list[Entity]:
        """Return what one more run over all current inputs writes, in order."""
        now = build_outputs(self.config, inputs)
        ids = {output["_id"] for output, _ in now}
        present = {member for _, members in now for member in members}
        written = []
        for id_ in sorted(self._rows, key=lambda id_: id_.encode()):
            if id_ not in ids and not self._rows[id_].get("_deleted"):
                replaced = {"$replaced": True} if self._members[id_] & present else {}
                written.append({"_id": id_, "_deleted": True, **replaced})
        for output, _ in now:
            content = {name: value for name, value in output.items() if name != "_updated"}
            if not _is_equal(self._rows.get(output["_id"]), content):
                written.append(content)
        self._members = {output["_id"]: members for output, members in now}
        for row in written:
            self._rows[row["_id"]] = dict(row)
            row["_updated"] = self._next
            self._next += 1
        return written


def _is_equal(left: Any, right: Any) -> bool:
    """Compare JSON values: numbers by value; a boolean does not equal a number."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_is_equal(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_equal, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def is_deleted(entity: Entity) -> bool:
    return entity.get("_deleted") is True or entity.get("_filtered") is True


def all_rules(config: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    rules = [(left, right) for _, left, right in config.get("equality", ())]
    for sides in config.get("equality_sets", ()):
        if config.get("equality_sets_mode") == "all_pairs":
            rules += [(left, right) for index, left in enumerate(sides) for right in sides[index + 1 :]]
        else:
            rules += list(pairwise(sides))
    return rules


def _build_clusters(
    members: list[Member], rules: list[tuple[Any, Any]], aliases: list[str]
) -> list[list[Member]]:
    """Unite the clusters of every pair of entities that any rule links."""
    clusters = [[member] for member in members]

    def unite_clusters(left_member: Member, right_member: Member) -> None:
        left = next(cluster for cluster in clusters if left_member in cluster)
        right = next(cluster for cluster in clusters if right_member in cluster)
        if left is not right:
            left.extend(right)
            clusters.remove(right)

    live = [member for member in members if not is_deleted(member[2])]
    for left, right in rules:
        pairs = product(_list_members(left, live, aliases), _list_members(right, live, aliases))
        for (left_member, left_values), (right_member, right_values) in pairs:
            if any(
                is_joined(left_value, right_value)
                for left_value in left_values
                for right_value in right_values
            ):
                unite_clusters(left_member, right_member)
    return [sorted(cluster, key=lambda member: member[:2]) for cluster in clusters]


def _list_members(side: Any, members: list[Member], aliases: list[str]) -> list[tuple[Member, list[Any]]]:
    """Return the members with values on a side, each with its values."""
    return [
        (member, _to_list(_evaluate_side(side, member[2])))
        for member in members
        if _is_reading(side, aliases[member[0]])
    ]


def _check_outputs(
    config: Mapping[str, Any], names: list[str], members: list[Member], clusters: list[list[Member]]
) -> None:
    ids = [id_ for _, id_, _ in members]
    most = config.get("max_merged", 50_000) if config.get("version", 1) == 2 else len(members)
    largest = max(map(len, clusters), default=0)
    if largest > most:
        raise RefusedError(f"max_merged: {largest} entities would be merged into one, the limit is {most}")
    if config.get("identity") != "first":
        return
    if config.get("version", 1) == 1 and len(set(ids)) < len(ids):
        raise RefusedError("version 1 with identity 'first': entity id")
    owners: dict[str, str] = {}
    for cluster in clusters:
        offset, id_, entity = cluster[0]
        if is_deleted(entity):
            continue
        if id_ in owners:
            raise RefusedError(f"duplicate output id {id_!r}: from {owners[id_]} and {names[offset]}/{id_}")
        owners[id_] = f"{names[offset]}/{id_}"


def _output_id(config: Mapping[str, Any], cluster: list[Member]) -> str:
    if config.get("identity") == "first":
        return cluster[0][1]
    return "|".join(f"{offset}|{id_}" for offset, id_, _ in cluster)


def _is_reading(side: Any, alias: str) -> bool:
    if isinstance(side, list):
        return any(_is_reading(argument, alias) for argument in side[1:])
    return bool(side.split(".")[0] == alias)


def _to_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _evaluate_side(side: Any, entity: Entity) -> Any:
    if isinstance(side, str):
        value: Any = entity
        for name in side.split(".")[1:]:
            value = _follow_name(value, name)
        return value
    name, *arguments = side
    values = [_evaluate_side(argument, entity) for argument in arguments]
    if name in ("lower", "upper"):
        return _change_case(name, values[0])
    if name == "first":
        return next(iter(values[0]), None) if isinstance(values[0], list) else values[0]
    if name == "combine":
        return [item for value in values for item in _to_list(value)]
    combinations: list[list[Any]] = [[]]  # tuples
    for value in values:
        items = [item for item in _to_list(value) if item is not None]
        combinations = [[*before, item] for before in combinations for item in items]
    return combinations


def _follow_name(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return value.get(name)
    if not isinstance(value, list):
        return None
    return [
        inner for item in value if isinstance(item, dict) and name in item for inner in _to_items(item[name])
    ]


def _to_items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _change_case(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_change_case(name, item) for item in value if _classify_value(item)[0] == "text"]
    if _classify_value(value)[0] != "text":
        return None
    return value.lower() if name == "lower" else value.upper()


def is_joined(left: Any, right: Any) -> bool:
    """Return whether two values are the same; null does not equal null."""
    return left is not None and right is not None and is_same(left, right)


def is_same(left: Any, right: Any) -> bool:
    (left_kind, left_value), (right_kind, right_value) = _classify_value(left), _classify_value(right)
    if left_kind != right_kind:
        return False
    if left_kind == "list":
        return len(left_value) == len(right_value) and all(map(is_same, left_value, right_value))
    if left_kind == "dict":
        return left_value.keys() == right_value.keys() and all(
            is_same(left_value[name], right_value[name]) for name in left_value
        )
    return bool(left_value == right_value)


def _classify_value(value: Any) -> tuple[str, Any]:
    if value is None or isinstance(value, bool):
        return ("null", None) if value is None else ("boolean", value)
    if isinstance(value, list | dict):
        return type(value).__name__, value
    if isinstance(value, dt.date):
        return "date", value.isoformat()
    if not isinstance(value, str):
        return "number", Decimal(str(value))
    for tag, kind in (("~:", "ni"), ("~t", "date")):
        if value.startswith(tag):
            return kind, value[2:]
    return ("number", Decimal(value[2:])) if value.startswith("~f") else ("text", value)


def render_output(config: Mapping[str, Any], cluster: list[Member]) -> Entity:
    """Return ``$ids``, the merged properties and the flags of a cluster whose members are in order."""
    output: Entity = {"$ids": _drop_duplicates([id_ for member in cluster for id_ in _own_ids(member)])}
    first = cluster[0][2]
    if is_deleted(first):
        output["_deleted"] = True
        if first.get("$replaced") is True:
            output["$replaced"] = True
    strategy = config.get("strategy", "default")
    if strategy == "list":
        internal = bool(config.get("include_internal_properties"))
        output["$merged"] = [
            _format_value(_list_member(entity, internal=internal)) for _, _, entity in cluster
        ]
        return output
    names = [name for _, _, entity in cluster for name in entity if _is_merged(name)]
    for name in dict.fromkeys(names):
        values = [entity[name] for _, _, entity in cluster if name in entity]
        spliced = [item for value in values for item in (value if isinstance(value, list) else [value])]
        if strategy == "default":
            output[name] = _format_value(values[0] if len(values) == 1 else spliced)
        elif distinct_values := _drop_duplicates(spliced):
            single = len(distinct_values) == 1 and not isinstance(distinct_values[0], list)
            output[name] = _format_value(distinct_values[0] if single else distinct_values)
    return output


def _is_merged(name: str) -> bool:
    return not name.startswith("_") and name not in ("$ids", "$replaced")


def _list_member(entity: Entity, *, internal: bool) -> Entity:
    if internal:
        return {name: value for name, value in entity.items() if name not in ("_deleted", "_filtered")}
    return {name: value for name, value in entity.items() if name == "_id" or not name.startswith("_")}


def _own_ids(member: Member) -> list[Any]:
    ids = member[2].get("$ids")
    return [member[1]] if ids is None else [id_ for id_ in _to_items(ids) if id_ is not None]


def _drop_duplicates(values: Sequence[Any]) -> list[Any]:
    distinct_values: list[Any] = []
    for value in values:
        if not any(is_same(value, other) for other in distinct_values):
            distinct_values.append(value)
    return distinct_values


def _format_value(value: Any) -> Any:
    """Return a value as it is read back from the target as JSON."""
    if isinstance(value, dict):
        return {name: _format_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_format_value(item) for item in value]
    if isinstance(value, dt.date):
        return value.isoformat()
    return float(value) if isinstance(value, Decimal) else value
