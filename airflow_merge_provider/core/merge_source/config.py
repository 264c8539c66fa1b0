"""The configuration of a merge source: properties of the Sesam source, settings, what starts a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BeforeValidator, Field
from pydantic_core import ErrorDetails

from airflow_merge_provider.core.dataset import resolve_dataset, split_alias
from airflow_merge_provider.core.errors import ConfigError, Problem
from airflow_merge_provider.core.expectations.config import find_problems
from airflow_merge_provider.core.merge_source import survivorship
from airflow_merge_provider.core.merge_source.dtl.expressions import ExpressionError
from airflow_merge_provider.core.merge_source.equality import (
    EVERY_RULE,
    RuleSettings,
    find_unknown_rules,
    list_aliases,
    list_rule_warnings,
    list_rules,
    parse_side,
)
from airflow_merge_provider.core.model import (
    INPUTS,
    KEY,
    LOOKUP,
    NO_COLUMN,
    OUTPUT,
    SOURCE_COLUMN,
    Config,
    DatasetUse,
)
from airflow_merge_provider.core.population import State, list_unpopulated

DEFAULT_MAX_MERGED = 50_000
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_\-]*\Z")
_DATASETS = "must be a list with at least one '<dataset> <alias>' string"
_EQ_WORDS, _PAIR = 3, 2


def _build_list_validator(message: str, least: int = 0) -> BeforeValidator:
    """Return a validator that accepts a list (never a text) and raises ``message`` otherwise."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) < least:
            raise ValueError(message)
        return tuple(value)

    return BeforeValidator(check)


def _read_dataset(value: Any) -> str:
    dataset, alias = split_alias(value) if isinstance(value, str) else ("", "")
    if len(alias.split()) != 1:
        raise ValueError(f"expected '<dataset> <alias>', not {value!r}")
    if not _ALIAS.match(alias):
        raise ValueError(f"invalid alias {alias!r} (use a letter, followed by letters, digits, _ and -)")
    return f"{dataset} {alias}"


def _read_rule(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple) or len(value) != _EQ_WORDS or value[0] != "eq":
        raise ValueError('must be an eq function (["eq", left, right])')
    return list(value)


