"""Test that the first line of an error has its cause, whichever library raises it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.errors import JobError, SetupError
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


def test_exhausted_memory_names_the_setting() -> None:
    """An out-of-memory error names the setting, at whatever depth of the causes it is."""
    error = convert_error(ValueError(f"{CALL}Caused by: java.lang.OutOfMemoryError: Java heap space"))

    assert isinstance(error, JobError)
    assert error.message.startswith("Spark ran out of memory: raise spark.driver.memory")
