"""Map errors of Spark and Delta to errors of this package, and extract their first lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pyspark.errors import AnalysisException, PySparkException

from airflow_merge_provider.core.change_plan.shown_rows import mask_error, mask_quotes, mask_text, mask_value
from airflow_merge_provider.core.errors import (
    ConflictError,
    DataError,
    JobError,
    MergeError,
    Problem,
    SetupError,
)

# Another writer has committed first, and Delta may not commit after it.
COMMIT_REFUSED = "DELTA_MAX_COMMIT_RETRIES_EXCEEDED"

# Searched in the error's type, condition and text without quoted values; the first match counts. Server-side
# names are the same in both kinds of session, Python classes are not.
_KNOWN: tuple[tuple[str, type[MergeError], str], ...] = (
    (
        r"does not support conditional writes|cannot write on a condition",
        SetupError,
        (
            "two writers of this table could overwrite each other's commits: use a store that supports "
            "conditional writes, and hadoop-aws 3.4.2 or later"
        ),
    ),
    (
        r"is on a file system without hard links",
        SetupError,
        (
            "two writers of this table could overwrite each other's commits, because its file system has no "
            "hard links: use another one, or set allow_single_writer=True if this task is the only writer"
        ),
    ),
    (
        (
            rf"DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED|{COMMIT_REFUSED}|"
            r"Concurrent(Append|Write|Transaction|DeleteRead|DeleteDelete|Modification)Exception|"
            r"(Metadata|Protocol)ChangedException|DELTA_TABLE_ALREADY_EXISTS|TABLE_OR_VIEW_ALREADY_EXISTS"
        ),
        ConflictError,
        "another run committed to the table first: this run wrote nothing; run it again",
    ),
    (
        r"StatusCode\.UNAUTHENTICATED|UNAUTHENTICATED:",
        SetupError,
        (
            "the Spark Connect server rejected the token: set it as the password of the connection or as "
            "SPARK_CONNECT_AUTHENTICATE_TOKEN; airflow_merge_provider connect-server prints its file"
        ),
    ),
    (
        r"NoSuchBucketException|UnknownStoreException",
        SetupError,
        "a bucket does not exist: create it, or correct the location",
    ),
    (
        (
            r"NoAuthWithAWSException|No AWS Credentials|CredentialInitializationException|InvalidAccessKeyId|"
            r"SignatureDoesNotMatch"
        ),
        SetupError,
        (
            "the object store accepts no credentials: set the keys in the connection of the warehouse "
            "(merge_store), or in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ),
    ),
    (
        (
            r"AccessControlException|AccessDenied|Permission ?denied|\(Permission denied\)|403 Forbidden|"
            r"Mkdirs failed"
        ),
        SetupError,
        "Spark may not read or write a location: grant its account access, or set other credentials",
    ),
    (
        (
            r"UnknownHostException|NoRouteToHost|ConnectException|Connection (refused|reset)|ConnectTimeout|"
            r"SocketTimeoutException|Read timed out"
        ),
        JobError,
        "a service cannot be reached: check the warehouse, the Spark connection and the network, or retry",
    ),
    (
        r"No FileSystem for scheme|UnsupportedFileSystemException|ClassNotFoundException.*[Ff]ile[Ss]ystem",
        SetupError,
        "Spark does not support this type of location: add its file system jar with spark.jars.packages",
    ),
    (
        r"data ?source:? avro|AVRO_NOT_LOADED|Avro is built-in but external",
        SetupError,
        (
            "Spark cannot read Avro without an additional jar: "
            "add org.apache.spark:spark-avro_2.13 of Spark's version with spark.jars.packages"
        ),
    ),
    (
        (
            r"ClassNotFoundException: (io\.delta|org\.apache\.spark\.sql\.delta)|"
            r"data ?source:? delta|DELTA_CONFIGURE_SPARK_SESSION"
        ),
        SetupError,
        (
            "Spark has no Delta jars: add them with spark.jars, or use a server that "
            "airflow_merge_provider connect-server started, which has them"
        ),
    ),
    (
        r"CATALOG_NOT_FOUND|CatalogNotFoundException|REQUIRES_SINGLE_PART_NAMESPACE",
        SetupError,
        (
            "Spark has no catalog of this name: set spark.sql.catalog.<name> in the Spark settings, "
            "or reference the dataset by its location"
        ),
    ),
    (
        r"Not all files from version \d+ are available",
        DataError,
        (
            "the data files of the earlier version are gone, because VACUUM has removed them: a full_refresh "
            "computes the target again; raise delta.deletedFileRetentionDuration for later runs"
        ),
    ),
    (r"OutOfMemoryError", JobError, "Spark ran out of memory: raise spark.driver.memory"),
    (
        r"PATH_NOT_FOUND|DELTA_PATH_DOES_NOT_EXIST|DELTA_MISSING_DELTA_TABLE|TABLE_OR_VIEW_NOT_FOUND",
        DataError,
        "a dataset does not exist: check its name and the warehouse",
    ),
)

# The server of a session is gone, or another one has started in its place.
_LOST_SERVER = re.compile(
    r"StatusCode\.UNAVAILABLE|failed to connect to all addresses|"
    r"INVALID_HANDLE\.(SESSION_(NOT_FOUND|CHANGED|CLOSED)|OPERATION_(NOT_FOUND|ABANDONED))"
)
# Values in messages are quoted; an apostrophe stands after a letter.
_QUOTED = re.compile(r"(?<!\w)(['\"`])(?:(?!\1).)*\1(?!\w)")
# Its text is that of any Python exception, with values.
_PYTHON_WORKER = "PythonException"

# How Spark's errors name what does not exist.
_SUBJECT = re.compile(
    r"(?:The (?:catalog|schema|table or view)|single-part namespace, but got identifier|Path does not exist:)"
    r" ((?:`[^`]*`\.?)+|\S+)"
)

# The beginnings of errors that Py4J and gRPC report, and the prefix of causes in Java errors.
_CALL_FAILED, _RPC_FAILED, _CAUSE = "An error occurred while calling", "of RPC that terminated", "Caused by: "
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
)

# Errors that the same input raises every time: Spark's own first line describes them best.
_OF_THE_DATA = re.compile(
    r"CAST_INVALID_INPUT|CAST_OVERFLOW|ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF_RANGE|DIVIDE_BY_ZERO|"
    r"DUPLICATED_MAP_KEY|NULL_MAP_KEY|INVALID_ARRAY_INDEX|MALFORMED_|USER_RAISED_EXCEPTION|"
    r"DELTA_MULTIPLE_SOURCE_ROW_MATCHING|DELTA_NOT_NULL_CONSTRAINT|CANNOT_PARSE|CANNOT_MERGE_SCHEMAS|"
    r"INVALID_VARIANT|INVALID_PARAMETER_VALUE"
)
# What Spark adds to a message of this package, which an expression has raised.
_OWN_TEXT = re.compile(r"^\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: \w+)?$")
# While rows are written, such an error is the cause of one that names only the folder.
_CAUSE_OF_WRITE = re.compile(r"^Caused by: [\w.$]+: (\[([A-Z_.]+)\] .*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
# A file cannot be read because of its content, or because of what lies between it and Spark.
_OF_A_FILE = "FAILED_READ_FILE"

# The beginning of the error that a written row raises, followed by the column and the row.
LOST_PARTITION_VALUE = "no partition can hold the value of column"
_LOST = re.compile(rf"{LOST_PARTITION_VALUE} (.+?) in the row (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE)

# A MERGE or overwrite begins with this text, REPLACE ON has it in its second line.
_VIOLATION = re.compile(
    r"DELTA_VIOLATE_CONSTRAINT_WITH_VALUES\] (.+?) violated by row with values:((?:\n - [^\n]+)*)", re.DOTALL
)

# A MERGE names the limit only.
_TOO_LONG = re.compile(
    r"EXCEED_CHAR_VARCHAR_LIMIT\] Value \"(.*?)\" exceeds char/varchar type length limitation\. "
    r"Failed check: .*\(length\((.+)\) <= (\d+)\)|EXCEED_LIMIT_LENGTH\] [^\n]*?limitation: (\d+)",
    re.DOTALL,
)
_NULL_VALUE = re.compile(
    r"DELTA_NOT_NULL_CONSTRAINT_VIOLATED\] [^\n]*? for column: ([^\n]+?)\.?$", re.MULTILINE
)


def convert_error(
    error: BaseException, target: str = "target", *, has_begun: bool = True
) -> MergeError | None:
    """Return the error of this package for an error of Spark; None if it is not a known one.

    :param target: the table that was written, if one was.
    :param has_begun: whether the run had a session, so that it may have written something.
    """
    if isinstance(error, MergeError):
        return error
    text = "\n".join(_iterate_texts(error))
    if problem := _find_refusal(text, target):
        return DataError.from_problems([problem])
    if _OF_THE_DATA.search(error_condition(error)):
        return DataError(mask_error(_OWN_TEXT.sub(r"\1", first_line(error))))
    if "TASK_WRITE_FAILED" in text and (cause := _find_cause_of_write(text)):
        return DataError(mask_error(_OWN_TEXT.sub(r"\1", cause)))
    if _LOST_SERVER.search(text):
        return JobError(f"{_describe_loss(has_begun=has_begun)}\n{first_line(error)}")
    if (known_error := _find_known(error, text)) is not None:
        return known_error
    if isinstance(error, AnalysisException) or error_condition(error).startswith(_OF_A_FILE):
        return DataError(first_line(error))
    return None


def _find_cause_of_write(text: str) -> str | None:
    causes = (match for match in _CAUSE_OF_WRITE.finditer(text) if _OF_THE_DATA.search(match[2]))
    return next((match[1] for match in causes), None)


def _find_known(error: BaseException, text: str) -> MergeError | None:
    if type(error).__name__ == _PYTHON_WORKER:
        return None
    searched_text = _QUOTED.sub("", text)
    for pattern, kind, message in _KNOWN:
        if re.search(pattern, searched_text):
            subject = _SUBJECT.search(text)
            path = f"{subject[1].replace('`', '').rstrip('.')}: " if subject else ""
            return kind(f"{path}{message}\n{mask_quotes(first_line(error))}")
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


def _find_refusal(text: str, path: str) -> Problem | None:
    """Return what the definition of a table refuses; Delta names neither the table nor a remedy."""
    if match := _VIOLATION.search(text):
        hint = "correct it upstream, leave it out with expectations, or drop the constraint"
        return Problem(path, "constraint", f"a row violates {match[1]}: {_join_values(match[2])}", hint)
    if match := _TOO_LONG.search(text):
        value, column, limit, merge_limit = match.groups()
        name = _unquote_name(column or "")
        subject = f"value {mask_value(repr(value), [name])} of column {name!r}" if name else "a value"
        message = f"{subject} is longer than its type allows, {limit or merge_limit} characters"
        hint = (
            "shorten it upstream, leave it out with expectations, or change the type of the column to STRING"
        )
        return Problem(path, "length", message, hint)
    if match := _NULL_VALUE.search(text):
        message = f"a row has NULL in column {_unquote_name(match[1])!r}, which is NOT NULL"
        hint = (
            "set a value upstream, leave such rows out with the expectation not_null, or drop the constraint "
            f"with ALTER COLUMN {match[1]} DROP NOT NULL"
        )
        return Problem(path, "not-null", message, hint)
    if match := _LOST.search(text):
        row = f"{match[1]} in the row {mask_text(match[2])}"
        message = f"{LOST_PARTITION_VALUE} {row}: Delta would store NULL, or no file could be named so"
        hint = "set another value upstream, leave the rows out with expect, or partition by another column"
        return Problem(path, "partition-value", message, hint)
    if "DELTA_CANNOT_MODIFY_APPEND_ONLY" in text:
        message = "the property delta.appendOnly of the table allows no change or deletion of rows"
        return Problem(path, "append-only", message, "set the property to false, or choose another target")
    return None


def _unquote_name(name: str) -> str:
    """Return the name of a column without the backticks that SQL needs.

    >>> _unquote_name("`a.b``c`"), _unquote_name("s.a")
    ('a.b`c', 's.a')
    """
    return name[1:-1].replace("``", "`") if re.fullmatch(r"`(?:[^`]|``)*`", name) else name


def _join_values(lines: str) -> str:
    r"""Return the values of a row, which Delta lists line by line.

    >>> _join_values("\n - id : 3\n - mail : a")
    'id = 3, mail = a'
    """
    pairs = (line.removeprefix(" - ").partition(" : ") for line in lines.splitlines() if line)
    return ", ".join(f"{name} = {mask_value(value, [name])}" for name, _, value in pairs)


def describe_unknown_error(error: BaseException) -> str:
    """Return the class and the first line of an error that is not known, as they may be shown."""
    text = first_line(error)
    # A function that Spark calls with values raised it.
    mask = mask_error if type(error).__name__ == _PYTHON_WORKER else mask_quotes
    return f"{type(error).__name__}: {mask(text)}"


def first_line(error: BaseException) -> str:
    """Return the first meaningful line of an error; for a JVM error, the first line of its deepest cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if lines[0].startswith(_CALL_FAILED):
        causes = [line.removeprefix(_CAUSE) for line in lines if line.startswith(_CAUSE)]
        return causes[-1] if causes else " ".join(lines[1:2]).removeprefix(": ") or lines[0]
    if _RPC_FAILED in lines[0]:
        return next(
            (line.partition("=")[2].strip(' "') for line in lines if line.startswith("details")), lines[0]
        )
    return lines[0]


def error_condition(error: BaseException) -> str:
    """Return Spark's error condition, such as PATH_NOT_FOUND, or an empty string."""
    return (error.getCondition() or "") if isinstance(error, PySparkException) else ""


def has_condition(error: BaseException, conditions: Iterable[str]) -> bool:
    """Return whether an error, or a cause of it, has one of the named conditions of Spark or Delta.

    In classic sessions some Delta errors are only a text of the JVM, with the name in brackets.
    """
    text = "\n".join(_iterate_texts(error))
    return any(re.search(rf"\b{re.escape(name)}", text) for name in conditions)


def _iterate_texts(error: BaseException | None) -> Iterator[str]:
    """Yield the texts of the error and its causes; the JVM stack below a text names nested causes."""
    visited_ids: set[int] = set()
    while error is not None and id(error) not in visited_ids:
        visited_ids.add(id(error))
        yield type(error).__name__
        yield error_condition(error)
        yield str(error)
        error = error.__cause__
