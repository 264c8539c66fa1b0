"""The match rules: those of ``equality``, then those of ``equality_sets``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_merge_provider.core.dataset import split_alias
from airflow_merge_provider.core.errors import Problem, suggest_name
from airflow_merge_provider.core.merge_source.dtl.expressions import (
    Expression,
    ExpressionError,
    find_aliases,
    foreign_words,
    format_expression,
    is_calling,
    list_properties,
    parse_expression,
    to_raw,
)

# A set of two sides is one rule; a longer one has sides that no rule compares.
_OPEN_SET_MIN_SIDES = 3
# The key of a setting by rule for all rules that it does not name.
EVERY_RULE = "*"


class RuleSettings(Protocol):
    """The part of a configuration that defines the rules."""

    @property
    def datasets(self) -> tuple[str, ...]: ...
    @property
    def equality(self) -> tuple[list[Any], ...]: ...
    @property
    def equality_sets(self) -> tuple[list[Any], ...]: ...
    @property
    def equality_sets_mode(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a rule: the offset of the dataset it reads, and the expression for its values."""

    dataset: int
    text: str
    expression: Expression

    @property
    def source(self) -> Any:
        """The side as it is written in a configuration."""
        return to_raw(self.expression)

    @property
    def order(self) -> tuple[int, str]:
        """The identity of a side, which also sorts sides independently of the configuration."""
        return self.dataset, json.dumps(self.source, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Rule:
    """A match rule: entities whose left and right sides share a value are the same, in either direction."""

    left: Side
    right: Side

    @property
    def text(self) -> str:
        """The rule as text for people, such as ``a.x = lower(b.y)``."""
        return f"{self.left.text} = {self.right.text}"

    @property
    def source(self) -> list[Any]:
        """The rule as it is written in ``equality``."""
        return ["eq", self.left.source, self.right.source]

    @property
    def order(self) -> tuple[tuple[int, str], tuple[int, str]]:
        """The identity of a rule."""
        return self.left.order, self.right.order


def list_rules(config: RuleSettings) -> tuple[Rule, ...]:
    """Return every rule as written: ``equality`` first, then neighbors or all pairs of each set.

    :raises ExpressionError: when a side is wrong; a parsed configuration has none.
    """
    aliases = list_aliases(config.datasets)
    written = [(parse_side(left, aliases), parse_side(right, aliases)) for _, left, right in config.equality]
    for expressions in config.equality_sets:
        sides = [parse_side(expression, aliases) for expression in expressions]
        if config.equality_sets_mode == "all_pairs":
            written += itertools.combinations(sides, 2)
        else:
            written += itertools.pairwise(sides)
    return tuple(Rule(left, right) for left, right in written)


def plan_rules(config: RuleSettings) -> tuple[Rule, ...]:
    """Return every rule once, in one direction and in an order that depends only on the set of rules.

    The position of a rule in this tuple can be stored: it stays the same while the set of rules does.
    """
    once = {rule.order: rule for rule in map(_direct_rule, list_rules(config))}
    return tuple(once[order] for order in sorted(once))


def get_rule_setting(setting: Any, rule: Rule) -> Any:
    """Return a setting's value for a rule: a mapping has it under the rule's text, else under ``"*"``."""
    if not isinstance(setting, Mapping):
        return setting
    return next((setting[name] for name in _list_texts(rule) if name in setting), setting.get(EVERY_RULE))


def find_unknown_rules(name: str, setting: Any, rules: Sequence[Rule]) -> Iterator[Problem]:
    """Yield a problem for every key in the mapping of a setting that is not the text of a rule."""
    if not isinstance(setting, Mapping):
        return
    texts = [text for rule in rules for text in _list_texts(rule)]
    for rule_text in setting:
        if rule_text not in texts and rule_text != EVERY_RULE:
            hint = suggest_name(rule_text, texts, "rules")
            yield Problem(name, "unknown", f"{rule_text!r} is not a match rule", hint)


def _list_texts(rule: Rule) -> tuple[str, str]:
    return rule.text, f"{rule.right.text} = {rule.left.text}"


def list_rule_warnings(config: RuleSettings) -> list[str]:
    """Return warnings about rules that are valid but probably not intended."""
    rules = list_rules(config)
    warnings = [] if rules else ["there are no match rules: each entity becomes a separate output"]
    for position, expressions in enumerate(config.equality_sets):
        warnings += _list_set_warnings(config, f"equality_sets[{position}]", expressions)
    warnings += [f"the rule {rule.text} is defined more than once" for rule in _find_repeated_rules(rules)]
    warnings += [
        f"concat in {rule.text} returns '' for entities without the values, and '' matches '': use tuples"
        for rule in rules
        if is_calling(rule.left.expression, "concat") or is_calling(rule.right.expression, "concat")
    ]
    return warnings


def _list_set_warnings(config: RuleSettings, path: str, expressions: Sequence[Any]) -> list[str]:
    if len(expressions) == 1:
        return [f"{path}: a set with one expression defines no match rule"]
    if len(expressions) < _OPEN_SET_MIN_SIDES or config.equality_sets_mode == "all_pairs":
        return []
    aliases = list_aliases(config.datasets)
    sides = (parse_side(expressions[n], aliases).dataset for n in (0, 1, -1))
    first, middle, last = (split_alias(config.datasets[dataset])[0] for dataset in sides)
    warning = (
        f"{path}: only neighbours form rules, so entities of {first} and {last} are merged only through an"
        f" entity of {middle}: set equality_sets_mode to 'all_pairs' to link them directly"
    )
    return [warning]


def _find_repeated_rules(rules: Sequence[Rule]) -> Iterator[Rule]:
    """Yield the rules that repeat an earlier rule."""
    orders = set()
    for rule in rules:
        order = _direct_rule(rule).order
        if order in orders:
            yield rule
        orders.add(order)


def find_unknown_columns(
    rules: Sequence[Rule], columns: Mapping[int, Collection[str]], names: Sequence[str]
) -> Iterator[Problem]:
    """Yield a problem for every column of a rule that its dataset lacks: the rule would match nothing.

    :param columns: those of the datasets whose columns are known, by their offsets.
    :param names: the datasets by their offsets.
    """
    rule_by_column: dict[tuple[int, str], Rule] = {}
    for rule in rules:
        for side in (rule.left, rule.right):
            for name in list_properties(side.expression):
                rule_by_column.setdefault((side.dataset, name), rule)
    for (offset, name), rule in rule_by_column.items():
        dataset_columns = columns.get(offset)
        if dataset_columns is not None and name not in dataset_columns:
            hint = suggest_name(name, sorted(dataset_columns), "columns")
            message = f"{rule.text}: dataset {names[offset]!r} has no column {name!r}"
            yield Problem("equality", "unknown-column", message, hint)


def list_aliases(datasets: Sequence[str]) -> dict[str, int]:
    """Return the offset of each alias in a list of ``"<dataset> <alias>"``."""
    return {split_alias(dataset)[1]: offset for offset, dataset in enumerate(datasets)}


def parse_side(raw: Any, aliases: Mapping[str, int], ids: Mapping[str, str] | None = None) -> Side:
    """Parse one side of a rule; ``ids`` (dataset ID to alias) is for hints if the ID is written instead.

    :raises ExpressionError: when it reads no dataset, several, or one that is not there.
    """
    expression = parse_expression(raw, aliases)
    used_aliases = sorted(find_aliases(expression))
    if not used_aliases and (prefixes := foreign_words(expression)):
        alias = (ids or {}).get(prefixes[0])
        hint = (
            f"dataset {prefixes[0]!r} has the alias {alias!r}" if alias else f"aliases: {', '.join(aliases)}"
        )
        raise ExpressionError(f"unknown dataset alias {prefixes[0]!r}", hint)
    if len(used_aliases) != 1:
        names = ", ".join(used_aliases) or "none"
        raise ExpressionError(f"each side must reference exactly one dataset alias (found {names})")
    return Side(aliases[used_aliases[0]], format_expression(expression), expression)


def _direct_rule(rule: Rule) -> Rule:
    return rule if rule.left.order <= rule.right.order else Rule(rule.right, rule.left)
