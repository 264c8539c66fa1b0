"""The base of every configuration: frozen, strict, and parsed with all problems reported at once."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from airflow_merge_provider.core.errors import ConfigError, Problem, did_you_mean

_STRICT = ConfigDict(strict=True)
# Programs write configurations too: what they hold is bounded before anything walks through it.
DEPTH_MAX = 100
VALUES_MAX = 100_000
_PLAIN = (bool, int, float, str, Decimal, dt.date, dt.time, dt.timedelta)

# pydantic's voice, in our words; every other type of error keeps pydantic's message.
_WORDS = {
    "missing": "is required",
    "string_type": "must be a text",
    "bool_type": "must be a boolean",
    "int_type": "must be an integer",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "mapping_type": "must be an object",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}


class Config(BaseModel):
    """A frozen configuration; ``parse`` is the way in for what users write.

    Fields carry their own checks as ``Annotated[..., BeforeValidator(check)]`` where ``check`` raises
    ``ValueError`` with the text users read; checks between fields go into ``rules``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    unknown_word: ClassVar[str] = "unknown argument"

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Check ``raw`` and freeze it.

        :raises ConfigError: with every problem of the fields and of the rules between them.
        """
        require_plain(raw)
        try:
            config = cls.model_validate(raw)
        except ValidationError as error:
            details = error.errors(include_url=False)
            wrong = {str(detail["loc"][0]) for detail in details if detail["loc"]}
            # pydantic drops the rules between fields as soon as one field is wrong; users want both.
            known = cls._known(raw, wrong)
            problems = [cls._build_problem(detail) for detail in details]
            raise ConfigError.from_problems([*problems, *cls.check_rules(known)]) from None
        if problems := list(cls.check_rules(vars(config))):
            raise ConfigError.from_problems(problems)
        return config

    @classmethod
    def check_rules(cls, known: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield the problems between fields; ``known`` holds only the fields that are right alone."""
        yield from ()

    @classmethod
    def _known(cls, raw: Mapping[str, Any], wrong: set[str]) -> dict[str, Any]:
        return {
            name: _validate_field(field, raw[name])
            if name in raw
            else field.get_default(call_default_factory=True)
            for name, field in cls.model_fields.items()
            if name not in wrong
        }

    @classmethod
    def _build_problem(cls, detail: ErrorDetails) -> Problem:
        path = path_of(detail["loc"])
        kind = detail["type"]
        if kind == "extra_forbidden":
            name = str(detail["loc"][-1])
            hint = did_you_mean(name, cls.model_fields) or f"known: {', '.join(cls.model_fields)}"
            return Problem(path, "unknown", f"{cls.unknown_word} {name!r}", hint)
        if kind == "value_error":
            return Problem(path, "value", str(detail["ctx"]["error"]))
        if kind == "literal_error":
            return Problem(path, "value", f"must be {detail['ctx']['expected']}")
        return Problem(path, "value", _WORDS.get(kind, detail["msg"]))


def require_plain(content: Any) -> None:
    """Refuse what is no text, number, boolean, date, list or object, and what is not bounded.

    :raises ConfigError: if there is such a value, at its path.
    """
    waiting: list[tuple[Any, tuple[int | str, ...]]] = [(content, ())]
    seen = 0
    while waiting:
        value, loc = waiting.pop()
        seen += 1
        if seen > VALUES_MAX:
            raise _build_value_error(
                (), f"there are more than {VALUES_MAX} values, those of aliases included"
            )
        if len(loc) > DEPTH_MAX:
            raise _build_value_error(loc[:1], f"is nested more than {DEPTH_MAX} deep")
        if isinstance(value, Mapping):
            odd = [name for name in value if not isinstance(name, str) or _is_cut(name)]
            if odd:
                raise _build_value_error(loc, f"the key {odd[0]!a} is no text")
            waiting += [(each, (*loc, name)) for name, each in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
            waiting += [(each, (*loc, place)) for place, each in enumerate(value)]
        else:
            _require_scalar(value, loc)


def _require_scalar(value: Any, loc: tuple[int | str, ...]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _build_value_error(loc, f"{value} is no number that can be written down")
    if isinstance(value, str) and _is_cut(value):
        raise _build_value_error(loc, f"holds half a character: {value[:40]!a}")
    if value is not None and not isinstance(value, _PLAIN):
        hint = "write a text, a number, a boolean, a list or an object"
        raise _build_value_error(loc, f"a value of type {type(value).__name__!r} has no meaning here", hint)


def _is_cut(text: str) -> bool:
    """Return whether a text has half of a character of two halves, which cannot be written down."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _build_value_error(loc: tuple[int | str, ...], message: str, hint: str = "") -> ConfigError:
    return ConfigError.from_problems([Problem(path_of(loc), "value", message, hint)])


def path_of(loc: tuple[int | str, ...]) -> str:
    """Write a location as users do: names with dots, positions in brackets.

    >>> path_of(("equality_sets", 0, 2))
    'equality_sets[0][2]'
    """
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _validate_field(field: FieldInfo, value: Any) -> Any:
    """Validate one field by itself."""
    annotation: Any = field.annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.model_validate(value)  # it has a strictness of its own
    for check in field.metadata:
        annotation = Annotated[annotation, check]
    return TypeAdapter(annotation, config=_STRICT).validate_python(value)
