"""Check operator arguments, detect literals and templates, and parse rendered templates."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType, UnionType
from typing import Any, Self, Union, get_args, get_origin

from airflow.providers.common.compat.sdk import SET_DURING_EXECUTION, AirflowFailException
from airflow.sdk import Asset

from airflow_merge_provider.assets import dataset_asset, dataset_text
from airflow_merge_provider.core import risk
from airflow_merge_provider.core.dataset import resolve_dataset
from airflow_merge_provider.core.errors import ConfigError, Problem, did_you_mean
from airflow_merge_provider.core.model import Config
from airflow_merge_provider.core.population import OFFSETS
from airflow_merge_provider.core.spark_conf import find_conf_problems

_COLLECTIONS = (dict, list, tuple, Mapping, Sequence)
_WORDS = {"true": True, "false": False, "none": None, "null": None, "": None}


class RefusedArgumentsError(ConfigError, AirflowFailException):
    """Raised by a constructor for invalid literal arguments; a mapped task that raises it is not retried."""

    @classmethod
    def from_task(cls, task_id: Any, problems: Sequence[Problem]) -> Self:
        """Build the error of a task from its problems."""
        message = f"task {task_id!r}: {ConfigError.from_problems(problems).message}"
        return cls(message, problems)


# A DAG file has many tasks of few classes, and reading a signature costs as much as checking the arguments.
@functools.cache
def own_parameters(operator: type, base: type) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of an operator and its base classes up to, but not including, ``base``."""
    classes = operator.__mro__[: operator.__mro__.index(base)]
    parameters: dict[str, inspect.Parameter] = {}
    for cls in reversed(classes):
        if "__init__" in vars(cls):
            parameters |= inspect.signature(vars(cls)["__init__"]).parameters
    return MappingProxyType({name: parameters[name] for name in parameters if name not in {"self", "kwargs"}})


@functools.cache
def _base_names(base: type) -> frozenset[str]:
    """Return the argument names of the class that every operator is built on."""
    return frozenset(inspect.signature(vars(base)["__init__"]).parameters)


