"""Expressions of match rules: a path, a function of paths, or a constant, and their values for an entity.

Standard library only: Spark sends ``evaluate_expression`` to its workers if no column expression does the
same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_merge_provider.core.errors import suggest_name
from airflow_merge_provider.core.merge_source.dtl.functions import DTL_FUNCTIONS, ITEM_FUNCTIONS, is_true
from airflow_merge_provider.core.merge_source.dtl.values import as_list

CURRENT = "_"
_DTL_VARIABLES = ("_S", "_T", "_P", "_R", "_B", CURRENT)
_WORD = re.compile(r"([A-Za-z_][A-Za-z0-9_\-]*)\.")
_SIMPLE_ELEMENT = re.compile(r"[\w$:@+\-]+\Z")


@dataclass(frozen=True, slots=True)
class Path:
    """The properties to follow from an entity, or from the current item (alias ``_``)."""

    alias: str
    elements: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A function and its arguments."""

    name: str
    args: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is the same for every entity."""

    value: Any


Expression = Path | Call | Constant


class ExpressionError(ValueError):
    """Raised when an expression is invalid; ``hint`` describes what to write instead."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def parse_expression(raw: Any, aliases: Collection[str]) -> Expression:
    """Parse an expression as it is written in a configuration.

    >>> parse_expression(["lower", "a.o.'x.y'"], {"a"})
    Call(name='lower', args=(Path(alias='a', elements=('o', 'x.y')),))

    :raises ExpressionError: for an unknown function, a wrong number of arguments, a path with an error in it.
    """
    return _parse_raw(raw, aliases, in_items=False)


def evaluate_expression(expression: Expression, entity: Mapping[str, Any], current: Any = None) -> Any:
    """Return the value of an expression for one entity; ``current`` is the value of ``_.``.

    >>> evaluate_expression(parse_expression(["lower", "a.x"], {"a"}), {"x": ["A", 1]})
    ['a']
    """
    if isinstance(expression, Constant):
        return expression.value
    if isinstance(expression, Path):
        value: Any = current if expression.alias == CURRENT else entity
        for element in expression.elements:
            value = _follow_element(value, element)
        return value
    if expression.name in ITEM_FUNCTIONS:
        function, values = expression.args
        items = as_list(evaluate_expression(values, entity, current))
        results = [evaluate_expression(function, entity, item) for item in items]
        if expression.name == "map":
            return results
        return [item for item, condition in zip(items, results, strict=True) if is_true(condition)]
    args = [evaluate_expression(arg, entity, current) for arg in expression.args]
    return DTL_FUNCTIONS[expression.name].apply(*args)


def find_aliases(expression: Expression) -> frozenset[str]:
    """Return the dataset aliases that an expression reads."""
    return frozenset(
        part.alias for part in _list_parts(expression) if isinstance(part, Path) and part.alias != CURRENT
    )


def list_properties(expression: Expression) -> list[str]:
    """Return the properties of entities that an expression reads, each once, in order."""
    paths = (part for part in _list_parts(expression) if isinstance(part, Path) and part.alias != CURRENT)
    return list(dict.fromkeys(path.elements[0] for path in paths if path.elements))


def is_calling(expression: Expression, name: str) -> bool:
    """Return whether an expression calls a function anywhere."""
    return any(isinstance(part, Call) and part.name == name for part in _list_parts(expression))


def foreign_words(expression: Expression) -> list[str]:
    """Return the prefixes of constants such as ``z.name`` that look like aliases but are not."""
    constants = (part.value for part in _list_parts(expression) if isinstance(part, Constant))
    matches = (_WORD.match(value) for value in constants if isinstance(value, str))
    return [match[1] for match in matches if match]


def to_raw(expression: Expression) -> Any:
    """Return an expression as it is written in a configuration; ``parse_expression`` reverses this."""
    if isinstance(expression, Constant):
        return expression.value
    if isinstance(expression, Call):
        return [expression.name, *(to_raw(arg) for arg in expression.args)]
    return f"{expression.alias}.{'.'.join(_quote_element(element) for element in expression.elements)}"


def format_expression(expression: Expression) -> str:
    """Format an expression for people.

    >>> format_expression(parse_expression(["replace", "-", "", "a.x"], {"a"}))
    'replace("-", "", a.x)'
    """
    if isinstance(expression, Constant):
        return json.dumps(expression.value, ensure_ascii=False, sort_keys=True)
    if isinstance(expression, Call):
        return f"{expression.name}({', '.join(format_expression(arg) for arg in expression.args)})"
    return str(to_raw(expression))


