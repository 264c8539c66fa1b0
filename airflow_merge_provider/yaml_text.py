"""Parse YAML into JSON values: dates become ISO 8601 text, and keys are unique strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from airflow_merge_provider.core.model import DEPTH_MAX, require_plain
from airflow_merge_provider.core.pipe.files import build_object

_ALIASES_MAX = 100
# YAML types without a JSON equivalent.
_FOREIGN = ("binary", "set", "omap", "pairs")
_TAG_PREFIX = "tag:yaml.org,2002:"


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text.

    :raises ValueError: if it is not YAML, cannot be expressed in JSON, or has a duplicate key.
    :raises ConfigError: if it is nested too deeply or has too many aliases.
    """
    try:
        _require_shallow(text)
        content = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    require_plain(content)
    return content


def format_yaml(content: Mapping[str, Any]) -> str:
    r"""Return the YAML text of an object: a line for each key.

    >>> format_yaml({"job": "upsert", "source": {"format": "csv"}, "primary_key": ["id"]})
    'job: upsert\nsource: {format: csv}\nprimary_key: [id]\n'
    """
    return "".join(f"{name}: {_format_value(value)}\n" for name, value in content.items())


def _format_value(value: Any) -> str:
    text = yaml.safe_dump(
        [value], allow_unicode=True, default_flow_style=True, sort_keys=False, width=float("inf")
    )
    return str(text).strip()[1:-1]


def _require_shallow(text: str) -> None:
    """Count levels and aliases before objects are built, because building uses a stack frame per level."""
    depth = aliases = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        aliases += isinstance(event, yaml.AliasEvent)
        if depth > DEPTH_MAX:
            raise ValueError(f"it is nested more than {DEPTH_MAX} levels deep")
        if aliases > _ALIASES_MAX:
            raise ValueError(f"it has more than {_ALIASES_MAX} aliases")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader with the constructors below."""


def _build_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    explicit_pairs = [(key, value) for key, value in node.value if key.tag != f"{_TAG_PREFIX}merge"]
    built = build_object(
        (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
        for key, value in explicit_pairs
    )
    if len(explicit_pairs) == len(node.value):
        return built
    # Explicit keys override those from a merge key.
    loader.flatten_mapping(node)
    merged: dict[str, Any] = loader.construct_mapping(node, deep=True)
    return {**merged, **built}


def _build_date(loader: _Loader, node: yaml.ScalarNode) -> str:
    try:
        return str(loader.construct_yaml_timestamp(node).isoformat())
    except ValueError as error:
        raise ValueError(f"{node.value!r} is not a valid date: {error}") from None


def _refuse_foreign_value(_: _Loader, node: yaml.Node) -> Any:
    kind = node.tag.removeprefix(_TAG_PREFIX)
    raise ValueError(f"line {node.start_mark.line + 1}: a value of type {kind!r} is not supported in JSON")


_Loader.add_constructor(f"{_TAG_PREFIX}map", _build_mapping)
_Loader.add_constructor(f"{_TAG_PREFIX}timestamp", _build_date)
for _name in _FOREIGN:
    _Loader.add_constructor(f"{_TAG_PREFIX}{_name}", _refuse_foreign_value)
