"""The explanation of an output: its members, and the rules and values that link them, n - 1 links in all."""

from __future__ import annotations

import difflib
import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from airflow_merge_provider.core.errors import DataError, Problem
from airflow_merge_provider.core.value_text import Row, escape_text

Status = Literal["live", "deleted", "replaced"]
_NEAR_IDS_MAX = 3
# The number of members that a text names.
MEMBERS_MAX = 3
# The kinds of keys that contain other keys.
_NESTED_FIELDS = ("l", "o")


@dataclass(frozen=True, slots=True)
class Explanation:
    """An output with its members in order, and the links from the first member to each of them.

    ``replaced_by`` holds the outputs that replaced it, if the target records them.
    """

    output_id: str
    status: Status
    members: tuple[EntityRef, ...]
    links: tuple[Link, ...]
    replaced_by: tuple[str, ...] = ()

    def list_members(self) -> Sequence[EntityRef]:
        """Return the members of the output."""
        return self.members

    def as_object(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""
        return {
            "output_id": self.output_id,
            "status": self.status,
            "members": [{"dataset": member.dataset, "id": member.id} for member in self.members],
            "links": [
                {
                    "known": format_entity(link.leading),
                    "reached": format_entity(link.reached),
                    **_describe_cause(link),
                }
                for link in self.links
            ],
            "replaced_by": list(self.replaced_by),
        }

    def format_lines(self) -> Iterator[str]:
        """Yield the explanation as lines of text: the first member, then each other member with its link."""
        yield escape_text(f"{self.output_id}: {self._format_summary()}")
        if self.members:
            yield f"  {escape_text(format_entity(self.members[0]))}"
        yield from (f"  {line}" for line in format_links(self.links))

    def _format_summary(self) -> str:
        if self.status == "replaced":
            by = f" by {', '.join(self.replaced_by)}" if self.replaced_by else ""
            return f"replaced{by}; it no longer has members"
        count = len(self.members)
        entities = f"{count} {'entity' if count == 1 else 'entities'}"
        return f"{entities}, deleted" if self.status == "deleted" else entities


@dataclass(frozen=True, slots=True)
class EntityExplanation:
    """The entities that have an ID, each with the explanation of the output that it is a member of."""

    outputs: tuple[tuple[EntityRef, Explanation], ...]

    def list_members(self) -> Sequence[EntityRef]:
        """Return the members of all outputs, each once."""
        return list(dict.fromkeys(member for _, output in self.outputs for member in output.members))

    def as_object(self) -> dict[str, Any]:
        """Return the explanation as a JSON object."""
        return {
            "entities": [
                {"dataset": entity.dataset, "id": entity.id, "output": output.as_object()}
                for entity, output in self.outputs
            ]
        }

    def format_lines(self) -> Iterator[str]:
        """Yield the explanation as lines of text: each entity, and the lines of its output."""
        for entity, output in self.outputs:
            yield escape_text(f"{format_entity(entity)} is an entity of {output.output_id}")
            yield from output.format_lines()


def explain_entities(rows: Iterable[Row], name: str) -> EntityExplanation:
    """Explain the outputs with an entity of this name: an ID, or ``dataset/id``.

    :param rows: rows of the target, as ``explain_row`` takes them.
    """
    explanations = [explain_row(row) for row in rows]
    return EntityExplanation(
        tuple(
            (member, explanation)
            for explanation in explanations
            for member in explanation.members
            if name in {member.id, format_entity(member)}
        )
    )


def explain_row(row: Row) -> Explanation:
    """Explain a row of the target, given its ``_id``, ``_deleted``, ``$replaced`` and ``_members``."""
    members = row["_members"] or []
    replaced = bool(row.get("$replaced")) and not members
    status: Status = "replaced" if replaced else "deleted" if row.get("_deleted") else "live"
    return Explanation(
        row["_id"],
        status,
        tuple(EntityRef(member["dataset"], member["id"]) for member in members),
        tuple(build_chain(members)),
        tuple(row.get("$replaced_by") or ()),
    )


def find_links_between(members: Sequence[Row], start: str, end: str) -> list[Link]:
    """Return the shortest chain between two members, each named as ``dataset/id``.

    :raises DataError: if one of them is not a member.
    """
    member_by_name = {format_entity(EntityRef(member["dataset"], member["id"])): member for member in members}
    problems = [
        Problem(
            "between", "member", f"{name!r} is not a member", f"members: {', '.join(member_by_name)}"[:500]
        )
        for name in dict.fromkeys((start, end))
        if name not in member_by_name
    ]
    if problems:
        raise DataError.from_problems(problems)
    first = member_by_name[start]
    other_members = (member for name, member in member_by_name.items() if name != start)
    return find_path(
        build_chain([first, *other_members]),
        EntityRef(member_by_name[end]["dataset"], member_by_name[end]["id"]),
    )


def list_links(output_id: str, members: Sequence[Row]) -> list[dict[str, str]]:
    """Return the links of an output as rows: n - 1 links for n members, each with its rule and key.

    ``left`` holds the key on the left side of the rule, ``right`` the key on its right side. Source:
    docs/semantics/merge_source.md, Links of an output.
    """
    lefts = {
        (member["dataset"], member["id"], key["rule"], key["value"])
        for member in members
        for key in member["keys"]
        if key["side"] == "left"
    }
    rows = []
    for link in build_chain(members):
        ends = link.leading, link.reached
        left, right = ends if (*link.leading, link.rule, link.value) in lefts else ends[::-1]
        rows.append(
            {
                "output_id": output_id,
                "left": format_entity(left),
                "right": format_entity(right),
                "rule": link.rule,
                "key": format_key(link.value),
            }
        )
    return rows


def describe_member_changes(
    output_id: str,
    before: Sequence[Row],
    after: Sequence[Row],
    show_key: Callable[[str], str] = str,
) -> str:
    """Return which members an output gains (``+``) and loses, each with the rule and key that linked it.

    :param show_key: returns the text of a key as it may be shown.

    >>> crm, erp = ({"dataset": name, "id": "1", "keys": []} for name in ("crm", "erp"))
    >>> describe_member_changes("crm:1", [crm, erp], [crm])
    '- erp/1'
    """
    members_before, members_after = ({_name_member(member) for member in side} for side in (before, after))
    texts = []
    for sign, names, side in (
        ("+", members_after - members_before, after),
        ("-", members_before - members_after, before),
    ):
        if not names:
            continue
        links = list_links(output_id, side) if members_before and members_after else []
        shown = [_describe_link(name, links, show_key) for name in sorted(names)[:MEMBERS_MAX]]
        more = [f"and {len(names) - MEMBERS_MAX} more"] if len(names) > MEMBERS_MAX else []
        texts.append(f"{sign} {', '.join([*shown, *more])}")
    return "; ".join(texts)


def _name_member(member: Mapping[str, Any]) -> str:
    return format_entity(EntityRef(member["dataset"], member["id"]))


def _describe_link(name: str, links: Sequence[Mapping[str, str]], show_key: Callable[[str], str]) -> str:
    """Return a member with the first of the links that lead to it."""
    link = next((link for link in links if name in {link["left"], link["right"]}), None)
    return name if link is None else f"{name} by {link['rule']} ({show_key(link['key'])})"


def format_links(links: Iterable[Link]) -> Iterator[str]:
    """Return links as text, one line each."""
    for link in links:
        entity, key = format_entity(link.reached), format_key(link.value)
        yield escape_text(f"{entity}  {key} by {link.rule}, with {format_entity(link.leading)}")


def format_entity(entity: EntityRef) -> str:
    """Format an entity as ``dataset/id``."""
    return f"{entity.dataset}/{entity.id}"


def format_key(key: str) -> str:
    """Format a typed key as the value that it represents.

    >>> (
    ...     format_key("s:LAX"),
    ...     format_key("n:1"),
    ...     format_key("d:2024-01-31"),
    ...     format_key('o:{"a":null,"b":["s:x"]}'),
    ... )
    ('"LAX"', '1', '2024-01-31', '{"a": null, "b": ["x"]}')
    """
    kind, _, value = key.partition(":")
    if kind == "s":
        return json.dumps(value, ensure_ascii=False)
    return _readable_tree(json.loads(value)) if kind in _NESTED_FIELDS else value


def _readable_tree(tree: Any) -> str:
    if isinstance(tree, list):
        return f"[{', '.join(map(_readable_tree, tree))}]"
    if isinstance(tree, dict):
        named = (f"{json.dumps(name, ensure_ascii=False)}: {_readable_tree(tree[name])}" for name in tree)
        return f"{{{', '.join(named)}}}"
    return "null" if tree is None else format_key(tree)


def unknown_output(output_id: str, target: str, holders: Sequence[str], ids: Sequence[str]) -> DataError:
    """Return the error for an unknown ID; ``holders`` are outputs that contain an entity with this ID."""
    near = list(holders[:_NEAR_IDS_MAX]) or difflib.get_close_matches(
        output_id, ids, n=_NEAR_IDS_MAX, cutoff=0.5
    )
    why = f"{output_id!r} is an entity of " if holders else "similar IDs: "
    hint = why + ", ".join(map(repr, near)) if near else "see the column _id of the target"
    return DataError.from_problems([Problem("id", "unknown", f"{target} has no output {output_id!r}", hint)])


def _describe_cause(link: Link) -> dict[str, str]:
    return {"rule": link.rule, "key": format_key(link.value)}


Key = tuple[str, str, str]

_OTHER_SIDE = {"left": "right", "right": "left"}


class EntityRef(NamedTuple):
    """An entity: the dataset it comes from and its ID in that dataset."""

    dataset: str
    id: str

    def __repr__(self) -> str:
        return repr(tuple(self))


class Link(NamedTuple):
    """A rule and a value (as a typed key, ``s:LAX``) by which two entities are the same.

    ``reached`` is the entity that the link adds to those that the chain already contains.
    """

    leading: EntityRef
    reached: EntityRef
    rule: str
    value: str


def build_chain(members: Iterable[Row]) -> list[Link]:
    """Return the links from the first member to every other member, each over as few links as possible.

    ``members`` is the content of the target's column ``_members``. A value links two entities only if one has
    it on the left side of a rule and the other on the right side of the same rule.

    >>> key = {"rule": "a.x = b.x", "value": "n:1"}
    >>> build_chain(
    ...     [
    ...         {"dataset": "A", "id": "a1", "keys": [{**key, "side": "left"}]},
    ...         {"dataset": "B", "id": "b1", "keys": [{**key, "side": "right"}]},
    ...     ]
    ... )
    [Link(leading=('A', 'a1'), reached=('B', 'b1'), rule='a.x = b.x', value='n:1')]
    """
    keys = {
        EntityRef(member["dataset"], member["id"]): list(map(_read_key, member["keys"])) for member in members
    }
    holders: dict[Key, list[EntityRef]] = defaultdict(list)
    for entity, entity_keys in keys.items():
        for key in entity_keys:
            holders[key].append(entity)
    queue = deque(list(keys)[:1])
    reached = set(queue)
    links: list[Link] = []
    while queue:
        current = queue.popleft()
        for link in _find_links(current, keys[current], holders):
            if link.reached not in reached:
                reached.add(link.reached)
                queue.append(link.reached)
                links.append(link)
    return links


def find_path(links: Sequence[Link], end: EntityRef) -> list[Link]:
    """Return the links of a chain from its first member to ``end``; empty if there is no path."""
    leading = {link.reached: link for link in links}
    path: list[Link] = []
    while (link := leading.get(end)) is not None:
        path.append(link)
        end = link.leading
    return path[::-1]


def _find_links(
    entity: EntityRef, keys: Iterable[Key], holders: dict[Key, list[EntityRef]]
) -> Iterator[Link]:
    """Yield the links of one entity; each key yields its holders only for the first entity that has it."""
    for rule, side, value in keys:
        for neighbour in holders.pop((rule, _OTHER_SIDE[side], value), ()):
            yield Link(entity, neighbour, rule, value)


def _read_key(key: Mapping[str, str]) -> Key:
    return key["rule"], key["side"], key["value"]
