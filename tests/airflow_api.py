"""A fake of the supervisor, through which tasks and triggers ask the API of Airflow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import (
    AssetStateStoreResult,
    ConnectionResult,
    ErrorResponse,
    GetAssetStateStoreByUri,
    GetConnection,
)


class AirflowApi:
    """Answers as the supervisor does: with an error response, or an exception if the API fails.

    :param connections: the fields of each connection.
    """

    def __init__(self, connections: Mapping[str, Mapping[str, Any]]) -> None:
        self.connections = dict(connections)
        self.marks: dict[str, Any] = {}
        self.is_down = False

    def send(self, message: Any) -> Any:
        """Answer a task."""
        if self.is_down:
            detail = {"status_code": 503, "message": "Service Unavailable"}
            raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail=detail))
        if isinstance(message, GetConnection):
            if (fields := self.connections.get(message.conn_id)) is not None:
                unset = dict.fromkeys(("host", "schema", "login", "password", "port", "extra"))
                filled = {"conn_type": "merge_store", **unset, **fields}
                return ConnectionResult(conn_id=message.conn_id, **filled)
            return ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND, detail={"conn_id": message.conn_id})
        if isinstance(message, GetAssetStateStoreByUri):
            if message.uri in self.marks:
                return AssetStateStoreResult(value=self.marks[message.uri])
            return ErrorResponse(error=ErrorType.ASSET_STORE_NOT_FOUND)
        return None

    async def asend(self, message: Any) -> Any:
        """Answer a trigger."""
        return self.send(message)


@contextlib.contextmanager
def answer_api(**connections: Mapping[str, Any]) -> Iterator[AirflowApi]:
    """Answer all requests of this process to the API of Airflow."""
    api = AirflowApi(connections)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_runner, "SUPERVISOR_COMMS", api, raising=False)
        yield api
