"""Tell what does not exist in Airflow from an API of Airflow that does not answer.

The SDK retries each request for some time, and then reports a connection that it could not read as one that
does not exist. The messages and errors are those of Airflow's SDK, and not part of its public exports.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetConnection

from airflow_merge_provider.core.errors import JobError

if TYPE_CHECKING:
    from airflow.sdk import Connection

_FAILED = (ErrorType.API_SERVER_ERROR, ErrorType.GENERIC_ERROR)
_TRY_AGAIN = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class AirflowApiError(JobError):
    """Raised when the API of Airflow does not answer at the moment; another try may succeed."""


@contextmanager
def translate_api_errors(name: str) -> Iterator[None]:
    """Raise errors of the API that may pass as an error of this package; ``name`` is what is read.

    :raises AirflowApiError: when the API does not answer.
    """
    try:
        yield
    except AirflowRuntimeError as error:
        _require_answer(name, error.error)
        raise


def find_connection(conn_id: str) -> Connection | None:
    """Return a connection; None when it does not exist.

    :raises AirflowApiError: when the API does not answer.
    """
    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        if send := getattr(_get_supervisor(), "send", None):
            with translate_api_errors(_name_connection(conn_id)):
                _require_missing(conn_id, send(GetConnection(conn_id=conn_id)))
    return None


async def find_connection_async(conn_id: str) -> Connection | None:
    """Return a connection; None when it does not exist; for use in a trigger.

    :raises AirflowApiError: when the API does not answer.
    """
    try:
        return await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException:
        if send := getattr(_get_supervisor(), "asend", None):
            with translate_api_errors(_name_connection(conn_id)):
                _require_missing(conn_id, await send(GetConnection(conn_id=conn_id)))
    return None


def _get_supervisor() -> Any:
    """Return what tasks and triggers ask through; None in the command line and the web server."""
    return getattr(task_runner, "SUPERVISOR_COMMS", None)


def _name_connection(conn_id: str) -> str:
    return f"connection {conn_id!r}"


def _require_missing(conn_id: str, response: Any) -> None:
    """Check that a connection that was not read does not exist.

    :raises AirflowApiError: when it exists, or the API does not answer.
    """
    name = _name_connection(conn_id)
    if not isinstance(response, ErrorResponse):
        raise AirflowApiError(f"{name} could not be read at first: try again")
    _require_answer(name, response)


def _require_answer(name: str, response: ErrorResponse) -> None:
    """Check that an error is the answer of the API, not a failure of it.

    :raises AirflowApiError: when the API does not answer.
    """
    status = (response.detail or {}).get("status_code")
    is_temporary = status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TRY_AGAIN
    if response.error in _FAILED and is_temporary:
        raise AirflowApiError(
            f"{name} cannot be read, because the API of Airflow does not answer: try again ({response})"
        )
