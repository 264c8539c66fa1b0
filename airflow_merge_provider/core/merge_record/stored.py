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

    Texts are stored as they are, because the name of a file may not be valid UTF-8. Unknown keys are ignored.
    """

    __slots__ = ()
    optional: ClassVar[tuple[str, ...]] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the stored form."""
        kind: Any = type(self)
        names, parsers = _find_fields(kind)
        values = ((name, getattr(self, name)) for name in names)
        written = {name: value for name, value in values if value is not None or name not in self.optional}
        for name in written.keys() & parsers.keys():
            written[name] = to_json(written[name])
        return written

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        """Parse the stored form."""
        kind: Any = cls
        names, parsers = _find_fields(kind)
        values = {name: raw[name] for name in raw.keys() & names.keys()}
        for name in values.keys() & parsers.keys():
            values[name] = None if values[name] is None else parsers[name](values[name])
        return cls(**values)


@cache
def _find_fields(kind: Any) -> tuple[dict[str, None], dict[str, _Parse]]:
    """Return the names of the fields of a dataclass, and the parsers of nested values."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    parsers = {name: parse for name in names if (parse := _find_parser(hints[name])) is not None}
    return dict.fromkeys(names), parsers


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
