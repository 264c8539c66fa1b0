"""Test that the first line of an error has its cause, whichever library raises it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql import SparkSession

from airflow_merge_provider.core.change_plan.shown_rows import ShownRows, use_shown_rows
from airflow_merge_provider.core.errors import DataError, JobError, MergeError, SetupError
from airflow_merge_provider.jobs.spark.causes import _OWN
from airflow_merge_provider.jobs.spark.errors import (
    LOST_PARTITION_VALUE,
    convert_error,
    describe_unknown_error,
    first_line,
    has_condition,
)
from airflow_merge_provider.jobs.spark.files.file_problem import describe_spark_error
from airflow_merge_provider.jobs.spark.known_errors import COMMIT_REFUSED

CALL = """An error occurred while calling o41.sql.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.Scheduler.abort(Scheduler.scala:1)
Caused by: java.lang.RuntimeException: wrapped
\t... 3 more
Caused by: java.io.IOException: No space left on device
\t... 3 more
"""
RPC = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.UNAUTHENTICATED
\tdetails = "Invalid authentication token"
\tdebug_error_string = "UNAUTHENTICATED:Invalid authentication token"
>"""


SHORT = "\n".join(CALL.splitlines()[:2])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (CALL, "java.io.IOException: No space left on device"),
        (
            "\n".join(CALL.splitlines()[:3]),
            "org.apache.spark.SparkException: Job aborted due to stage failure",
        ),
        ("An error occurred while calling o41.sql.", "An error occurred while calling o41.sql."),
        (RPC, "Invalid authentication token"),
        ("\n  [CAST_INVALID_INPUT] no number\nmore", "[CAST_INVALID_INPUT] no number"),
        ("", "ValueError"),
    ],
)
def test_the_first_line_is_the_cause(text: Any, line: Any) -> None:
    """The first line has the cause, not the failed call and not the name of a gRPC class."""
    assert first_line(ValueError(text)) == line


def test_a_refused_token_says_where_one_belongs() -> None:
    """A rejected token gives an error that names the setting for it, and is not retried."""
    error = convert_error(SparkConnectGrpcException(RPC))

    assert isinstance(error, SetupError)
    assert "SPARK_CONNECT_AUTHENTICATE_TOKEN" in error.message


