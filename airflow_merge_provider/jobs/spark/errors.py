"""Map errors of Spark and Delta to errors of this package, and extract their first lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pyspark.errors import AnalysisException

from airflow_merge_provider.core.change_plan.shown_rows import MASK, mask_error, mask_text, mask_value
from airflow_merge_provider.core.errors import (
    DataError,
    JobError,
    MergeError,
    Problem,
)
from airflow_merge_provider.jobs.spark.causes import OF_A_FILE, Cause, list_causes
from airflow_merge_provider.jobs.spark.known_errors import KNOWN_ERRORS

# The server of a session is gone, or another one has started in its place.
_LOST_SERVER = re.compile(
    r"StatusCode\.UNAVAILABLE|"
    r"INVALID_HANDLE\.(SESSION_(NOT_FOUND|CHANGED|CLOSED)|OPERATION_(NOT_FOUND|ABANDONED))"
)
# How Spark's errors name what does not exist.
_SUBJECT = re.compile(
    r"(?:The (?:catalog|schema|table or view)|single-part namespace, but got identifier|Path does not exist:)"
    r" ((?:`[^`]*`\.?)+|\S+)"
)

# The beginnings of errors that Py4J and gRPC report, and the prefix of causes in Java errors.
_CALL_FAILED, _RPC_FAILED, _CAUSED_BY = (
    "An error occurred while calling",
    "of RPC that terminated",
    "Caused by: ",
)
# The dataset does not exist.
NOT_FOUND_CONDITIONS = ("PATH_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")
# The dataset exists, but it is not a Delta table.
NOT_DELTA_CONDITIONS = (
    "DELTA_TABLE_ONLY_OPERATION",
    "DELTA_ONLY_OPERATION",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",
)
# The dataset is a view.
IS_VIEW_CONDITION = "EXPECT_TABLE_NOT_VIEW"
# The changes of a table cannot be read: VACUUM or log cleanup has removed them, the change data feed was not
# enabled all the time, or columns have changed so that one schema does not fit all rows.
CHANGES_GONE_CONDITIONS = (
    "PATH_NOT_FOUND",
    "FAILED_READ_FILE",
    "DELTA_FILE_NOT_FOUND",
    "DELTA_LOG_FILE_NOT_FOUND",
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "DELTA_CHANGE_DATA_FEED_INCOMPATIBLE",
    FileNotFoundError.__name__,
    "java.io.FileNotFoundException",
)

# SQLSTATEs of errors that the same input raises every time: cardinality, data, constraints, raised errors; KD
# denotes the environment. Of those of names and types, a missing file may be a matter of time.
_DATA_STATES = re.compile(r"2[123](?!KD)|P0001")
_NAME_STATES = re.compile(r"42(?!K03)")
# Such errors with another state, or without one in the message of a cause.
_DATA_CONDITIONS = re.compile(
    r"MALFORMED_|CANNOT_PARSE|CANNOT_MERGE_SCHEMAS|INVALID_VARIANT|DELTA_CAST_OVERFLOW|DELTA_FAILED_CAST|"
    r"DELTA_PARTITION_COLUMN_CAST_FAILED|DELTA_MULTIPLE_SOURCE_ROW_MATCHING|DELTA_NOT_NULL_CONSTRAINT"
)
# What Spark adds to a message of this package, which an expression has raised.
_OWN_TEXT = re.compile(rf"^\[USER_RAISED_EXCEPTION\] (?!{re.escape(MASK)})(.*?)(?: SQLSTATE: \w+)?$")
# A file may be missing, or a store may be busy, only for some time.
_OF_TIME = re.compile(
    r"FAILED_READ_FILE\.FILE_NOT_EXIST|java\.(net|util\.concurrent)\.|java\.io\.InterruptedIO|javax\.net\."
    r"|org\.apache\.(http|hadoop)\.|software\.amazon\.|com\.(amazonaws|azure|microsoft|google)\."
)

# The beginning of the error that a written row raises, followed by the column and the row.
LOST_PARTITION_VALUE = "no partition can hold the value of column"
_LOST_PARTITION_PATTERN = re.compile(
    rf"{LOST_PARTITION_VALUE} (.+?) in the row (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE
)
_VIOLATION = re.compile(r"(.+?) violated by row with values:((?:\n - [^\n]+)*)", re.DOTALL)
# A MERGE names the limit only.
_TOO_LONG_CONDITIONS = ("DELTA_EXCEED_CHAR_VARCHAR_LIMIT", "EXCEED_LIMIT_LENGTH")
_TOO_LONG = re.compile(
    r"Value \"(.*?)\" exceeds char/varchar type length limitation\. "
    r"Failed check: .*\(length\((.+)\) <= (\d+)\)|[^\n]*? limitation: (\d+)",
    re.DOTALL,
)
_NULL_VALUE = re.compile(r"[^\n]*? for column: ([^\n]+?)\.?$", re.MULTILINE)


def convert_error(
    error: BaseException, target: str = "target", *, has_begun: bool = True
) -> MergeError | None:
    """Return the error of this package for an error of Spark; None if it is not a known one.

    :param target: the table that was written, if one was.
    :param has_begun: whether the run had a session, so that it may have written something.
    """
    if isinstance(error, MergeError):
        return error
    causes = list_causes(error)
    if problem := next(filter(None, (_find_refusal(cause, target) for cause in causes)), None):
        return DataError.from_problems([problem])
    if cause := next(filter(_is_of_data, causes), None):
        return DataError(_OWN_TEXT.sub(r"\1", cause.shown_line))
    if cause := next(filter(_is_loss, causes), None):
        return JobError(f"{_describe_loss(has_begun=has_begun)}\n{cause.shown_line}")
    if (known_error := _find_known(causes)) is not None:
        return known_error
    if isinstance(error, AnalysisException):
        return DataError(first_line(error))
    if any(_OF_TIME.match(name) for cause in causes for name in (cause.condition, cause.name)):
        return None
    cause = next(filter(_is_of_names_or_files, causes), None)
    return DataError(cause.shown_line) if cause else None


def _is_of_data(cause: Cause) -> bool:
    return bool(_DATA_STATES.match(cause.state) or _DATA_CONDITIONS.match(cause.condition))


def _is_loss(cause: Cause) -> bool:
    return _LOST_SERVER.match(cause.condition or cause.name) is not None


def _is_of_names_or_files(cause: Cause) -> bool:
    return bool(_NAME_STATES.match(cause.state)) or cause.condition.startswith(OF_A_FILE)


def _find_known(causes: Sequence[Cause]) -> MergeError | None:
    texts = [(cause, cause.named_text, cause.known_text) for cause in causes]
    for entry in KNOWN_ERRORS:
        for cause, named_text, text in texts:
            if entry.is_in(named_text, text):
                subject = _SUBJECT.search(cause.message)
                path = f"{subject[1].replace('`', '').rstrip('.')}: " if subject else ""
                return entry.kind(f"{path}{entry.message}\n{cause.shown_line}")
    return None


def _describe_loss(*, has_begun: bool) -> str:
    if has_begun:
        return (
            "The Spark Connect server was lost during the run: start it again, or check the network (whether "
            "the run has committed is not known; a retry reports its commit, or repeats it)"
        )
    return (
        "The Spark Connect server cannot be reached, nothing was written: check the connection, or start a "
        "server with `airflow_merge_provider connect-server`"
    )


def _find_refusal(cause: Cause, path: str) -> Problem | None:
    """Return what the definition of a table refuses; Delta names neither the table nor a remedy."""
    condition, message = cause.condition, cause.message
    if condition == "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES" and (match := _VIOLATION.match(message)):
        hint = "correct it upstream, leave it out with expectations, or drop the constraint"
        return Problem(path, "constraint", f"a row violates {match[1]}: {_join_values(match[2])}", hint)
    if condition in _TOO_LONG_CONDITIONS and (match := _TOO_LONG.match(message)):
        return _refuse_long_value(path, *match.groups())
    if condition == "DELTA_NOT_NULL_CONSTRAINT_VIOLATED" and (match := _NULL_VALUE.match(message)):
        message = f"a row has NULL in column {_unquote_path(match[1])!r}, which is NOT NULL"
        hint = (
            "set a value upstream, leave such rows out with the expectation not_null, or drop the constraint "
            f"with ALTER COLUMN {match[1]} DROP NOT NULL"
        )
        return Problem(path, "not-null", message, hint)
    if match := _LOST_PARTITION_PATTERN.match(cause.problem):
        row = f"{match[1]} in the row {mask_text(match[2])}"
        message = f"{LOST_PARTITION_VALUE} {row}: Delta would store NULL, or no file could be named so"
        hint = "set another value upstream, leave the rows out with expect, or partition by another column"
        return Problem(path, "partition-value", message, hint)
    if condition == "DELTA_CANNOT_MODIFY_APPEND_ONLY":
        message = "the property delta.appendOnly of the table allows no change or deletion of rows"
        return Problem(path, "append-only", message, "set the property to false, or choose another target")
    return None


def _refuse_long_value(
    path: str, value: str | None, column: str | None, limit: str | None, merge_limit: str | None
) -> Problem:
    name = _unquote_path(column or "")
    subject = "a value"
    if name:
        # The values of a list or a map have no name.
        text = mask_text(repr(value)) if "(" in name else mask_value(repr(value), [name])
        subject = f"value {text} of column {name!r}"
    message = f"{subject} is longer than its type allows, {limit or merge_limit} characters"
    hint = "shorten it upstream, leave it out with expectations, or change the type of the column to STRING"
    return Problem(path, "length", message, hint)


def _unquote_path(path: str) -> str:
    """Return the path of a column without the backticks that SQL needs.

    >>> _unquote_path("`a.b``c`"), _unquote_path("s.`a`")
    ('a.b`c', 's.a')
    """
    return re.sub(r"`((?:[^`]|``)*)`", lambda name: name[1].replace("``", "`"), path)


def _join_values(lines: str) -> str:
    r"""Return the values of a row, which Delta lists line by line.

    Where values are masked, so are nested ones, which have no names of fields, and those of a name that is
    there twice, because one of them may be a line of another value.

    >>> _join_values("\n - id : 3\n - mail : a")
    'id = 3, mail = a'
    """
    pairs = [line.removeprefix(" - ").partition(" : ")[::2] for line in lines.splitlines() if line]
    names = [name for name, _ in pairs]
    texts = []
    for name, value in pairs:
        is_plain = names.count(name) == 1 and not value.startswith(("[", "{", "org.apache.spark."))
        text = mask_value(value, [_unquote_path(name)]) if is_plain else mask_text(value)
        texts.append(f"{name} = {text}")
    return ", ".join(texts)


def describe_unknown_error(error: BaseException) -> str:
    """Return the class and the first line of an error that is not known, as they may be shown."""
    text = f"{type(error).__name__}: {first_line(error)}"
    if mask_error(text) == text:
        return text
    lines = [cause.shown_line for cause in list_causes(error)]
    return next((line for line in reversed(lines) if not line.endswith(MASK)), lines[0])


def first_line(error: BaseException) -> str:
    """Return the first meaningful line of an error; for a JVM error, the first line of its deepest cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if lines[0].startswith(_CALL_FAILED):
        causes = [line.removeprefix(_CAUSED_BY) for line in lines if line.startswith(_CAUSED_BY)]
        return causes[-1] if causes else " ".join(lines[1:2]).removeprefix(": ") or lines[0]
    if _RPC_FAILED in lines[0]:
        return next(
            (line.partition("=")[2].strip(' "') for line in lines if line.startswith("details")), lines[0]
        )
    return lines[0]


def has_condition(error: BaseException, conditions: Iterable[str]) -> bool:
    """Return whether an error, or a cause of it, has one of the named conditions of Spark or Delta."""
    return any(
        name.startswith(tuple(conditions))
        for cause in list_causes(error)
        for name in (cause.condition, cause.name)
    )
