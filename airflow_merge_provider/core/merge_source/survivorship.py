"""Survivorship rules: which member provides the value of a property, or of a group of properties.

The key ``"*"`` has the rule of every property that has no rule of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_merge_provider.core.errors import Problem, did_you_mean, suggest_name

FIRST, LATEST, MOST_COMMON, LONGEST, MOST_COMPLETE, PREFER = (
    "first", "latest", "most_common", "longest", "most_complete", "prefer",
)  # fmt: skip
OF_ONE = (FIRST, LATEST, MOST_COMMON, LONGEST)
OF_GROUP = (FIRST, LATEST, MOST_COMPLETE)
# The key of the rule for every property without a rule of its own.
DEFAULT = "*"
_SEVERAL = 2
_RESERVED_NAMES = ("$ids", "$replaced", "$provenance", "$stable_id", "$replaced_by")


@dataclass(frozen=True, slots=True)
class Preference:
    """A criterion that prefers one value over another: a kind, and for ``prefer`` the datasets in order."""

    kind: str
    datasets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SurvivorshipRule:
    """Properties whose values come from one member.

    It is the best member by the first preference; ties are resolved by the second preference and so on,
    finally by the first member.
    """

    properties: tuple[str, ...]
    preferences: tuple[Preference, ...]

    @property
    def is_group(self) -> bool:
        """Whether several properties form a group."""
        return len(self.properties) > 1


def parse_choices(raw: Mapping[str, Any] | None) -> tuple[SurvivorshipRule, ...]:
    """Parse rules that ``find_problems`` accepts, in the order of their first properties."""
    rules = [
        SurvivorshipRule(list_properties(name, raw_rule), _parse_preferences(_find_rule(raw_rule)))
        for name, raw_rule in (raw or {}).items()
    ]
    return tuple(sorted(rules, key=lambda choice: choice.properties))


def apply_default(rules: Sequence[SurvivorshipRule], properties: Sequence[str]) -> list[SurvivorshipRule]:
    """Replace the rule for ``"*"`` by a rule for each of the properties that has none of its own.

    >>> [rule.properties for rule in apply_default(parse_choices({"*": "latest", "a": "first"}), ["a", "b"])]
    [('a',), ('b',)]
    """
    own_rules, default_rule = split_default(rules)
    owned_names = {name for rule in own_rules for name in rule.properties}
    if default_rule is None:
        return own_rules
    return [
        *own_rules,
        *(replace(default_rule, properties=(name,)) for name in properties if name not in owned_names),
    ]


def split_default(
    rules: Sequence[SurvivorshipRule],
) -> tuple[list[SurvivorshipRule], SurvivorshipRule | None]:
    """Return the rules of named properties, and the rule for ``"*"``, if there is one."""
    own_rules = [rule for rule in rules if rule.properties != (DEFAULT,)]
    return own_rules, next((rule for rule in rules if rule.properties == (DEFAULT,)), None)


def find_problems(raw: Mapping[str, Any], datasets: Sequence[str]) -> Iterator[Problem]:
    """Yield all problems, each with its path."""
    owners: dict[str, str] = {}
    for name, raw_rule in raw.items():
        path = f"survivorship.{name}"
        is_group = isinstance(raw_rule, Mapping) and "group" in raw_rule
        if is_group:
            yield from _group_problems(path, name, raw_rule)
        rule = _find_rule(raw_rule)
        valid_rules = OF_GROUP if is_group else OF_ONE
        for index, preference in enumerate(rule if isinstance(rule, list | tuple) else [rule]):
            at = f"{path}[{index}]" if isinstance(rule, list | tuple) else path
            yield from _rule_problems(at, preference, valid_rules, datasets)
        if isinstance(rule, list | tuple) and not rule:
            yield Problem(
                path, "value", "must name at least one rule", f"valid rules: {', '.join(valid_rules)}, prefer"
            )
        for property_name in list_properties(name, raw_rule):
            if property_name in owners:
                yield Problem(
                    path,
                    "duplicate",
                    f"property {property_name!r} already has a rule",
                    f"see {owners[property_name]}",
                )
            owners[property_name] = path
            if property_name.startswith("_") or property_name in _RESERVED_NAMES:
                yield Problem(
                    path,
                    "reserved",
                    f"{property_name!r} is a system property, which is not merged (leave it out)",
                )


def _group_problems(path: str, name: str, raw_group: Mapping[str, Any]) -> Iterator[Problem]:
    group = raw_group["group"]
    if name == DEFAULT or (isinstance(group, list | tuple) and DEFAULT in group):
        message = f"{DEFAULT!r} stands for each other property alone and is not supported in a group"
        yield Problem(path, "group", message, "give the group a name and list its properties")
    is_list = isinstance(group, list | tuple) and all(isinstance(item, str) for item in group)
    if not is_list or len(group) < _SEVERAL:
        yield Problem(f"{path}.group", "value", "must be a list of at least two properties")
    for key in sorted(set(raw_group) - {"group", "rule"}):
        hint = suggest_name(str(key), ("group", "rule"), "keys")
        yield Problem(path, "unknown", f"unknown key {key!r}", hint)


def _rule_problems(
    path: str, rule: Any, valid_rules: Sequence[str], datasets: Sequence[str]
) -> Iterator[Problem]:
    hint = f"valid rules: {', '.join(valid_rules)}, {{'prefer': [datasets]}}"
    if isinstance(rule, str):
        if rule not in valid_rules:
            yield Problem(path, "value", f"unknown rule {rule!r}", did_you_mean(rule, valid_rules) or hint)
        return
    if not isinstance(rule, Mapping) or set(rule) != {PREFER}:
        yield Problem(path, "value", f"{rule!r} is not a valid rule", hint)
        return
    preferred = rule[PREFER]
    if not isinstance(preferred, list | tuple) or not preferred:
        yield Problem(f"{path}.prefer", "value", "must be a list of datasets")
        return
    for dataset in preferred:
        if dataset not in datasets:
            listed = suggest_name(str(dataset), datasets, "datasets")
            yield Problem(f"{path}.prefer", "unknown", f"{dataset!r} is not listed in datasets", listed)


def list_properties(name: str, raw_rule: Any) -> tuple[str, ...]:
    """Return the properties of a rule: those of its group, or its name."""
    group = raw_rule.get("group") if isinstance(raw_rule, Mapping) else None
    if isinstance(group, list | tuple):
        return tuple(item for item in group if isinstance(item, str))
    return (name,)


def _find_rule(raw_rule: Any) -> Any:
    return raw_rule.get("rule", FIRST) if isinstance(raw_rule, Mapping) and "group" in raw_rule else raw_rule


def _parse_preferences(rule: Any) -> tuple[Preference, ...]:
    preferences = rule if isinstance(rule, list | tuple) else [rule]
    return tuple(
        Preference(preference)
        if isinstance(preference, str)
        else Preference(PREFER, tuple(preference[PREFER]))
        for preference in preferences
    )
