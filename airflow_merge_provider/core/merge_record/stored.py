"""The stored form of a dataclass: a JSON object with its fields, from which it is parsed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from pydantic import BaseModel

_Parse = Callable[[Any], Any]


class Stored:
    """A dataclass with a stored form; the fields in ``optional`` are left out of it if they are None.

    Values are stored as they are, because the name of a file may not be valid UTF-8. Unknown keys are ignored.
    """

    __slots__ = ()
    optional: ClassVar[tuple[str, ...]] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the stored form."""
        values = ((name, getattr(self, name)) for name in _find_parsers(type(self)))
        return {
            name: to_json(value) for name, value in values if value is not None or name not in self.optional
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Parse the stored form."""
        values = {
            name: raw[name] if parse is None or raw[name] is None else parse(raw[name])
            for name, parse in _find_parsers(cls).items()
            if name in raw
        }
        return cls(**values)


@cache
def _find_parsers(kind: Any) -> dict[str, _Parse | None]:
    """Return the fields of a dataclass, with what parses their values if they are not stored as they are."""
    hints = get_type_hints(kind)
    return {field.name: _find_parser(hints[field.name]) for field in fields(kind)}


def _find_parser(kind: Any) -> _Parse | None:
    if isinstance(kind, type):
        parse: _Parse | None = getattr(kind, "from_json", getattr(kind, "parse", None))
        return (lambda raw: kind(**raw)) if parse is None and issubclass(kind, BaseModel) else parse
    inner = next(filter(None, map(_find_parser, get_args(kind))), None)
    origin = get_origin(kind)
    if origin in (tuple, list):
        return origin if inner is None else lambda items: origin(map(inner, items))
    if origin is Mapping and inner is not None:
        return lambda raw: {name: inner(value) for name, value in raw.items()}
    return inner


def to_json(value: Any) -> Any:
    """Return a value as JSON: dataclasses in their stored form, also in lists and mappings."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    as_json = getattr(value, "as_json", None)
    return as_json() if as_json else value.model_dump() if isinstance(value, BaseModel) else value
