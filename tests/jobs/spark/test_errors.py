"""Test that the first line of an error has its cause, whichever library raises it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.errors import PySparkException

from airflow_merge_provider.core.errors import DataError, JobError, SetupError
from airflow_merge_provider.jobs.spark.errors import convert_error, first_line

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
    error = convert_error(ValueError(RPC))

    assert isinstance(error, SetupError)
    assert "SPARK_CONNECT_AUTHENTICATE_TOKEN" in error.message


LOST = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: Connection refused"
>"""
FETCH = """Job aborted due to stage failure: ResultStage 4 has failed 4 times.
org.apache.spark.shuffle.FetchFailedException
Caused by: java.io.IOException: Failed to connect to 10.0.0.7:33211
Caused by: java.net.ConnectException: Connection refused
"""


class ConditionError(PySparkException):
    """An error of Spark with a condition, as a server reports it."""

    def __init__(self, condition: str, message: str) -> None:
        super().__init__(message)
        self._condition = condition

    def getCondition(self) -> str:  # noqa: N802 - the name of PySpark
        return self._condition

    def __str__(self) -> str:
        return f"[{self._condition}] {self._message}"


@pytest.mark.parametrize(
    "text",
    [
        FETCH,
        "software.amazon.awssdk.SdkClientException: Unable to execute HTTP request: Read timed out",
        "java.net.SocketTimeoutException: connect timed out",
        "java.net.UnknownHostException: minio",
        "java.net.SocketException: Connection reset",
    ],
)
def test_errors_that_may_pass_are_retried(text: str) -> None:
    """An executor or a service that does not answer is no missing prerequisite: a retry may succeed."""
    error = convert_error(ValueError(text))

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
        convert_error(ValueError(text), has_begun=has_begun)
        for text in (LOST, "[INVALID_HANDLE.SESSION_NOT_FOUND] The handle is invalid.")
    ]

    assert all(isinstance(error, JobError) and re.search(message, error.message) for error in errors)


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("CAST_INVALID_INPUT", "The value 'Permission denied' of the type \"STRING\" cannot be cast"),
        ("USER_RAISED_EXCEPTION", "Connection refused"),
        ("FAILED_READ_FILE.NO_HINT", "Encountered error: the value 'AccessDenied' of `Read timed out`"),
    ],
)
def test_values_do_not_decide_the_kind_of_an_error(condition: str, value: str) -> None:
    """The condition of an error decides its kind, not what its values contain."""
    assert type(convert_error(ConditionError(condition, value))) is DataError


def test_files_that_cannot_be_reached_are_no_errors_of_data() -> None:
    """A file that cannot be read because of the network or of a permission says so."""
    condition, text = "FAILED_READ_FILE.NO_HINT", "Encountered error while reading file s3a://b/x.parquet"
    errors = [
        convert_error(ConditionError(condition, f"{text}\nCaused by: {cause}"))
        for cause in (
            "java.net.ConnectException: Connection refused",
            "AccessDeniedException: x",
        )
    ]

    assert [type(error) for error in errors] == [JobError, SetupError]


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


def test_an_object_store_without_keys_is_a_missing_prerequisite() -> None:
    """The error names the connection."""
    error = convert_error(ValueError("NoAuthWithAWSException: No AWS Credentials provided"))

    assert isinstance(error, SetupError)
    assert "the object store accepts no credentials: set the keys in the connection" in error.message


def test_a_file_system_without_hard_links_is_a_missing_prerequisite() -> None:
    """The error names the setting for a single writer."""
    error = convert_error(ValueError("/t/_delta_log is on a file system without hard links: two writers"))

    assert isinstance(error, SetupError)
    assert "allow_single_writer=True" in error.message


def test_exhausted_memory_names_the_setting() -> None:
    """An out-of-memory error names the setting, at whatever depth of the causes it is."""
    error = convert_error(ValueError(f"{CALL}Caused by: java.lang.OutOfMemoryError: Java heap space"))

    assert isinstance(error, JobError)
    assert error.message.startswith("Spark ran out of memory: raise spark.driver.memory")