LOST = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: Connection refused"
>"""
FETCH = """An error occurred while calling o41.sql.
: org.apache.spark.SparkException: Job aborted due to stage failure: ResultStage 4 has failed 4 times.
\tat org.apache.spark.Scheduler.abort(Scheduler.scala:1)
Caused by: java.net.ConnectException: Connection refused
\t... 3 more
"""


class ConditionError(PySparkException):
    """An error of Spark with a condition, as a server reports it."""

    def __init__(self, condition: str, message: str) -> None:
        super().__init__(message)
        self._condition = condition

    def getCondition(self) -> str:  # noqa: N802 - the name of PySpark
        return self._condition

    def __str__(self) -> str:
        return f"[{self._condition}] {self._message}" if self._condition else str(self._message)


def _fail_in_jvm(*causes: str) -> ConditionError:
    """Return an error of Spark Connect whose class PySpark does not know, with its stack."""
    (name, _, message), *inner = (cause.partition(": ") for cause in causes)
    lines = [name, *(f"Caused by: {other}: {text}" for other, _, text in inner)]
    stack = "".join(f"{line}\n\tat x.Y.z(Y.scala:1)\n" for line in lines)
    return ConditionError("", f"({name}) {message}\n\nJVM stacktrace:\n{stack}")


@pytest.mark.parametrize(
    "text",
    [
        "software.amazon.awssdk.SdkClientException: Unable to execute HTTP request: Read timed out",
        "java.net.SocketTimeoutException: connect timed out",
        "java.net.UnknownHostException: minio",
        "java.net.SocketException: Connection reset",
    ],
)
def test_errors_that_may_pass_are_retried(text: str) -> None:
    """An executor or a service that does not answer is no missing prerequisite: a retry may succeed."""
    for failure in (
        ValueError(FETCH),
        _fail_in_jvm(text),
        _fail_in_jvm("java.lang.RuntimeException: x", text),
    ):
        _require_retry(convert_error(failure))


def _require_retry(error: MergeError | None) -> None:
    assert isinstance(error, JobError)
    assert error.retryable
    assert "nothing was written" not in error.message


@pytest.mark.parametrize(
    ("has_begun", "message"),
    [
        (True, "was lost during the run: .*whether the run has committed is not known; a retry reports"),
        (False, "cannot be reached, nothing was written: "),
    ],
)
def test_a_lost_server_is_described_by_phase(has_begun: bool, message: str) -> None:
    """Before a session nothing was written; later nobody knows, until a retry looks for the commit."""
    errors = [
        convert_error(failure, has_begun=has_begun)
        for failure in (
            SparkConnectGrpcException(LOST),
            ConditionError("INVALID_HANDLE.SESSION_NOT_FOUND", "The handle is invalid."),
            SparkConnectGrpcException("[INVALID_HANDLE.SESSION_CHANGED] The handle is invalid."),
        )
    ]

    assert all(isinstance(error, JobError) and re.search(message, error.message) for error in errors)


HOSTILE = (
    "AccessDenied, Connection refused, StatusCode.UNAVAILABLE DELTA_METADATA_CHANGED\n\tat a.B.c(D.java:1)"
    f"\nCaused by: java.net.ConnectException: Connection refused [{COMMIT_REFUSED}]"
    "\nCaused by: x.DeltaError: [DELTA_CANNOT_MODIFY_APPEND_ONLY] x"
)


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        (
            "CAST_INVALID_INPUT",
            f"The value '{HOSTILE}' of the type \"STRING\" cannot be cast. SQLSTATE: 22018",
        ),
        ("NUMERIC_VALUE_OUT_OF_RANGE", f" {HOSTILE} cannot be represented as Decimal(3, 1). SQLSTATE: 22003"),
        ("USER_RAISED_EXCEPTION", f"{HOSTILE} SQLSTATE: P0001"),
        ("INVALID_FORMAT.MISMATCH_INPUT", f"The input string {HOSTILE} does not match. SQLSTATE: 42601"),
    ],
)
def test_values_do_not_decide_the_kind_of_an_error(condition: str, value: str) -> None:
    """The condition of an error decides its kind, not what its values contain; values are not shown."""
    text = f"x.SparkError: [{condition}] {value}"
    aborted = "org.apache.spark.SparkException: Job aborted due to stage failure"
    lost = "most recent failure: Lost task 0.0 in stage 3.0 (TID 3) (host executor driver)"
    failures: list[Exception] = [
        ConditionError(condition, value),
        _fail_in_jvm("x.SparkException: [TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030", text),
        _fail_in_jvm(f"{aborted}: Task 0 in stage 3.0 failed 1 times, {lost}: {text}"),
        ValueError(f"An error occurred while calling o1.sql.\n: {aborted}\n\tat Y.z(Y:1)\nCaused by: {text}"),
    ]
    for failure in failures:
        assert not has_condition(failure, [COMMIT_REFUSED])
        with use_shown_rows(ShownRows(rows="keys")):
            error = convert_error(failure)
        assert type(error) is DataError, (failure, error)
        assert error.message == f"[{condition}] ***"


@pytest.mark.parametrize("text", ["Connection refused", "Permission denied", LOST, COMMIT_REFUSED])
def test_texts_of_unknown_errors_do_not_decide(text: str) -> None:
    """An error of Python or Java that nobody knows may have any value in its text, which is not shown."""
    for failure, name in (
        (ValueError(text), "ValueError"),
        (_fail_in_jvm(f"java.lang.X: {text}"), "java.lang.X"),
    ):
        with use_shown_rows(ShownRows(rows="none")):
            assert convert_error(failure) is None
            assert describe_unknown_error(failure) == f"{name}: ***"
        assert not has_condition(failure, [COMMIT_REFUSED])


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ("PATH_NOT_FOUND", "Path does not exist: file:/lake/AccessDenied. SQLSTATE: 42K03"),
        ("PATH_NOT_FOUND", "Path does not exist: file:/lake/my AccessDenied files. SQLSTATE: 42K03"),
        (
            "PARSE_SYNTAX_ERROR",
            "Syntax error at or near 'x'.\n\n== SQL ==\nOutOfMemoryError = 'x\nConnection refused",
        ),
        ("", "java.io.FileNotFoundException: File file:/t/day=AccessDenied/p.parquet does not exist"),
        ("", "java.io.FileNotFoundException: /t/day=a OutOfMemoryError b/p.parquet (No such file)"),
        ("", "java.io.FileNotFoundException: File s3a://b/UnknownHostException does not exist"),
    ],
)
def test_names_of_users_do_not_decide_the_kind_of_an_error(condition: str, text: str) -> None:
    """A folder, a value of a partition or a column may have the name of an error."""
    failure = AnalysisException(text, errorClass=condition) if condition else _fail_in_jvm(text)

    error = convert_error(failure)

    assert (type(error), "does not exist" in str(error)) == (
        (DataError, condition != "PARSE_SYNTAX_ERROR") if condition else (type(None), False)
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "s3a://b/k: x on s3a://b/k: software.amazon.X: Denied (ID: a/b=):InvalidAccessKeyId",
            "no credentials",
        ),
        ("s3a://b/k: org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException: none", "no credentials"),
        ("/t/_delta_log/0.json (Permission denied)", "may not read or write"),
        ("Call From a/10.0.0.1 to b:9000 failed: java.net.ConnectException: x; see http://x/y", "be reached"),
    ],
)
def test_codes_beside_a_location_decide(text: str, message: str) -> None:
    """The code of a store may be in a text only, after the location that it is about."""
    assert message in str(convert_error(_fail_in_jvm(f"java.io.IOException: {text}")))


def test_a_file_that_cannot_be_read_now_is_read_again() -> None:
    """A missing file and a busy store are a matter of time; the content of a file is not, nor is its path."""
    of_a_file = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file {}. SQLSTATE: KD001"
    path = "s3a://b/t/error=AccessDenied/p.parquet"
    busy = "software.amazon.awssdk.services.s3.model.S3Exception: Please reduce your request rate (503)"
    missing = "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file x. SQLSTATE: KD001"

    for causes in ((of_a_file.format(path), busy), (missing,)):
        failure = _fail_in_jvm(
            "org.apache.spark.X: [TASK_WRITE_FAILED] Task failed", *map(_name_class, causes)
        )
        assert convert_error(failure) is None, causes
    damaged = _fail_in_jvm(
        *map(_name_class, (of_a_file.format(path), "java.lang.RuntimeException: no footer"))
    )
    assert type(convert_error(damaged)) is DataError


def _name_class(text: str) -> str:
    return text if text.startswith(("software", "java")) else f"org.apache.spark.SparkException: {text}"


def test_a_line_of_a_value_is_no_column() -> None:
    """A value of several lines may look like a further column."""
    values = " - mail : x\n - id : planted\n - id : 1\n - a : [0,70]\n - address.mail : planted\n - n : 2"
    message = f"CHECK constraint c (n > 2) violated by row with values:\n{values}"
    failure = ConditionError("DELTA_VIOLATE_CONSTRAINT_WITH_VALUES", message)

    with use_shown_rows(ShownRows(masked_columns=("mail",))):
        text = str(convert_error(failure))

    assert "mail = ***, id = ***, id = ***, a = ***, address.mail = ***, n = 2 (correct" in text


def test_errors_of_rows_are_final_and_have_no_value(spark: SparkSession) -> None:
    """Whichever way an error of a value reaches this process, a retry cannot mend it."""
    rows = spark.range(3).selectExpr("concat('planted ', id) AS v", "id")
    conditions = {
        "CAST_INVALID_INPUT": "cast(v AS int)",
        "NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION": "cast(concat(id, '12345.5') AS decimal(3, 1))",
        "DIVIDE_BY_ZERO": "1 / id",
        "DUPLICATED_MAP_KEY": "map(v, 1, v, 2)",
        "CANNOT_DECODE_URL": "url_decode(concat(v, '%ZZ'))",
        "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION": "parse_json(v)",
        # As this package writes it, but not from one of its expressions.
        "USER_RAISED_EXCEPTION": f"raise_error(concat('{LOST_PARTITION_VALUE} ', v, ' in the row '))",
    }

    for condition, expression in conditions.items():
        with pytest.raises(Exception) as failure:  # noqa: PT011 - py4j, pyspark and Connect have no common class
            rows.selectExpr(f"{expression} AS x").collect()
        with use_shown_rows(ShownRows(rows="keys")):
            error = convert_error(failure.value)
        assert isinstance(error, DataError), condition
        assert error.message == f"[{condition}] ***"
        assert not error.retryable


def test_a_masked_field_is_not_in_a_violated_constraint(spark: SparkSession, tmp_path: Path) -> None:
    """Delta names fields by their paths, and writes structs without the names of their fields."""
    table = f"delta.`{tmp_path}`"
    spark.sql(f"CREATE TABLE {table} (id INT, a STRUCT<email: VARCHAR(9), n: INT>) USING delta")
    spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT c CHECK (a IS NULL OR a.n < id OR a.email IS NULL)")
    texts = []
    for email, number in (("planted", 2), ("planted, and too long", 0)):
        with pytest.raises(Exception) as failure:  # noqa: PT011 - py4j, pyspark and Connect have no common class
            spark.sql(f"INSERT INTO {table} VALUES (1, named_struct('email', '{email}', 'n', {number}))")
        with use_shown_rows(ShownRows(masked_columns=("a.email",))):
            texts.append(str(convert_error(failure.value, "t")))

    assert ": a = ***, a.email = ***, a.n = 2, id = 1 (correct" in texts[0]
    assert "value *** of column 'a.email' is longer than its type allows, 9 characters" in texts[1]
    assert "planted" not in str(texts)


def test_files_that_cannot_be_reached_are_no_errors_of_data() -> None:
    """A file that cannot be read because of the network or of a permission says so."""
    line = (
        "x.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/x.parquet."
    )
    errors = [
        convert_error(_fail_in_jvm(line, cause))
        for cause in (
            "java.net.ConnectException: Connection refused",
            "java.nio.file.AccessDeniedException: x",
            "java.lang.RuntimeException: x is not a Parquet file: Connection refused",
        )
    ]

    assert [type(error) for error in errors] == [JobError, SetupError, DataError]


def test_a_value_that_is_found_while_rows_are_written_is_named() -> None:
    """Spark's own line has only the folder of the table; a retry would not help."""
    value = "[USER_RAISED_EXCEPTION] src: /in/a.json: column 'v': '1e400' is not a valid DOUBLE (correct it)"
    text = (
        "[TASK_WRITE_FAILED] Task failed while writing rows to file:/t. SQLSTATE: 58030\n\nJVM stacktrace:\n"
        "org.apache.spark.SparkException\n\tat org.apache.spark.Scheduler.abort(Scheduler.scala:1)\n"
        f"Caused by: org.apache.spark.SparkRuntimeException: {value} SQLSTATE: P0001\n\tat x.y(Z.scala:1)\n"
    )
    error = convert_error(PySparkException(text))

    assert isinstance(error, DataError)
    assert f"[USER_RAISED_EXCEPTION] {error.message}" == value


