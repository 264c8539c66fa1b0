"""Types as text, and how key values of two types are compared exactly, or the casts that they need first.

Spark compares values of two types after a cast to a common type, which rounds decimals and large integers,
reads text as numbers, and puts days and local times into the time zone of the session. Here, values are
compared only if every value of both types keeps its digits. Source: docs/values.md, Keys of two types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

# How many types each kind of container is made of.
PART_COUNTS = {"array": 1, "map": 2}
# Spark has the file of each row in a column of this name, and Delta cannot change rows that have their own.
FILE_METADATA = "_metadata"
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NESTED_TYPE = re.compile(r"(array|map|struct)\s*<(.*)>\Z", re.IGNORECASE | re.DOTALL)
_INCOMPARABLE_TYPES = frozenset({"map", "variant", "interval", "geometry", "geography"})


def show_identifier(name: str) -> str:
    """Return a name as SQL that users are shown has it: in backticks if it is not a plain word.

    >>> show_identifier("id"), show_identifier("a.b`c")
    ('id', '`a.b``c`')
    """
    return name if _PLAIN_NAME.match(name) else f"`{name.replace('`', '``')}`"


def split_type(written: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the outermost kind of a type, and the names and types of its parts."""
    nested = _NESTED_TYPE.match(written.strip())
    if nested is None:
        type_text = " ".join(written.lower().split())
        return re.sub(r" ?([(),]) ?", r"\1", type_text), []
    kind, text = nested[1].lower(), nested[2]
    if kind == "struct":
        return kind, [_split_field(part) for part in _split_list(text) if part.strip()]
    inner = list(_split_list(text))
    if len(inner) != PART_COUNTS[kind]:
        raise ValueError(f"unknown type {written.strip()!r}: write array<type> or map<type,type>")
    return kind, [("", part) for part in inner]


def _split_field(text: str) -> tuple[str, str]:
    """Split a struct field ``name:type``, where the name may be in backticks."""
    quoted = re.match(r"\s*`((?:[^`]|``)+)`\s*:?(.*)\Z", text, re.DOTALL)
    if quoted:
        return quoted[1].replace("``", "`"), quoted[2]
    name, colon, kind = text.partition(":")
    if not colon:
        raise ValueError(f"unknown type {text.strip()!r} in a struct: write struct<name:type>")
    return name.strip(), kind


def _split_list(text: str) -> Iterator[str]:
    """Split at the commas that are outside brackets and backticks."""
    depth, start, quoted = 0, 0, False
    for position, char in enumerate(text):
        quoted ^= char == "`"
        if quoted:
            continue
        depth += (char in "<(") - (char in ">)")
        if char == "," and not depth:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def is_comparable(kind: str) -> bool:
    """Return whether values of a type can be compared: types that contain a map or a variant cannot.

    >>> is_comparable("array<map<string,int>>"), is_comparable("struct<map:int>")
    (False, True)
    """
    name, inner = split_type(kind)
    return name.partition("(")[0] not in _INCOMPARABLE_TYPES and all(
        is_comparable(part_type) for _, part_type in inner
    )


# Returns a value of a column of the source as text; None if it has none.
FindExample = Callable[[str], str | None]
Family = Literal[
    "boolean", "integer", "decimal", "float", "text", "char", "binary", "date", "timestamp", "timestamp_ntz",
    "other",
]  # fmt: skip
# The largest number of digits of a decimal in Spark.
DIGITS_MAX = 38
# The digits of an integer, by its type.
_INTEGER_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}
# A double holds each integer of these types exactly.
_DOUBLE_INTEGERS = ("TINYINT", "SMALLINT", "INT")
_SQL_NAMES = {
    "byte": "TINYINT", "bytes": "BINARY", "integer": "INT", "long": "BIGINT", "real": "FLOAT",
    "short": "SMALLINT", "timestamp_ltz": "TIMESTAMP",
}  # fmt: skip
_FAMILIES: dict[str, Family] = {
    "BOOLEAN": "boolean", "TINYINT": "integer", "SMALLINT": "integer", "INT": "integer", "BIGINT": "integer",
    "FLOAT": "float", "DOUBLE": "float", "STRING": "text", "BINARY": "binary", "DATE": "date",
    "TIMESTAMP": "timestamp", "TIMESTAMP_NTZ": "timestamp_ntz",
}  # fmt: skip
_SIZED = re.compile(r"(decimal|varchar|char)\((\d+)(?:,(\d+))?\)\Z")
# Families of which the first has a cast to the second that maps no two values to one.
_CASTS: frozenset[tuple[Family, Family]] = frozenset({
    ("boolean", "text"), ("integer", "text"), ("decimal", "text"), ("float", "text"), ("date", "text"),
    ("timestamp", "text"), ("timestamp_ntz", "text"), ("text", "binary"),
    ("boolean", "integer"), ("boolean", "decimal"), ("boolean", "float"), ("float", "integer"),
    ("date", "timestamp"), ("date", "timestamp_ntz"), ("timestamp_ntz", "timestamp"),
})  # fmt: skip

