"""The base class of all configurations: frozen, strict, and parsed with all problems reported at once."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from airflow_merge_provider.core.errors import ConfigError, Problem, suggest_name

_STRICT_CONFIG = ConfigDict(strict=True)
# Programs also write configurations, so their depth and size are checked before they are traversed.
DEPTH_MAX = 100
VALUES_MAX = 100_000
_PLAIN_TYPES = (bool, int, float, str, Decimal, dt.date, dt.time, dt.timedelta)

# Replacements for pydantic's messages; all other error types keep the message of pydantic.
_PYDANTIC_MESSAGES = {
    "missing": "is required",
    "string_type": "must be a string",
    "bool_type": "must be a boolean",
    "int_type": "must be an integer",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "mapping_type": "must be an object",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}


ColumnUse = Literal["source", "condition", "result"]
DatasetUse = Literal["input", "lookup", "output", "state"]


@dataclass(frozen=True, slots=True)
class NamedBy:
    """The mark of a field: what its value names. Each field that may hold a text has a mark.

    ``columns``: those that the sources of a run must have (``source``), those in SQL, which only Spark can
    check (``condition``), or those that the run adds (``result``); ``is_key``: their values identify rows.
    ``datasets``: what the run merges (``input``), reads beside it (``lookup``), writes (``output``), or keeps
    for later runs (``state``); ``is_collection``: the field has several of them.
    """

    columns: ColumnUse | None = None
    datasets: DatasetUse | None = None
    is_key: bool = False
    is_collection: bool = False


KEY, SOURCE_COLUMN, CONDITION = NamedBy("source", is_key=True), NamedBy("source"), NamedBy("condition")
RESULT_COLUMN, NO_COLUMN = NamedBy("result"), NamedBy()
INPUT, INPUTS = NamedBy(datasets="input"), NamedBy(datasets="input", is_collection=True)
LOOKUP, OUTPUT, STATE_DATASET = (
    NamedBy(datasets="lookup"),
    NamedBy(datasets="output"),
    NamedBy(datasets="state"),
)


class Config(BaseModel):
    """A frozen configuration; ``parse`` creates it from user input.

    Fields declare their checks as ``Annotated[..., BeforeValidator(check)]``, where ``check`` raises
    ``ValueError`` with the message for the user. Checks between fields are in ``check_rules``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    unknown_word: ClassVar[str] = "unknown argument"
    # The field with the dataset that the run mainly writes.
    output_field: ClassVar[str] = "target"
    # Fields that are no arguments: each operator has one value, or the value has no effect.
    internal_fields: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Validate ``raw`` and return the frozen configuration.

        :raises ConfigError: with every problem of the fields and of the rules between them.
        """
        require_plain(raw)
        try:
            config = cls.model_validate(raw)
        except ValidationError as error:
            details = error.errors(include_url=False)
            invalid_fields = {str(detail["loc"][0]) for detail in details if detail["loc"]}
            # pydantic skips the checks between fields as soon as one field is wrong; users need both.
            valid_fields = cls._read_valid_fields(raw, invalid_fields)
            problems = [cls._build_problem(detail) for detail in details]
            raise ConfigError.from_problems([*problems, *cls.check_rules(valid_fields)]) from None
        if problems := list(cls.check_rules(vars(config))):
            raise ConfigError.from_problems(problems)
        return config

    @classmethod
    def check_rules(cls, fields: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield the problems between fields; ``fields`` has only those that are valid by themselves."""
        yield from ()

    @classmethod
    def list_arguments(cls) -> tuple[str, ...]:
        """Return the fields that are arguments of operators, in order."""
        return tuple(name for name in cls.model_fields if name not in cls.internal_fields)

    @classmethod
    def list_names(cls) -> dict[str, NamedBy]:
        """Return what the value of each field names; of several marks of a field, the last one counts."""
        return {
            name: mark
            for name, field in cls.model_fields.items()
            for mark in field.metadata
            if isinstance(mark, NamedBy)
        }

    def list_datasets(self, *uses: DatasetUse) -> dict[str, Any]:
        """Return the datasets that the configuration names, by the paths that errors name.

        :param uses: what the run does with them; by default anything.
        """
        datasets: dict[str, Any] = {}
        for name, mark in self.list_names().items():
            value = getattr(self, name)
            if value is None or mark.datasets is None or mark.datasets not in (uses or (mark.datasets,)):
                continue
            if not mark.is_collection:
                datasets[name] = value
            elif isinstance(value, Mapping):
                datasets |= {f"{name}.{key}": item for key, item in value.items()}
            else:
                datasets |= {f"{name}[{position}]": item for position, item in enumerate(value)}
        return datasets

    def dump_choices(self, *left_out: str) -> dict[str, Any]:
        """Return the fields that differ from their defaults, in their JSON form.

        A field that a later version of the package adds is not among them until somebody sets it.
        """
        names = {
            name
            for name, field in type(self).model_fields.items()
            if name not in left_out and getattr(self, name) != field.get_default(call_default_factory=True)
        }
        return self.model_dump(mode="json", include=names)

    def list_warnings(self) -> list[str]:
        """Return warnings about settings that are valid but probably not intended."""
        return []

    def list_key_columns(self) -> tuple[str, ...]:
        """Return the columns whose values identify the rows of a run."""
        values = [getattr(self, name) for name, mark in self.list_names().items() if mark.is_key]
        columns = [(value,) if isinstance(value, str) else value or () for value in values]
        return tuple(dict.fromkeys(name for names in columns for name in names))

    @classmethod
    def _read_valid_fields(cls, raw: Mapping[str, Any], invalid_fields: set[str]) -> dict[str, Any]:
        return {
            name: _validate_field(field, raw[name])
            if name in raw
            else field.get_default(call_default_factory=True)
            for name, field in cls.model_fields.items()
            if name not in invalid_fields
        }

    @classmethod
    def _build_problem(cls, detail: ErrorDetails) -> Problem:
        path = format_path(detail["loc"])
        kind = detail["type"]
        if kind == "extra_forbidden":
            name = str(detail["loc"][-1])
            hint = suggest_name(name, cls.model_fields, "names")
            return Problem(path, "unknown", f"{cls.unknown_word} {name!r}", hint)
        if kind == "value_error":
            return Problem(path, "value", str(detail["ctx"]["error"]))
        if kind == "literal_error":
            return Problem(path, "value", f"must be {detail['ctx']['expected']}")
        return Problem(path, "value", _PYDANTIC_MESSAGES.get(kind, detail["msg"]))