def _equality_set(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("must be a list with at least one value expression")
    return list(value)


def _read_version(value: Any) -> int:
    if isinstance(value, bool) or value not in (1, 2):
        raise ValueError("must be 1 or 2")
    return int(value)


def _max_merged(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be an integer >= 1")
    return value


def _max_key_fanout(value: Any) -> int | dict[str, int] | None:
    if value is None:
        return None
    limits = value if isinstance(value, dict) else {EVERY_RULE: value}
    for limit in limits.values():
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < _PAIR:
            raise ValueError("must be an integer >= 2")
    return {str(name): limit for name, limit in value.items()} if isinstance(value, dict) else int(value)


def _on_over_merge(value: Any) -> Any:
    for action in value.values() if isinstance(value, dict) else (value,):
        if action not in ("fail", "quarantine"):
            raise ValueError("must be 'fail' or 'quarantine'")
    return value


def _initial_datasets(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError("must be a list of dataset ids")
    return tuple(value)


def _always_true(value: Any) -> bool:
    if value is not True:
        raise ValueError("is fixed to true for the merge source (leave it out)")
    return True


def _sets_mode(value: Any) -> Any:
    return "neighbours" if value == "adjacent" else value


Fixed = Annotated[bool, BeforeValidator(_always_true)]
Column = Annotated[str, Field(min_length=1), SOURCE_COLUMN]
KeyColumn = Annotated[Column, KEY]
EqualityRule = Annotated[list[Any], BeforeValidator(_read_rule)]
EqualitySet = Annotated[list[Any], BeforeValidator(_equality_set)]
AliasedDataset = Annotated[str, BeforeValidator(_read_dataset)]
InitialDatasets = Annotated[tuple[str, ...] | None, BeforeValidator(_initial_datasets), NO_COLUMN]
MaxKeyFanout = Annotated[int | dict[str, int] | None, BeforeValidator(_max_key_fanout), NO_COLUMN]


class MergeSourceConfig(Config):
    """A validated merge source: the Sesam source down to ``comment``, below it the operator's settings."""

    unknown_word: ClassVar[str] = "unknown property"
    internal_fields: ClassVar[frozenset[str]] = frozenset(
        {"type", "supports_since", "is_since_comparable", "is_chronological", "comment"}
    )

    type: Literal["merge"] = "merge"
    version: Annotated[int, BeforeValidator(_read_version)] = Field(
        2, description="1 (deprecated) or 2. Version 1 has no max_merged and rejects reordered datasets."
    )
    datasets: Annotated[tuple[AliasedDataset, ...], _build_list_validator(_DATASETS, 1), INPUTS] = Field(
        description="The datasets to merge, each as '<dataset> <alias>'; the order determines output IDs."
    )
    equality: Annotated[
        tuple[EqualityRule, ...], _build_list_validator("must be a list of eq functions"), SOURCE_COLUMN
    ] = Field((), description='Match rules ["eq", left, right]: entities that share a value are merged.')
    equality_sets: Annotated[
        tuple[EqualitySet, ...],
        _build_list_validator("must be a list of lists of value expressions"),
        SOURCE_COLUMN,
    ] = Field((), description="Lists of expressions. By default, each pair of neighbours is a match rule.")
    identity: Literal["composite", "first"] = Field(
        "composite", description="The ID of an output: offsets and IDs of all members, or the first ID."
    )
    strategy: Literal["default", "compact", "list"] = Field(
        "default",
        description="Merge all values (default), distinct values (compact), or a list of members (list).",
    )
    max_merged: Annotated[int | None, BeforeValidator(_max_merged)] = Field(
        None, description="The maximum number of entities in a cluster; version 2 only. The default is 50000."
    )
    initial_datasets: InitialDatasets = Field(
        None, description="The datasets that must be populated before the source is; all by default."
    )
    ignore_non_existent_datasets: bool = Field(
        default=True, description="Whether a dataset that does not exist counts as populated."
    )
    supports_signalling: bool | None = Field(
        None, description="Whether a change of an input starts a run; by default, the schedule decides."
    )
    include_internal_properties: bool = Field(
        default=False, description="Whether strategy 'list' keeps properties whose names start with _."
    )
    require_populated_input: bool = Field(
        default=False, description="Whether a run waits until the source is populated."
    )
    if_source_empty: Literal["accept", "fail"] = Field(
        "accept", description="Whether a full run that finds no entities succeeds (accept) or fails (fail)."
    )
    supports_since: Fixed = True
    is_since_comparable: Fixed = True
    is_chronological: Fixed = True
    comment: Annotated[Any, NO_COLUMN] = None
    target: Annotated[str | None, OUTPUT] = Field(None, description="The dataset that the run writes.")
    equality_sets_mode: Annotated[Literal["neighbours", "all_pairs"], BeforeValidator(_sets_mode)] = Field(
        "neighbours",
        description="Which expressions of a set form match rules: neighbours (as in Sesam) or all pairs.",
    )
    on_config_change: Literal["refresh", "fail"] = Field(
        "refresh", description="What a run does if the configuration changed: compare all rows, or fail."
    )
    reset: bool = Field(
        default=False,
        description="Whether to rewrite the target as on a first run. Its readers must start over.",
    )
    change_detection: Literal["auto", "sequence", "change_feed", "hash"] = Field(
        "auto",
        description="How a run detects changes; auto uses sequence_column if it exists, else row hashes.",
    )
    id_column: KeyColumn = Field("_id", description="The column of the datasets that contains the entity ID.")
    deleted_column: Column = Field("_deleted", description="The column that flags deleted entities.")
    sequence_column: Column = Field(
        "_updated", description="The column that increases with every version of an entity."
    )
    entity_column: Annotated[Column | None, SOURCE_COLUMN] = Field(
        None, description="The VARIANT or JSON column that contains the whole entity, if there is one."
    )
    schema_evolution: Literal["add", "allow_missing"] = Field(
        "add",
        description="Whether a column that a dataset lost is an error (add), or allowed (allow_missing).",
    )
    max_key_fanout: MaxKeyFanout = Field(
        None,
        description="The maximum number of entities that a value may link: for all rules, or by rule text.",
    )
    on_over_merge: Annotated[str | dict[str, str], BeforeValidator(_on_over_merge), NO_COLUMN] = Field(
        "fail", description="Whether a value above max_key_fanout fails the run, or is ignored and listed."
    )
    stable_id: bool = Field(
        default=False,
        description="Whether outputs have a $stable_id that is stable across cluster merges and splits.",
    )
    replaced_by: bool = Field(
        default=False,
        description="Whether to record the successors of retired IDs in $replaced_by and a side table.",
    )
    label_column: Annotated[Column | None, SOURCE_COLUMN] = Field(
        None, description="The property that names golden records in plans, approvals and reports."
    )
    metrics: Annotated[str | None, OUTPUT] = Field(
        None, description="The dataset to which a run that changes the target adds cluster metrics."
    )
    values: Literal["entity", "columns"] = Field(
        "entity",
        description="Store properties in one VARIANT (entity), or in columns with lists of values (columns).",
    )
    survivorship: Annotated[dict[str, Any] | None, SOURCE_COLUMN] = Field(
        None, description="Rules that choose one surviving value, by property or group, or * for all others."
    )
    overrides: Annotated[str | None, LOOKUP] = Field(
        None,
        description="The dataset of manual decisions about which entities are the same, and which are not.",
    )
    expect: Annotated[dict[str, Any] | None, SOURCE_COLUMN] = Field(
        None, description="Conditions on rows of datasets, or on changed rows."
    )

    @property
    def dataset_ids(self) -> tuple[str, ...]:
        """The datasets in order, without their aliases."""
        return tuple(split_alias(dataset)[0] for dataset in self.datasets)

    @property
    def most_merged(self) -> int | None:
        """The maximum number of entities in a cluster; None if there is no limit, as in version 1."""
        return None if self.version == 1 else self.max_merged or DEFAULT_MAX_MERGED

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        # Sesam treats a source without a version as version 1, so a pasted source is treated the same way.
        is_first = {"type", "max_merged"} <= {*raw} and "version" not in raw
        return super().parse({**raw, "version": 1} if is_first else raw)

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        if fields.get("version") == 1 and fields.get("max_merged") is not None:
            yield Problem("max_merged", "version", "is not supported in version 1", "set version to 2")
        action = fields.get("on_over_merge")
        quarantines = "quarantine" in (action.values() if isinstance(action, dict) else (action,))
        if quarantines and fields.get("max_key_fanout") is None:
            message = "'quarantine' requires max_key_fanout"
            yield Problem("on_over_merge", "requires-option", message, "set max_key_fanout")
        yield from _strategy_problems(fields)
        names = [split_alias(dataset)[0] for dataset in fields.get("datasets") or ()]
        yield from find_problems(fields.get("expect"), names, reads_changes=True)
        if "datasets" not in fields:
            return
        pairs = [*map(split_alias, fields["datasets"])]
        yield from _dataset_problems(pairs)
        yield from _target_problems(fields.get("target"), pairs)
        for name in ("overrides", "metrics"):
            yield from _beside_problems(name, fields.get(name), fields.get("target"))
        yield from _initial_problems(fields.get("initial_datasets"), pairs)
        yield from survivorship.find_problems(fields.get("survivorship") or {}, [name for name, _ in pairs])
        yield from _rule_problems(fields, dict(pairs))

    def list_datasets(self, *uses: DatasetUse) -> dict[str, Any]:
        # Without the aliases that rules use.
        datasets = super().list_datasets(*uses)
        ids = {f"datasets[{position}]": name for position, name in enumerate(self.dataset_ids)}
        return {path: ids.get(path, ref) for path, ref in datasets.items()}

    def list_warnings(self) -> list[str]:
        warnings = ["version: 1 is deprecated, use version 2, the default"] if self.version == 1 else []
        warnings += list_rule_warnings(self)
        if self.include_internal_properties and self.strategy != "list":
            warnings.append("include_internal_properties: has no effect without strategy 'list'")
        if self.ignore_non_existent_datasets is False:
            warnings.append(
                "ignore_non_existent_datasets: if false, a run waits for datasets that do not exist, or fails"
            )
        return warnings

    @classmethod
    def _build_problem(cls, detail: ErrorDetails) -> Problem:
        if detail["type"] == "missing" and detail["loc"] == ("datasets",):
            return Problem("datasets", "missing", _DATASETS)
        return super()._build_problem(detail)


def from_pipe(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration in a Sesam pipe, or in its source alone; the target is the pipe's ID.

    :raises ConfigError: when there is no source object in it.
    """
    if "source" not in raw:
        return dict(raw)
    source = raw["source"]
    if not isinstance(source, Mapping):
        raise ConfigError.from_problems(
            [Problem("source", "pipe", "must be an object", "set it to the merge source of the pipe")]
        )
    config = dict(source)
    if isinstance(raw.get("_id"), str):
        config.setdefault("target", raw["_id"])
    return config


def _dataset_problems(pairs: list[tuple[str, str]]) -> Iterator[Problem]:
    used_names: set[tuple[str, str]] = set()
    for position, (dataset, alias) in enumerate(pairs):
        path = f"datasets[{position}]"
        for kind, name in (("dataset", dataset), ("alias", alias)):
            if (kind, name) in used_names:
                yield Problem(path, "duplicate", f"{kind} {name!r} appears more than once")
            used_names.add((kind, name))
        yield from _reference_problems(dataset, path)


def _reference_problems(dataset: str, path: str) -> Iterator[Problem]:
    try:
        resolve_dataset(dataset, "/", at=path)
    except ConfigError as error:
        yield from error.problems


def _target_problems(target: str | None, pairs: list[tuple[str, str]]) -> Iterator[Problem]:
    if target is None:
        return
    yield from _reference_problems(target, "target")
    if target in dict(pairs):
        yield Problem("target", "target", f"{target!r} is also one of the datasets (choose another target)")


def _strategy_problems(settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems for options that only the default strategy supports."""
    strategy = settings.get("strategy", "default")
    if strategy == "default":
        return
    for name, is_set in (
        ("values", settings.get("values") == "columns"),
        ("survivorship", settings.get("survivorship")),
    ):
        if is_set:
            yield Problem(
                name, "strategy", f"is not supported with strategy {strategy!r}", "use strategy 'default'"
            )


def _beside_problems(path: str, ref: str | None, target: str | None) -> Iterator[Problem]:
    if ref is not None:
        yield from _reference_problems(ref, path)
        if ref == target:
            yield Problem(path, "target", f"{ref!r} is the target of the run (choose another dataset)")


def _initial_problems(initial: tuple[str, ...] | None, pairs: list[tuple[str, str]]) -> Iterator[Problem]:
    datasets = dict(pairs)
    for dataset in dict.fromkeys(initial or ()):
        if dataset not in datasets:
            hint = f"listed: {', '.join(datasets)}"
            yield Problem("initial_datasets", "unknown", f"{dataset!r} is not listed in datasets", hint)
    if len(set(initial or ())) != len(initial or ()):
        yield Problem(
            "initial_datasets", "duplicate", "a dataset appears more than once (list each dataset once)"
        )


def _rule_problems(settings: Mapping[str, Any], ids: Mapping[str, str]) -> Iterator[Problem]:
    aliases = list_aliases(settings["datasets"])
    sides = [
        (f"equality[{position}]", raw)
        for position, (_, *both) in enumerate(settings.get("equality", ()))
        for raw in both
    ]
    sides += [
        (f"equality_sets[{position}][{index}]", raw)
        for position, expressions in enumerate(settings.get("equality_sets", ()))
        for index, raw in enumerate(expressions)
    ]
    error_count = 0
    for path, raw in sides:
        try:
            parse_side(raw, aliases, ids)
        except ExpressionError as error:
            error_count += 1
            yield Problem(path, "expression", str(error), error.hint)
    if error_count or not {"equality", "equality_sets", "equality_sets_mode"} <= settings.keys():
        return
    rules = list_rules(cast("RuleSettings", SimpleNamespace(**settings)))
    for name in ("max_key_fanout", "on_over_merge"):
        yield from find_unknown_rules(name, settings.get(name), rules)


INTERVAL_MIN_SECONDS = 120


def is_signalling(
    supports_signalling: bool | None,  # noqa: FBT001 - three values: yes, no, not said
    schedule: Mapping[str, Any] | None,
    *,
    use_signalling_internally: bool = False,
    shortest_interval: float = INTERVAL_MIN_SECONDS,
) -> bool:
    """Return whether changes start a run: by the source's setting, else by the global one and the schedule.

    ``schedule`` is ``{"interval": seconds}``, ``{"cron": text}`` or None. A cron expression or a short
    interval switches signalling off unless the source requests it.

    >>> is_signalling(None, {"interval": 3600}, use_signalling_internally=True)
    True
    """
    if supports_signalling is not None:
        return supports_signalling
    if not use_signalling_internally:
        return False
    if schedule is None:  # without a schedule, only changes start a run
        return True
    return "cron" not in schedule and schedule["interval"] >= shortest_interval


def is_populated(config: MergeSourceConfig, state: Mapping[str, State]) -> bool:
    """Return whether the source is populated: all datasets that it waits for are populated."""
    return not list_unpopulated(
        list_awaited(config), state, ignore_non_existent=config.ignore_non_existent_datasets
    )


def list_awaited(config: MergeSourceConfig) -> tuple[str, ...]:
    """Return the datasets that the source waits for: ``initial_datasets``, or all datasets."""
    return config.dataset_ids if config.initial_datasets is None else config.initial_datasets