# Families between which Spark has casts that keep the meaning of values.
_CONVERTIBLE: tuple[frozenset[Family], ...] = (
    frozenset({"boolean", "integer", "decimal", "float", "text", "char"}),
    frozenset({"date", "timestamp", "timestamp_ntz", "text", "char"}),
    frozenset({"binary", "text", "char"}),
)


@dataclass(frozen=True, slots=True)
class KeyComparison:
    """How the values of a key are compared: as values of a type, or as they are if it is None.

    ``is_split``: no decimal has room for the digits of all numbers, so their integral parts and their
    fractions are compared.
    """

    type: str | None = None
    is_split: bool = False


@dataclass(frozen=True, slots=True)
class KeyType:
    """A type of key values: its family, its name in SQL, and its size."""

    family: Family
    name: str
    digits: int = 0
    scale: int = 0

    @property
    def is_exact_number(self) -> bool:
        """Whether the values are integers or decimals."""
        return self.family in {"integer", "decimal"}


def choose_comparison(types: Sequence[str]) -> KeyComparison | None:
    """Return how key values of these types are compared; None if not all of them can be compared exactly.

    >>> choose_comparison(["int", "bigint"])
    KeyComparison(type='BIGINT', is_split=False)
    >>> choose_comparison(["decimal(38,2)", "decimal(38,18)"])
    KeyComparison(type=None, is_split=True)
    >>> choose_comparison(["date", "timestamp"])
    """
    kinds = [read_key_type(kind) for kind in types]
    families = {kind.family for kind in kinds}
    if families == {"text"}:
        # A cast removes a collation, by which texts with other bytes can be equal.
        return KeyComparison("STRING")
    if len(set(kinds)) == 1:
        return KeyComparison() if is_comparable(types[0]) else None
    if families == {"integer"}:
        return KeyComparison(max((kind.name for kind in kinds), key=lambda name: _INTEGER_DIGITS[name]))
    if all(kind.is_exact_number for kind in kinds):
        return _compare_numbers(kinds)
    if families <= {"integer", "float"} and all(
        kind.family == "float" or kind.name in _DOUBLE_INTEGERS for kind in kinds
    ):
        return KeyComparison("DOUBLE")
    return None


def list_casts(types: Sequence[str]) -> list[str] | None:
    """Return the expression that gives the values of each type a type that all of them can be compared in.

    ``{0}`` stands for the value. No two values become one: a number becomes text, since a text such as ``01``
    would become the number of another. None if no such cast exists, or if the values mean something else.

    >>> list_casts(["string", "int"]), list_casts(["char(3)", "string"])
    (['{0}', 'CAST({0} AS STRING)'], ['RTRIM({0})', '{0}'])
    """
    kinds = [read_key_type(kind) for kind in types]
    if any(not is_comparable(kind) for kind in types):
        return None
    goals = _list_goals(kinds, choose_comparison(types))
    if goals is None:
        return None
    return [_build_cast(kind, goal) for kind, goal in zip(kinds, goals, strict=True)]


def suggest_casts(names: Sequence[str], types: Sequence[str]) -> str:
    """Return how to give columns of two types one type, by their names.

    :param names: names in SQL.

    >>> suggest_casts(["a.id", "b.id"], ["string", "int"])
    'give the input a column with CAST(b.id AS STRING) in place of the field'
    """
    casts = list_casts(types)
    if casts is None:
        return "join on another field"
    changed = [cast.format(name) for name, cast in zip(names, casts, strict=True) if cast != "{0}"]
    return f"give the input a column with {' and '.join(changed)} in place of the field"


