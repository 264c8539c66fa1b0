"""Survivorship rules: which member provides the value of a property, or of a group of properties."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.errors import Problem, did_you_mean

FIRST, LATEST, MOST_COMMON, LONGEST, MOST_COMPLETE, PREFER = (
    "first", "latest", "most_common", "longest", "most_complete", "prefer",
)  # fmt: skip
OF_ONE = (FIRST, LATEST, MOST_COMMON, LONGEST)
OF_GROUP = (FIRST, LATEST, MOST_COMPLETE)
_SEVERAL = 2
_RESERVED = ("$ids", "$replaced", "$provenance", "$stable_id", "$replaced_by")


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
    found = [
        SurvivorshipRule(_list_properties(name, given), _parse_preferences(_find_rule(given)))
        for name, given in (raw or {}).items()
    ]
    return tuple(sorted(found, key=lambda choice: choice.properties))


def find_problems(raw: Mapping[str, Any], datasets: Sequence[str]) -> Iterator[Problem]:
    """Yield all problems, each with its path."""
    owners: dict[str, str] = {}
    for name, given in raw.items():
        path = f"survivorship.{name}"
        is_group = isinstance(given, Mapping) and "group" in given
        if is_group:
            yield from _group_problems(path, given)
        rule = _find_rule(given)
        known = OF_GROUP if is_group else OF_ONE
        for place, each in enumerate(rule if isinstance(rule, list | tuple) else [rule]):
            at = f"{path}[{place}]" if isinstance(rule, list | tuple) else path
            yield from _rule_problems(at, each, known, datasets)
        if isinstance(rule, list | tuple) and not rule:
            yield Problem(
                path, "value", "must name at least one rule", f"valid rules: {', '.join(known)}, prefer"
            )
        for own in _list_properties(name, given):
            if own in owners:
                yield Problem(
                    path,
                    "duplicate",
                    f"property {own!r} already has a rule",
                    f"see {owners[own]}",
                )
            owners[own] = path
            if own.startswith("_") or own in _RESERVED:
                yield Problem(
                    path, "reserved", f"{own!r} is a system property, which is not merged (leave it out)"
                )


def _group_problems(path: str, given: Mapping[str, Any]) -> Iterator[Problem]:
    group = given["group"]
    is_list = isinstance(group, list | tuple) and all(isinstance(each, str) for each in group)
    if not is_list or len(group) < _SEVERAL:
        yield Problem(f"{path}.group", "value", "must be a list of at least two properties")
    for other in sorted(set(given) - {"group", "rule"}):
        hint = did_you_mean(str(other), ("group", "rule")) or "valid keys: group, rule"
        yield Problem(path, "unknown", f"unknown key {other!r}", hint)


def _rule_problems(path: str, given: Any, known: Sequence[str], datasets: Sequence[str]) -> Iterator[Problem]:
    hint = f"valid rules: {', '.join(known)}, {{'prefer': [datasets]}}"
    if isinstance(given, str):
        if given not in known:
            yield Problem(path, "value", f"unknown rule {given!r}", did_you_mean(given, known) or hint)
        return
    if not isinstance(given, Mapping) or set(given) != {PREFER}:
        yield Problem(path, "value", f"{given!r} is not a valid rule", hint)
        return
    preferred = given[PREFER]
    if not isinstance(preferred, list | tuple) or not preferred:
        yield Problem(f"{path}.prefer", "value", "must be a list of datasets")
        return
    for each in preferred:
        if each not in datasets:
            listed = did_you_mean(str(each), datasets) or f"listed: {', '.join(datasets)}"
            yield Problem(f"{path}.prefer", "unknown", f"{each!r} is not listed in datasets", listed)


def _list_properties(name: str, given: Any) -> tuple[str, ...]:
    group = given.get("group") if isinstance(given, Mapping) else None
    if isinstance(group, list | tuple):
        return tuple(each for each in group if isinstance(each, str))
    return (name,)


def _find_rule(given: Any) -> Any:
    return given.get("rule", FIRST) if isinstance(given, Mapping) and "group" in given else given


def _parse_preferences(rule: Any) -> tuple[Preference, ...]:
    given = rule if isinstance(rule, list | tuple) else [rule]
    return tuple(
        Preference(each) if isinstance(each, str) else Preference(PREFER, tuple(each[PREFER]))
        for each in given
    )
