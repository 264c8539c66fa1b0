"""What logs, reports, XComs and errors may show of the rows of a run.

Each value of a row that leaves a run in a text or in a report passes one of the functions of this module. The
rows of tables and the folders of merge records do not: whoever may read these may read the values.
"""

from __future__ import annotations

import json
import lzma
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from airflow_merge_provider.core.errors import ConfigError, MergeError, Problem, suggest_name
from airflow_merge_provider.core.value_text import Row

Rows = Literal["all", "keys", "none"]
ROWS: tuple[str, ...] = get_args(Rows)
SHOW_ROWS, MASK_COLUMNS = "show_rows", "mask_columns"
# In Airflow; the command line shows all.
DEFAULT_ROWS: Rows = "keys"
# Stands for a value that is not shown, and for one that differs from the value before.
MASK, CHANGED_MASK = "***", "*** (changed)"

# The names of a setting, and a name: its parts may have any characters in backticks, as in SQL.
_COLUMN_LIST = re.compile(r"(?:`[^`]*`|[^,])+")
_PART = r"(?:`[^`]+`|[^\x00-\x1f'\"`;\[\]{}.]+)"
_COLUMN_NAME = re.compile(rf"{_PART}(?:\.{_PART})*")
# An error of Spark begins with its condition, perhaps after a class of Java; others with their class.
_CONDITION_HEAD = re.compile(r"^\(?(?:[\w.$]+(?:\)|:) )?\[[A-Z_.0-9]+\]")
_CLASS = re.compile(r"^\(?((?:[a-z_]\w*\.)*[A-Z][\w$]*)(?:\)|:) ")
# Errors of files, networks, stores, memory and class paths: their texts have names, values only in quotes.
_VALUE_FREE = re.compile(
    r"\(?(?:java\.(?:io\.(?:IO|EOF|FileNotFound|InterruptedIO)Exception|net\.|nio\.|security\."
    r"|util\.concurrent\.TimeoutException|lang\.(?:OutOfMemoryError|StackOverflowError|InterruptedException"
    r"|ClassNotFoundException|NoClassDefFoundError|NoSuchMethodError|UnsupportedClassVersionError))"
    r"|javax\.net\.|org\.apache\.(?:hadoop|http)\.|software\.amazon\."
    r"|com\.(?:amazonaws|azure|microsoft|google\.(?:cloud|api|auth))\.|io\.(?:grpc|netty)\."
    r"|StatusCode\.|Py4JNetworkError: |ExecutorLostFailure\b|FetchFailed\b"
    r"|(?:OS|FileNotFound|FileExists|Permission|Timeout|Connection\w*|BrokenPipe|\w+ADirectory)Error: "
    r"|\[(?:FAILED_READ_FILE[\w.]*\] Encountered error while reading file|DATA_SOURCE_NOT_FOUND\]) "
    r"|Not all files from version \d)"
)
_VALUE_FREE_ERRORS = (
    OSError,
    EOFError,
    ImportError,
    UnicodeError,
    json.JSONDecodeError,
    lzma.LZMAError,
    zlib.error,
)
# From the first to the last quote, because values contain quotes too; an apostrophe stands after a letter.
_QUOTED_TEXT = re.compile(r"(?<!\w)(['\"])(?:.*\1(?!\w)|.*$)", re.DOTALL)
# The column or field that a problem begins with.
_COLUMN = re.compile(r"(?:a record has the )?(?:column|field) (?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")
# Lines of a stack without messages: files, functions and the classes of errors.
_STACK_LINE = re.compile(
    r"\s+(?:at [\w.$/<>-]+\([\w.$<> ]*(?::\d+)?\)$|File \"[^\"]+\", line \d+(?:, in \S+)?$|\.\.\. \d+ more)"
    r"|Traceback "
)
_ERROR_CLASS = re.compile(r"((?:Caused by: )?[\w$]+(?:\.[\w$]+)*(?:Error|Exception))(?:: |$)")