def is_literal(value: Any) -> bool:
    """Return whether a value is known while the DAG is parsed: no template, and no result of a task.

    >>> is_literal(["A a", {"dataset": "/lake/{{ ds }}"}])
    False
    """
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    if isinstance(value, Mapping):
        return all(is_literal(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return all(is_literal(element) for element in value)
    # Results of other tasks and arguments of mapped task groups have no common public base class.
    return not hasattr(value, "iter_references") and not isinstance(value, type(SET_DURING_EXECUTION))


def parse_rendered(text: str) -> Any:
    """Parse the text of a rendered template: a boolean, a number or JSON, else the text itself.

    >>> parse_rendered("True"), parse_rendered("2"), parse_rendered('["A a"]'), parse_rendered("first")
    (True, 2, ['A a'], 'first')
    """
    word = text.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    try:
        return json.loads(text)
    except ValueError:
        return text


def as_text(ref: Any) -> Any:
    """Replace an asset by the text of its dataset, also in a pair with its alias; keep other values.

    >>> as_text((Asset(uri="s3://lake/customers"), "c"))
    's3://lake/customers c'
    """
    if isinstance(ref, Asset):
        return dataset_text(ref)
    if isinstance(ref, tuple) and len(ref) == 2 and isinstance(ref[0], Asset):  # noqa: PLR2004 - a pair
        return f"{dataset_text(ref[0])} {ref[1]}"
    if isinstance(ref, (list, tuple)):
        return [as_text(element) for element in ref]
    if isinstance(ref, Mapping):
        return {name: as_text(item) for name, item in ref.items()}
    return ref


def find_asset(ref: Any, warehouse: Any) -> Asset | None:
    """Return the asset of a dataset; None for a template or an invalid name, which other checks report."""
    if isinstance(ref, Asset):
        return ref
    if not isinstance(ref, str) or not is_literal(ref) or not is_literal(warehouse):
        return None
    try:
        return dataset_asset(ref, warehouse=warehouse)
    except ConfigError:
        return None


def list_assets(value: Any) -> list[Asset]:
    """Return the assets among arguments, including nested ones."""
    if isinstance(value, Asset):
        return [value]
    if isinstance(value, Mapping):
        return [asset for item in value.values() for asset in list_assets(item)]
    if isinstance(value, (list, tuple)):
        return [asset for element in value for asset in list_assets(element)]
    return []


def check_argument_names(operator: type, base: type, arguments: Mapping[str, Any]) -> None:
    """Check for unknown arguments of an operator; the error of its ``base`` does not suggest a fix.

    :raises RefusedArgumentsError: with every one of them.
    """
    names = own_parameters(operator, base)
    base_names = _base_names(base)
    problems = [
        Problem(name, "unknown", f"unknown argument {name!r}", did_you_mean(name, [*names, *base_names]))
        for name in arguments
        if name not in base_names and not name.startswith("_")
    ]
    if problems:
        raise RefusedArgumentsError.from_task(arguments.get("task_id"), problems)


def takes_text(config_class: type[Config], name: str) -> bool:
    """Return whether the value of a configuration argument may be a text."""
    return name in config_class.model_fields and str in _list_kinds(config_class, name)


def choose_renderers(config_class: type[Config]) -> dict[str, str]:
    """Return how Airflow shows the configuration arguments that are SQL, or may be lists or objects."""
    names, marks = config_class.list_arguments(), config_class.list_names()
    collections = [
        name
        for name in names
        if any(kind is Any or get_origin(kind) in _COLLECTIONS for kind in _list_kinds(config_class, name))
    ]
    conditions = [name for name in names if name in marks and marks[name].columns == "condition"]
    return dict.fromkeys(collections, "json") | dict.fromkeys(conditions, "sql")


def _list_kinds(config_class: type[Config], name: str) -> tuple[Any, ...]:
    annotation = config_class.model_fields[name].annotation
    return get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)


def find_reference_problems(ref: Any, warehouse: str | None, path: str) -> Sequence[Problem]:
    """Return the problems of a dataset reference; ``path`` is the argument that errors name."""
    try:
        resolve_dataset(ref, warehouse, at=path)
    except ConfigError as error:
        return error.problems
    return ()


def check_references(references: Mapping[str, Any], warehouse: str | None) -> None:
    """Check before Spark starts that every dataset reference can be resolved.

    :param references: dataset references by the argument that errors name.
    :raises ConfigError: with every reference that cannot be resolved.
    """
    problems = [
        problem
        for path, ref in references.items()
        for problem in find_reference_problems(ref, warehouse, path)
    ]
    if problems:
        raise ConfigError.from_problems(problems)


def find_setting_problems(operator: Any) -> list[Problem]:
    """Return the problems of the arguments that all operators share."""
    flags: dict[str, Any] = {
        "dry_run": operator.dry_run_only,
        "full_refresh": operator.full_refresh,
        "emit_asset": operator.emit_asset,
    }
    if operator.openlineage_inject_parent_job_info is not None:
        flags["openlineage_inject_parent_job_info"] = operator.openlineage_inject_parent_job_info
    problems = [
        Problem(name, "value", f"must be a boolean, not {value!r}")
        for name, value in flags.items()
        if not isinstance(value, bool)
    ]
    if operator.deletion_vectors not in ("auto", False):
        message = f"must be 'auto' or False, not {operator.deletion_vectors!r}"
        problems.append(Problem("deletion_vectors", "value", message))
    settings = {"plan": operator.plan, "approve": operator.approve}
    problems += risk.find_problems(
        operator.max_change_ratio, operator.on_risk, **settings, on_reject=operator.on_reject
    )
    if not operator.guarded:
        message = "is not supported: this operator changes no rows"
        problems += [
            Problem(name, "unsupported", message, "leave it out")
            for name, value in {risk.LIMIT: operator.max_change_ratio, **settings}.items()
            if value is not None
        ]
    conf: Any = operator.conf
    if conf is not None and not isinstance(conf, Mapping):
        problems.append(Problem("conf", "value", "must be an object of Spark settings"))
    elif conf is not None:
        problems += find_conf_problems(conf, "conf")
    if operator.set_initial_offset not in OFFSETS and is_literal(operator.set_initial_offset):
        names = ", ".join(map(repr, OFFSETS))
        problems.append(
            Problem(
                "set_initial_offset", "value", f"must be one of {names}, not {operator.set_initial_offset!r}"
            )
        )
    if operator.warehouse is not None:
        problems += find_reference_problems("x", operator.warehouse, "warehouse")
    return problems