def _parse_raw(raw: Any, aliases: Collection[str], *, in_items: bool) -> Expression:
    if isinstance(raw, str):
        return _parse_text(raw, aliases, in_items=in_items)
    if isinstance(raw, list | tuple):
        return _parse_call(list(raw), aliases, in_items=in_items)
    try:
        json.dumps(raw)
    except TypeError as error:
        hint = "write a date as '~t2024-01-31', and any other value as a string"
        raise ExpressionError(f"{raw!r} is not supported in a rule: {error}", hint) from None
    return Constant(raw)


def _parse_text(raw: str, aliases: Collection[str], *, in_items: bool) -> Path | Constant:
    head, dot, path = raw.partition(".")
    if dot and head in _DTL_VARIABLES:
        if head != CURRENT or not in_items:
            raise ExpressionError(
                f"variable {head!r} is not available in an equality rule",
                "use '_.' only inside filter and map"
                if head == CURRENT
                else "start the path with a dataset alias",
            )
        return Path(CURRENT, tuple(_split_path(path)) if path else ())
    if not dot or head not in aliases:
        return Constant(raw)
    if not path:
        raise ExpressionError(f"empty path after '{head}.'", "add the name of a property")
    return Path(head, tuple(_split_path(path)))


def _parse_call(raw: list[Any], aliases: Collection[str], *, in_items: bool) -> Call:
    name = raw[0] if raw else ""
    valid_names = (*DTL_FUNCTIONS, *ITEM_FUNCTIONS)
    if not isinstance(name, str) or name not in valid_names:
        hint = (
            suggest_name(name, valid_names, "functions")
            if isinstance(name, str)
            else "start the list with the name of a function"
        )
        raise ExpressionError(f"unsupported DTL function {name!r}", hint)
    arguments = raw[1:]
    if expected := _find_expected_number(name, arguments):
        raise ExpressionError(f"wrong number of arguments for {name!r}", f"{expected}, not {len(arguments)}")
    # Only the first argument of an item function is evaluated once per item.
    first_in_items = in_items or name in ITEM_FUNCTIONS
    return Call(
        name,
        tuple(
            _parse_raw(argument, aliases, in_items=in_items if position else first_in_items)
            for position, argument in enumerate(arguments)
        ),
    )


def _find_expected_number(name: str, arguments: list[Any]) -> str:
    """Return an error message with the number of arguments that a function takes."""
    least, most = (2, 2) if name in ITEM_FUNCTIONS else (DTL_FUNCTIONS[name].least, DTL_FUNCTIONS[name].most)
    if name == "replace" and arguments and isinstance(arguments[0], dict):
        least, most = 2, 2
    if least <= len(arguments) and (most is None or len(arguments) <= most):
        return ""
    if most is None:
        return f"it takes {least} or more"
    return f"it takes {least}" if least == most else f"it takes {least} to {most}"


def _split_path(path: str) -> Iterator[str]:
    """Split a path at its dots; a quoted element may contain dots, and quotes written twice.

    >>> list(_split_path("foo.'john.doe''s'.bar"))
    ['foo', "john.doe's", 'bar']
    """
    position = 0
    while position <= len(path):
        if path.startswith("'", position):
            element, position = _read_quoted_element(path, position + 1)
        else:
            end = path.find(".", position)
            end = len(path) if end < 0 else end
            element, position = path[position:end], end + 1
        if not element:
            raise ExpressionError("empty path element", "remove a repeated dot, or a dot at the end")
        yield element


def _read_quoted_element(path: str, start: int) -> tuple[str, int]:
    """Read up to the closing quote; return the element and the position after the dot that follows."""
    end = start
    while True:
        end = path.find("'", end)
        if end < 0:
            raise ExpressionError("unterminated quote", "end the path element with '")
        if not path.startswith("''", end):
            break
        end += 2
    if end + 1 < len(path) and path[end + 1] != ".":
        raise ExpressionError(
            "a quoted path element must be followed by '.'", "write a quote inside the element twice"
        )
    return path[start:end].replace("''", "'"), end + 2


def _quote_element(element: str) -> str:
    return element if _SIMPLE_ELEMENT.match(element) else "'" + element.replace("'", "''") + "'"


def _follow_element(value: Any, name: str) -> Any:
    """Follow one path element; for a list, collect the values from the dicts in it."""
    if isinstance(value, Mapping):
        return value.get(name)
    if not isinstance(value, list):
        return None
    collected: list[Any] = []
    for item in value:
        if isinstance(item, Mapping) and name in item:
            property_value = item[name]
            collected.extend(property_value if isinstance(property_value, list) else [property_value])
    return collected


def _list_parts(expression: Expression) -> Iterator[Expression]:
    yield expression
    if isinstance(expression, Call):
        for arg in expression.args:
            yield from _list_parts(arg)
