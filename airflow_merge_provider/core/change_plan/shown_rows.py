"""What logs, reports, XComs and errors may show of the rows of a run.

Each value of a row that leaves a run in a text or in a report passes one of the functions of this module. The
rows of tables and the folders of merge records do not: whoever may read these may read the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from airflow_merge_provider.core.errors import ConfigError, Problem, suggest_name

Rows = Literal["all", "keys", "none"]
ROWS: tuple[str, ...] = get_args(Rows)
SHOW_ROWS, MASK_COLUMNS = "show_rows", "mask_columns"
# In Airflow; the command line shows all.
DEFAULT_ROWS: Rows = "keys"
# Stands for a value that is not shown, and for one that differs from the value before.
MASK, CHANGED_MASK = "***", "*** (changed)"

# Errors of Spark begin with their condition. Their values are quoted, an apostrophe stands after a letter.
_CONDITION = re.compile(r"^(?:[\w.$]+: )?\[[A-Z_.0-9]+\]")
_QUOTED = re.compile(r"(?<!\w)(['\"])(?:(?!\1).)*\1(?!\w)")
# Lines of a stack without messages: files, functions and the classes of errors.
_STACK_LINE = re.compile(r"\s+(?:at |File |\.\.\. \d+ more)|Traceback ")
_ERROR_CLASS = re.compile(r"((?:Caused by: )?[\w$]+(?:\.[\w$]+)*(?:Error|Exception))(?:: |$)")


class ShownRows(BaseModel):
    """The rows that may be shown: whole rows, only their keys, or only names and counts.

    ``key_columns`` identify rows. Values of ``masked_columns`` are never shown, whether they are keys or not;
    case is ignored, as in Spark.
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
        """Return whether values of a column are shown."""
        if _is_among(name, self.masked_columns):
            return False
        return self.rows == "all" or (self.rows == "keys" and _is_among(name, self.key_columns))


def parse_shown_rows(read_setting: Callable[[str], str | None], key_columns: Sequence[str] = ()) -> ShownRows:
    """Return what may be shown by the settings ``show_rows`` and ``mask_columns``.

    IDs of merge sources contain those of their members, so a key is masked with any column of it.

    :raises ConfigError: if ``show_rows`` is not valid.
    """
    rows = (read_setting(SHOW_ROWS) or DEFAULT_ROWS).strip().lower()
    if rows not in ROWS:
        message = f"must be {', '.join(map(repr, ROWS))}, not {rows!r}"
        problem = Problem(f"[merge] {SHOW_ROWS}", "value", message, suggest_name(rows, ROWS))
        raise ConfigError.from_problems([problem])
    names = (read_setting(MASK_COLUMNS) or "").split(",")
    masked = [name.strip() for name in names if name.strip()]
    if any(_is_among(name, masked) for name in key_columns):
        masked += [name for name in key_columns if name not in masked]
    fields = {"rows": rows, "key_columns": tuple(key_columns), "masked_columns": tuple(masked)}
    return ShownRows.model_validate(fields)


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


def mask_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as it may be shown: NULLs stay, so do names of columns."""
    return {name: _mask_value(name, value) for name, value in row.items()}


def mask_change(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
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


def mask_value(text: str, columns: Iterable[str]) -> str:
    """Return a text that is made of the values of some columns, or the mask."""
    return text if all(map(_current.shows_column, columns)) else MASK


def mask_text(text: str) -> str:
    """Return a text that may have values of any column, or the mask."""
    return MASK if _current.has_masks else text


def mask_error(text: str) -> str:
    """Return the text of an error that a value has caused: its condition, without what follows it.

    >>> with use_shown_rows(ShownRows(rows="keys")):
    ...     mask_error("[CAST_INVALID_INPUT] The value 'x' cannot be cast")
    '[CAST_INVALID_INPUT] ***'
    """
    if not _current.has_masks:
        return text
    condition = _CONDITION.match(text)
    return f"{condition[0]} {MASK}" if condition else MASK


def mask_quotes(text: str) -> str:
    """Return the text of an unknown error without what it quotes, which may be values.

    >>> with use_shown_rows(ShownRows(rows="keys")):
    ...     mask_quotes("ValueError: could not convert 'x'")
    "ValueError: could not convert '***'"
    """
    return _QUOTED.sub(rf"\1{MASK}\1", text) if _current.has_masks else text


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
    return _mask_fields(value) if _current.masked_columns else value


def _mask_fields(value: Any) -> Any:
    """Return a shown value without the fields that are masked, at any depth."""
    if isinstance(value, Mapping):
        return {
            name: MASK
            if item is not None and _is_among(str(name), _current.masked_columns)
            else _mask_fields(item)
            for name, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_mask_fields(item) for item in value]
    return value


def _is_among(name: str, columns: Iterable[str]) -> bool:
    return name.casefold() in {column.casefold() for column in columns}