class ShownRows(BaseModel):
    """The rows that may be shown: whole rows, only their keys, or only names and counts.

    ``key_columns`` identify rows. Values of ``masked_columns`` are never shown, whether they are keys or not;
    case is ignored, as in Spark. ``mail`` masks columns and fields of this name, with all that is in them;
    ``person.mail`` masks only fields of columns or fields with the name ``person``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: Rows = Field("all", description="Which columns of rows are shown.")
    key_columns: tuple[str, ...] = Field((), description="The columns that identify rows.")
    masked_columns: tuple[str, ...] = Field((), description="The columns whose values are never shown.")

    @property
    def has_masks(self) -> bool:
        """Whether some values are not shown, so that texts with unknown values cannot be shown either."""
        return self.rows != "all" or bool(self.masked_columns)

    def shows_column(self, name: str) -> bool:
        """Return whether values of a column, or of a field by its path, are shown."""
        if self.masks_path(name):
            return False
        return self.rows == "all" or (self.rows == "keys" and _is_among(name, self.key_columns))

    def masks_path(self, path: str) -> bool:
        """Return whether a column or a field is masked, or one that contains it.

        >>> [ShownRows(masked_columns=("a.b",)).masks_path(path) for path in ("x.a.B", "a.b.c", "b", "a")]
        [True, True, False, False]
        """
        folded_path = f".{path}.".casefold()
        return any(f".{name}.".casefold() in folded_path for name in self.masked_columns)


def parse_shown_rows(read_setting: Callable[[str], str | None], key_columns: Sequence[str] = ()) -> ShownRows:
    """Return what may be shown by the settings ``show_rows`` and ``mask_columns``.

    IDs of merge sources contain those of their members, so a key is masked with any column or field of it.

    :raises ConfigError: if a setting is not valid.
    """
    rows = (read_setting(SHOW_ROWS) or DEFAULT_ROWS).strip().lower()
    if rows not in ROWS:
        message = f"must be {', '.join(map(repr, ROWS))}, not {rows!r}"
        problem = Problem(f"[merge] {SHOW_ROWS}", "value", message, suggest_name(rows, ROWS))
        raise ConfigError.from_problems([problem])
    masked = _parse_masked_columns(read_setting(MASK_COLUMNS) or "")
    is_masked = ShownRows(masked_columns=tuple(masked)).masks_path
    if any(is_masked(name) or _has_prefix(masked, f"{name}.") for name in key_columns):
        masked += [name for name in key_columns if name not in masked]
    fields = {"rows": rows, "key_columns": tuple(key_columns), "masked_columns": tuple(masked)}
    return ShownRows.model_validate(fields)


def _parse_masked_columns(text: str) -> list[str]:
    names = [name for part in _COLUMN_LIST.findall(text) if (name := part.strip())]
    if wrong := [name for name in names if not _COLUMN_NAME.fullmatch(name)]:
        message = f"{wrong[0]!r} is not the name of a column"
        hint = (
            "write names without quotes, brackets or semicolons, separated by commas: email, address.iban; "
            "a name with such a character in backticks: `Salary [EUR]`"
        )
        raise ConfigError.from_problems([Problem(f"[merge] {MASK_COLUMNS}", "value", message, hint)])
    return [name.replace("`", "") for name in names]


# As the secrets that Airflow masks: of the process, which runs one request at a time.
_current = ShownRows()


@contextmanager
def use_shown_rows(shown_rows: ShownRows) -> Iterator[None]:
    """Apply to everything that this process shows, from all of its threads, what a request permits."""
    global _current  # noqa: PLW0603 - threads do not inherit context variables
    previous, _current = _current, shown_rows
    try:
        yield
    finally:
        _current = previous


def mask_row(row: Row) -> dict[str, Any]:
    """Return a row as it may be shown: NULLs stay, so do names of columns."""
    return {name: _mask_value(name, value) for name, value in row.items()}


def mask_change(before: Row | None, after: Row | None) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return a row before and after a change as they may be shown: it stays visible which columns differ.

    >>> with use_shown_rows(ShownRows(rows="keys", key_columns=("id",))):
    ...     mask_change({"id": 1, "mail": "a", "age": 3}, {"id": 1, "mail": "b", "age": 3})[1]
    {'id': 1, 'mail': '*** (changed)', 'age': '***'}
    """
    masked = [None if row is None else mask_row(row) for row in (before, after)]
    if before is not None and after is not None and masked[0] is not None and masked[1] is not None:
        # As in a change example: NaN is equal to itself, and -0.0 is not 0.0.
        changed = [name for name in after if name in before and repr(before[name]) != repr(after[name])]
        masked[1] |= {name: CHANGED_MASK for name in changed if masked[0][name] == masked[1][name]}
    return masked[0], masked[1]