def require_plain(content: Any) -> None:
    """Check that content has only strings, numbers, booleans, dates, lists and objects, within the limits.

    :raises ConfigError: if there is such a value, at its path.
    """
    pending: list[tuple[Any, tuple[int | str, ...]]] = [(content, ())]
    value_count = 0
    while pending:
        value, loc = pending.pop()
        value_count += 1
        if value_count > VALUES_MAX:
            raise _build_value_error(
                (), f"the configuration contains more than {VALUES_MAX} values, including those of aliases"
            )
        if len(loc) > DEPTH_MAX:
            raise _build_value_error(loc[:1], f"is nested more than {DEPTH_MAX} levels deep")
        if isinstance(value, Mapping):
            invalid_keys = [name for name in value if not isinstance(name, str) or _is_cut(name)]
            if invalid_keys:
                raise _build_value_error(loc, f"the key {invalid_keys[0]!a} is not a valid string")
            pending += [(item, (*loc, name)) for name, item in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
            pending += [(item, (*loc, index)) for index, item in enumerate(value)]
        else:
            _require_scalar(value, loc)


def _require_scalar(value: Any, loc: tuple[int | str, ...]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise _build_value_error(loc, f"{value} is not a finite number")
    if isinstance(value, str) and _is_cut(value):
        raise _build_value_error(loc, f"contains an unpaired surrogate: {value[:40]!a}")
    if value is not None and not isinstance(value, _PLAIN_TYPES):
        hint = "use a string, a number, a boolean, a list or an object"
        raise _build_value_error(loc, f"a value of type {type(value).__name__!r} is not supported", hint)


def _is_cut(text: str) -> bool:
    """Return whether a text has an unpaired surrogate, which cannot be encoded."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def _build_value_error(loc: tuple[int | str, ...], message: str, hint: str = "") -> ConfigError:
    return ConfigError.from_problems([Problem(format_path(loc), "value", message, hint)])


def format_path(loc: tuple[int | str, ...]) -> str:
    """Format a location as users write it: names with dots, positions in brackets.

    >>> format_path(("equality_sets", 0, 2))
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
        return annotation.model_validate(value)  # the model has its own strictness
    config = None if is_dataclass(annotation) else _STRICT_CONFIG  # and so has the class
    for check in field.metadata:
        annotation = Annotated[annotation, check]
    return TypeAdapter(annotation, config=config).validate_python(value)
