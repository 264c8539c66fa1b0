"""The folder through which a worker and a Spark driver on a cluster exchange a request and its result."""

from __future__ import annotations

import time
import uuid
from contextlib import suppress

from airflow.providers.common.compat.sdk import conf

from airflow_merge_provider.core.dataset import format_hadoop_path, resolve_dataset
from airflow_merge_provider.core.errors import JobError, SetupError
from airflow_merge_provider.core.object_store.clients import StoreSettings, complete_arguments
from airflow_merge_provider.core.protocol import JobFailure, JobRequest, JobResult, parse_result
from airflow_merge_provider.file_store.folder import open_folder, remove_path

_FOLDER = "_merge_runs"
# A killed worker leaves its folder, and its driver may still write the result: no run takes this long.
_EXCHANGE_KEPT_SECONDS = 7 * 24 * 3600
_REQUEST, _RESULT, _COMPLETE = "request.json", "result", "_SUCCESS"


class RunFolder:
    """A folder of one attempt: the worker writes the request, the driver the result; then it is removed.

    It is below ``[merge] exchange``, by default below the warehouse of the run.
    """

    def __init__(self, request: JobRequest, settings: StoreSettings) -> None:
        """Choose the folder.

        :param settings: the address and the credentials of the object store.
        :raises SetupError: if neither the setting nor the run has a location, or it has no library.
        """
        base = conf.get("merge", "exchange", fallback="") or request.warehouse
        if not base:
            raise SetupError(
                "deploy mode 'cluster' needs a folder that worker and cluster reach: set a warehouse, or "
                "[merge] exchange"
            )
        self._request = request
        folder = resolve_dataset(_FOLDER, base)
        self._uri = f"{folder.path}/{int(time.time())}-{uuid.uuid4().hex}"
        self._files, self._root = open_folder(self._uri, complete_arguments(self._uri, settings))

    @property
    def uri(self) -> str:
        """The folder as Spark addresses it."""
        return format_hadoop_path(self._uri)

    @property
    def application_arguments(self) -> list[str]:
        """The arguments of the job: the URIs of the request and of the result."""
        return [f"{self.uri}/{_REQUEST}", f"{self.uri}/{_RESULT}"]

    def write_request(self) -> None:
        """Write the request.

        :raises SetupError: if the folder cannot be written.
        """
        try:
            self._files.makedirs(self._root, exist_ok=True)
            self._files.pipe_file(f"{self._root}/{_REQUEST}", self._request.model_dump_json().encode())
        except OSError as error:
            raise SetupError(
                f"{self._uri}: the folder for the request cannot be written ({error})"
            ) from error

    def remove_left_folders(self) -> None:
        """Remove the folders of killed workers; a folder has the time of its creation in its name."""
        with suppress(OSError):
            for path in map(str, self._files.ls(self._root.rpartition("/")[0], detail=False)):
                created = path.rstrip("/").rpartition("/")[2].partition("-")[0]
                if created.isdecimal() and time.time() - int(created) > _EXCHANGE_KEPT_SECONDS:
                    remove_path(self._files, path)

    def find_result(self, start: float) -> JobResult | JobFailure | None:
        """Return the result; None if the driver has written none.

        :param start: the monotonic time at which the run began.
        :raises JobError: if the result cannot be read.
        """
        folder = f"{self._root}/{_RESULT}"
        try:
            if not self._files.exists(f"{folder}/{_COMPLETE}"):
                return None
            names = sorted(map(str, self._files.ls(folder, detail=False)))
            parts = [name for name in names if name.rpartition("/")[2].startswith("part-")]
            text = "".join(self._files.cat_file(part).decode() for part in parts)
        except OSError as error:
            raise JobError(f"{self._uri}: the result of the run cannot be read ({error})") from error
        return parse_result(text, time.monotonic() - start)

    def remove_folder(self) -> str | None:
        """Remove the folder, whose files may contain rows of the run; return a warning if that fails.

        A run that has committed does not fail because its folder stays.
        """
        try:
            remove_path(self._files, self._root)
        except OSError as error:
            return f"{self._uri} contains the request and the report of the run and stays: {error}"
        return None