def select_columns(rows: Sequence[Row], internal_columns: Collection[str]) -> list[dict[str, Any]]:
    """Return rows with the columns that people see: those of the business, and flags that one of them sets.

    >>> select_columns([{"id": 1, "_ts": 2, "_deleted": False}, {"_deleted": True}], ("_ts", "_deleted"))
    [{'id': 1, '_deleted': False}, {'_deleted': True}]
    """
    flags = {name for row in rows for name, value in row.items() if value is True}
    hidden = set(internal_columns) - flags
    return [{name: value for name, value in row.items() if name not in hidden} for row in rows]


def mask_value(text: str, columns: Iterable[str]) -> str:
    """Return a text that is made of the values of some columns, or the mask.

    If the text is JSON, only its masked fields are masked.
    """
    names = tuple(columns)
    if not all(map(_current.shows_column, names)):
        return MASK
    if not _current.masked_columns or not text.startswith(("{", "[")):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return MASK
    # The fields of a row are its columns; those of one value belong to its column.
    masked = _mask_fields(value, names[0] if len(names) == 1 else "")
    return text if masked == value else json.dumps(masked, ensure_ascii=False)


def mask_text(text: str) -> str:
    """Return a text that may have values of any column, or the mask."""
    return MASK if _current.has_masks else text


def mask_error(text: str, error: BaseException | None = None) -> str:
    """Return a line of the text of an error as it may be shown: its condition or class, and no value.

    The texts of some errors, such as those of files and networks, lose only what they quote.

    :param error: the error of Python that has this text; without it, the text begins with a condition of
        Spark or a class of Java.

    >>> with use_shown_rows(ShownRows(rows="keys")):
    ...     mask_error("[CAST_INVALID_INPUT] The value 'x' cannot be cast")
    ...     mask_error("java.net.ConnectException: Connection refused")
    ...     mask_error("no number: x", ValueError())
    '[CAST_INVALID_INPUT] ***'
    'java.net.ConnectException: Connection refused'
    'ValueError: ***'
    """
    if not _current.has_masks or isinstance(error, MergeError):
        # The errors of this package have passed one of these functions.
        return text
    if isinstance(error, _VALUE_FREE_ERRORS) or is_free_of_values(text):
        return _QUOTED_TEXT.sub(rf"\1{MASK}\1", text)
    if condition := _CONDITION_HEAD.match(text):
        return f"{condition[0]} {MASK}"
    if error is not None:
        return f"{type(error).__name__}: {MASK}"
    name = _CLASS.match(text)
    return f"{name[1]}: {MASK}" if name else MASK


def mask_problem(text: str) -> str:
    """Return a problem of this package as it may be shown: with its column, and without what it quotes.

    Problems have values only in quotes.

    >>> with use_shown_rows(ShownRows(rows="keys")):
    ...     mask_problem("column 'a.b': 'it's' is not a valid INT (correct it)")
    "column 'a.b': '***' is not a valid INT (correct it)"
    """
    if not _current.has_masks:
        return text
    column = _COLUMN.match(text)
    end = column.end() if column else 0
    return text[:end] + _QUOTED_TEXT.sub(rf"\1{MASK}\1", text[end:])


def is_free_of_values(text: str) -> bool:
    """Return whether a text begins with a class or a condition of errors whose texts only quote values."""
    return _VALUE_FREE.match(text) is not None


def mask_trace(trace: str) -> str:
    """Return a stack trace without the messages of its errors."""
    if not _current.has_masks:
        return trace
    lines = []
    for line in trace.splitlines():
        if _STACK_LINE.match(line):
            lines.append(line)
        elif name := _ERROR_CLASS.match(line):
            lines.append(f"{name[1]}: {MASK}")
    return "\n".join(lines)


def _mask_value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if not _current.shows_column(name):
        return MASK
    return _mask_fields(value, name) if _current.masked_columns else value


def _mask_fields(value: Any, path: str) -> Any:
    """Return a shown value without the fields that are masked, at any depth."""
    if isinstance(value, Mapping):
        return {name: _mask_field(item, f"{path}.{name}") for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_mask_fields(item, path) for item in value]
    return value


def _mask_field(value: Any, path: str) -> Any:
    return MASK if value is not None and _current.masks_path(path) else _mask_fields(value, path)


def _has_prefix(names: Iterable[str], prefix: str) -> bool:
    return any(name.casefold().startswith(prefix.casefold()) for name in names)


def _is_among(name: str, columns: Iterable[str]) -> bool:
    return name.casefold() in {column.casefold() for column in columns}