def test_the_mark_of_an_own_error_is_not_shown() -> None:
    """A file that a merge record cannot read has the problem as its reason, which has no mark."""
    problem = "column 'v': '{}' is not a valid INT (correct it) SQLSTATE: P0001"
    error = PySparkException(f"[USER_RAISED_EXCEPTION] {_OWN}6] /a.b: {problem.format('x')}")

    assert describe_spark_error(error) == f"/a.b: {problem.format('x')}"
    with use_shown_rows(ShownRows(rows="keys")):
        assert describe_spark_error(error) == f"/a.b: {problem.format('***')}"


def test_an_object_store_without_keys_is_a_missing_prerequisite() -> None:
    """The error names the connection."""
    error = convert_error(
        _fail_in_jvm(
            "java.nio.file.AccessDeniedException: b: NoAuthWithAWSException: No AWS Credentials provided"
        )
    )

    assert isinstance(error, SetupError)
    assert "the object store accepts no credentials: set the keys in the connection" in error.message


def test_a_file_system_without_hard_links_is_a_missing_prerequisite() -> None:
    """The error names the setting for a single writer."""
    error = convert_error(
        _fail_in_jvm("java.io.IOException: /t/_delta_log is on a file system without hard links: two writers")
    )

    assert isinstance(error, SetupError)
    assert "allow_single_writer=True" in error.message


def test_files_that_vacuum_removed_are_named() -> None:
    """Delta has no condition for a version that cannot be restored."""
    failure = _fail_in_jvm(
        "java.lang.IllegalArgumentException: Not all files from version 3 are available in x"
    )

    assert "because VACUUM has removed them" in str(convert_error(failure))


def test_exhausted_memory_names_the_setting() -> None:
    """An out-of-memory error names the setting, at whatever depth of the causes it is."""
    error = convert_error(ValueError(f"{CALL}Caused by: java.lang.OutOfMemoryError: Java heap space"))

    assert isinstance(error, JobError)
    assert error.message.startswith("Spark ran out of memory: raise spark.driver.memory")