def show_example(find_example: FindExample, name: str) -> str:
    """Return the part of a message about a column that shows one of its values, if it has one."""
    example = find_example(name)
    return "" if example is None else f", with values such as {example}"


def suggest_cast(name: str, kind: str, goal: str) -> str:
    """Return how to give a column another type upstream: with a cast, if Spark has one.

    >>> suggest_cast("a.b", "bigint", "int")
    'cast it upstream with CAST(`a.b` AS int) if no value changes by that'
    >>> suggest_cast("v", "bigint", "struct<a:bigint>")
    'give it the type struct<a:bigint> upstream'
    """
    families = {read_key_type(kind).family, read_key_type(goal).family}
    # The result of a cast to CHAR or VARCHAR is a STRING.
    has_length = "char(" in goal.lower()
    if not has_length and any(families <= group for group in _CONVERTIBLE):
        return f"cast it upstream with CAST({show_identifier(name)} AS {goal}) if no value changes by that"
    return f"give it the type {goal} upstream"


def read_key_type(written: str) -> KeyType:
    """Return a type, written as Spark or Delta write it.

    >>> read_key_type("long"), read_key_type("decimal(5, 2)")
    (KeyType(family='integer', name='BIGINT', digits=19, scale=0), KeyType(family='decimal', \
name='DECIMAL(5,2)', digits=3, scale=2))
    """
    text = "".join(written.lower().split())
    if sized := _SIZED.match(text):
        name, size, scale = sized[1], int(sized[2]), int(sized[3] or 0)
        if name == "decimal":
            return KeyType("decimal", f"DECIMAL({size},{scale})", size - scale, scale)
        return KeyType("char", f"CHAR({size})") if name == "char" else KeyType("text", "STRING")
    name = _SQL_NAMES.get(text, text.upper())
    family = _FAMILIES.get(name, "other")
    # Names inside of other types may differ in case only.
    return KeyType(family, written.strip() if family == "other" else name, _INTEGER_DIGITS.get(name, 0))


def _compare_numbers(kinds: Iterable[KeyType]) -> KeyComparison:
    digits, scale = max(kind.digits for kind in kinds), max(kind.scale for kind in kinds)
    if digits + scale > DIGITS_MAX:
        return KeyComparison(is_split=True)
    return KeyComparison(f"DECIMAL({digits + scale},{scale})")


def _list_goals(kinds: Sequence[KeyType], comparison: KeyComparison | None) -> list[str] | None:
    """Return the type that each value is cast to; None if there is none."""
    families = {kind.family for kind in kinds}
    if families == {"integer", "decimal"}:
        # Decimals of any size can be compared.
        return [f"DECIMAL({kind.digits},0)" if kind.family == "integer" else kind.name for kind in kinds]
    if comparison is not None:
        return [comparison.type or kind.name for kind in kinds]
    if families <= {"text", "char"}:
        return ["STRING"] * len(kinds)
    goal = next((kind for kind in kinds if all(_can_cast(other, kind) for other in kinds)), None)
    if goal is None:
        return None
    return ["STRING" if goal.family == "char" else goal.name] * len(kinds)


def _can_cast(kind: KeyType, goal: KeyType) -> bool:
    families: list[Family] = ["text" if item.family == "char" else item.family for item in (kind, goal)]
    return families[0] == families[1] or tuple(families) in _CASTS


def _build_cast(kind: KeyType, goal: str) -> str:
    if kind.name == goal:
        return "{0}"
    if kind.family == "float" and goal in _INTEGER_DIGITS:
        # A cast alone cuts the fraction, and then 1.5 equals 1.
        return f"IF({{0}} % 1 = 0, CAST({{0}} AS {goal}), NULL)"
    if kind.family == "boolean" and goal.startswith("DECIMAL"):
        # A decimal without integral digits has no 1, and integers are compared with all decimals.
        return "CAST({0} AS INT)"
    # Blanks at the end of a CHAR are padding.
    name, value = ("STRING", "RTRIM({0})") if kind.family == "char" else (kind.name, "{0}")
    return value if name == goal else f"CAST({value} AS {goal})"
