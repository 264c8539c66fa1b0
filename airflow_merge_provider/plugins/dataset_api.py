"""The API of the dataset page: queries about a dataset for those who may read its asset in Airflow.

A dataset is named by the ID of an asset that tasks of this package write, never by a path. Each query runs in
a process of its own with bounded time and memory. The classes of Airflow are those that its own API uses.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from shlex import quote
from typing import Annotated, Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import AssetDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_asset
from airflow.models.asset import AssetModel, TaskOutletAssetReference  # noqa: TID251 - the server side
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251 - the server side
from airflow.providers.common.compat.sdk import conf
from airflow.utils.session import create_session  # noqa: TID251 - the server side
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import APIRouter, Depends, HTTPException, Query
from pydantic import BaseModel, Field
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from airflow_merge_provider.assets import CATALOG, WAREHOUSE_ASSET
from airflow_merge_provider.core.change_plan.shown_rows import MASK, MASK_COLUMNS, SHOW_ROWS
from airflow_merge_provider.core.child_process import build_child_environment
from airflow_merge_provider.core.dataset import format_file_uri
from airflow_merge_provider.core.errors import MergeError
from airflow_merge_provider.core.object_store.clients import is_confidential
from airflow_merge_provider.explain.dataset_queries import TooLargeError
from airflow_merge_provider.explain.query_process import FAILED_QUERY, LIMIT_SECONDS, MEMORY_PROBLEM
from airflow_merge_provider.hooks.warehouse import WarehouseHook

_OWN_MODULES, _MODULE = "airflow_merge_provider.", "airflow_merge_provider.explain.query_process"
# Queries run beside the threads of Airflow's API, a few at a time; further ones wait, and some are refused.
_QUERIES_MAX, _WAITING_MAX = 4, 20
_LIMITER = CapacityLimiter(_QUERIES_MAX)
_PAGE_ROWS_MAX, _KEY_MAX_CHARS, _VERSION_MAX = 200, 2000, 2**53
_log = logging.getLogger(__name__)

router = APIRouter(prefix="/api/datasets")

JsonObject = dict[str, Any]
Arguments = Mapping[str, Any]

Version = Annotated[int, Field(ge=0, le=_VERSION_MAX)]
Offset = Annotated[int, Field(ge=0, le=1_000_000)]
Limit = Annotated[int, Field(ge=1, le=_PAGE_ROWS_MAX)]
Key = Annotated[str, Field(max_length=_KEY_MAX_CHARS)]


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """A dataset that a task of this package writes: its asset, and what the task says of its location."""

    asset_id: int
    name: str
    uri: str
    target: str
    warehouse: str | None
    merge_store_conn_id: str
    tasks: tuple[tuple[str, str], ...]

    def as_object(self) -> JsonObject:
        """Return what the page shows of the dataset."""
        tasks = [{"dag_id": dag_id, "task_id": task_id} for dag_id, task_id in self.tasks]
        return {"asset_id": self.asset_id, "name": self.name, "uri": self.uri, "tasks": tasks}


def find_dataset(asset_id: int) -> DatasetRef:
    """Return the dataset of an asset, without a connection to the database while its query runs.

    :raises HTTPException: 404 if there is no such asset, or no task of this package writes it.
    """
    with create_session(scoped=False) as session:
        asset = session.get(AssetModel, asset_id)
        tasks = [] if asset is None else list(_list_writers(asset_id, session))
    if asset is None or not tasks:
        detail = f"No task of airflow_merge_provider writes an asset with the ID {asset_id}."
        raise HTTPException(HTTPStatus.NOT_FOUND, detail)
    arguments = tasks[0][2]
    conn_id = _choose_literal(arguments.get("merge_store_conn_id")) or WarehouseHook.default_conn_name
    target = asset.uri
    for root in (WAREHOUSE_ASSET, CATALOG):
        target = target.removeprefix(f"{root}/")
    # The state of a merge record is beside its merged files, or where the task says.
    target = _choose_literal(arguments.get("state_path")) or target
    warehouse = _choose_literal(arguments.get("warehouse"))
    names = tuple((dag_id, task_id) for dag_id, task_id, _ in tasks)
    return DatasetRef(asset_id, asset.name, asset.uri, target, warehouse, conn_id, names)


Dataset = Annotated[DatasetRef, Depends(find_dataset)]
_may_read = [Depends(requires_access_asset(method="GET"))]


@router.get("")
def find_datasets(
    user: GetUserDep, asset_id: int | None = None, dag_id: str = "", task_id: str = ""
) -> list[JsonObject]:
    """Return the dataset of an asset, or those that a task writes, if the user may read them."""
    reference = TaskOutletAssetReference
    statement = select(reference.asset_id).where(reference.dag_id == dag_id, reference.task_id == task_id)
    if asset_id is not None:
        statement = select(AssetModel.id).where(AssetModel.id == asset_id)
    return [find_dataset(asset_id).as_object() for asset_id in _select_assets(statement, user)]


@router.get("/{asset_id}", dependencies=_may_read)
async def get_about(dataset: Dataset, user: GetUserDep) -> JsonObject:
    """Return what the log of the dataset says of it, and the datasets that it was made of."""
    about = await _run_query(dataset, "about")
    assets = await run_sync(_find_assets, [source["uri"] for source in about["sources"]], user)
    sources = [{**source, "asset_id": assets[source["uri"]]} for source in about["sources"]]
    return {**dataset.as_object(), **about, "sources": sources}


@router.get("/{asset_id}/runs", dependencies=_may_read)
async def get_runs(dataset: Dataset, before: Version | None = None, limit: Limit = 50) -> JsonObject:
    """Return commits of the dataset, newest first."""
    return await _run_query(dataset, "runs", before=before, limit=limit)


class ChangesQuery(BaseModel):
    """Which of the rows that differ between two versions are wanted."""

    first: Version
    last: Version
    kind: Literal["inserted", "updated", "deleted"] | None = None
    key: Key = ""
    all_columns: bool = False
    offset: Offset = 0
    limit: Limit = 50


@router.get("/{asset_id}/changes", dependencies=_may_read)
async def get_changes(dataset: Dataset, query: Annotated[ChangesQuery, Query()]) -> JsonObject:
    """Return the rows that differ between two versions of the dataset."""
    return await _run_query(dataset, "changes", **query.model_dump())


@router.get("/{asset_id}/find", dependencies=_may_read)
async def get_key(dataset: Dataset, user: GetUserDep, key: Annotated[Key, Query(min_length=1)]) -> JsonObject:
    """Return what is known of a key, without rows of sources that the user may not read."""
    answer = await _run_query(dataset, "find", key=key)
    explanation = answer["explanation"]
    inputs = [*explanation.get("inputs", ()), *filter(None, [explanation.get("source")])]
    names = [str(item.get("dataset") or item.get("source")) for item in inputs]
    denied = await run_sync(_list_denied, names, user)
    for name, item in zip(names, inputs, strict=True):
        if name in denied:
            item.update(rows=[], missing="you may not read the asset of this dataset")
    return answer


@router.get("/{asset_id}/waiting", dependencies=_may_read)
async def get_waiting(dataset: Dataset, offset: Offset = 0, limit: Limit = 50) -> JsonObject:
    """Return the open bins, or the rejected rows of the dataset."""
    return await _run_query(dataset, "waiting", offset=offset, limit=limit)


async def _run_query(dataset: DatasetRef, name: str, **arguments: Any) -> JsonObject:
    """Return the answer of a query that runs in a process of its own.

    :raises HTTPException: if there is no answer: the text says why, and what to do.
    """
    if _LIMITER.statistics().tasks_waiting >= _WAITING_MAX:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "Too many queries run now: try again.")
    answer = await run_sync(_run_process, dataset, name, arguments, limiter=_LIMITER)
    problem = answer.get("problem")
    if problem is None:
        return dict(answer["answer"])
    code = problem["code"]
    status = HTTPStatus.INTERNAL_SERVER_ERROR if code == "job" else HTTPStatus.UNPROCESSABLE_ENTITY
    raise HTTPException(status, problem["text"])


def _run_process(dataset: DatasetRef, name: str, arguments: Arguments) -> JsonObject:
    """Run a query, and return its answer or its problem."""
    try:
        hook = WarehouseHook(dataset.merge_store_conn_id, warehouse=dataset.warehouse)
        warehouse, options = hook.warehouse, hook.storage_options
    except MergeError as error:
        return _build_problem(error.code, str(error).splitlines()[0])
    settings = {key: conf.get("merge", key, fallback="") for key in (SHOW_ROWS, MASK_COLUMNS)}
    query = {
        "name": name, "target": dataset.target, "warehouse": warehouse, "settings": settings,
        "arguments": dict(arguments),
    }  # fmt: skip
    answer = _read_answer(query, options)
    problem = answer.get("problem")
    if problem is None:
        return answer
    text = _hide_keys(problem["text"], options)
    if problem["code"] == TooLargeError.code:
        option = f" --warehouse {quote(warehouse)}" if warehouse else ""
        command = f"airflow_merge_provider {_COMMANDS[name]} {quote(dataset.target)}{option}"
        text = f"{text}: use the command {command}"
    return _build_problem(problem["code"], text)


def _read_answer(query: Arguments, options: Mapping[str, str]) -> JsonObject:
    """Return the answer of a process to a query; a process that takes too long is ended.

    :param options: the keys of object stores, which the process has in its environment.
    """
    try:
        process = subprocess.run(  # noqa: S603 - the program is this package
            [sys.executable, "-P", "-m", _MODULE],
            input=json.dumps(query),
            capture_output=True,
            encoding="utf-8",
            env=build_child_environment(**{"TOKIO_WORKER_THREADS": "2", **options}),
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return _build_problem(TooLargeError.code, f"the answer takes longer than {LIMIT_SECONDS} s")
    try:
        answer: JsonObject = json.loads(process.stdout)
    except ValueError:
        # delta-rs ends a process that has no more memory, by a signal.
        is_too_large = process.returncode < 0 or MemoryError.__name__ in process.stderr
        answer = _build_problem(*((TooLargeError.code, MEMORY_PROBLEM) if is_too_large else FAILED_QUERY))
    if process.stderr and "problem" in answer:
        _log.warning("query %s: %s", query["name"], _hide_keys(process.stderr, options))
    return answer


_COMMANDS = {"about": "history", "runs": "history", "changes": "diff", "find": "explain", "waiting": "bins"}


def _build_problem(code: str, text: str) -> JsonObject:
    return {"problem": {"code": code, "text": text}}


def _hide_keys(text: str, options: Mapping[str, str]) -> str:
    """Return a text without the keys of object stores, which an error of a client could quote."""
    for name, value in options.items():
        if value and (is_confidential(name) or "KEY" in name.upper()):
            text = text.replace(value, MASK)
    return text


def _list_writers(asset_id: int, session: Session) -> Iterator[tuple[str, str, Arguments]]:
    """Yield each task of this package that writes an asset, with its arguments in the serialized DAG."""
    reference = TaskOutletAssetReference
    rows = session.scalars(select(reference).where(reference.asset_id == asset_id).order_by(reference.dag_id))
    for row in rows:
        serialized = SerializedDagModel.get(row.dag_id, session=session)
        arguments = None if serialized is None else _read_task(serialized.dag, row.task_id)
        if arguments is not None:
            yield row.dag_id, row.task_id, arguments


def _read_task(dag: Any, task_id: str) -> Arguments | None:
    """Return the arguments of a task of a serialized DAG; None if its operator is not one of this package."""
    task = dag.task_dict.get(task_id)
    names = ("merge_store_conn_id", "warehouse", "state_path")
    arguments = {name: getattr(task, name, None) for name in names}
    arguments |= {name: value for name, value in getattr(task, "partial_kwargs", {}).items() if name in names}
    # A subclass of an operator has another module, and its templated arguments.
    is_own = str(getattr(task, "_task_module", "")).startswith(_OWN_MODULES)
    return arguments if is_own or arguments["merge_store_conn_id"] is not None else None


def _choose_literal(value: Any) -> str | None:
    """Return an argument of a task that is text without a template."""
    return value if isinstance(value, str) and value and "{{" not in value else None


def _select_assets(statement: Select[int], user: BaseUser) -> list[int]:
    """Return those of some assets that the user may read and a task of this package writes."""
    with create_session(scoped=False) as session:
        ids = session.scalars(statement).all()
        return [id_ for id_ in ids if _may_read_asset(id_, user) and any(_list_writers(id_, session))]


def _find_assets(locations: Sequence[str], user: BaseUser) -> dict[str, int | None]:
    """Return the assets of sources by their locations; None of one that is no dataset for the user."""
    return {
        location: next(iter(_select_assets(_select_location(location), user)), None) for location in locations
    }


def _list_denied(locations: Sequence[str], user: BaseUser) -> set[str]:
    """Return the locations that are those of assets which the user may not read."""
    with create_session(scoped=False) as session:
        return {
            location
            for location in locations
            for id_ in session.scalars(_select_location(location)).all()
            if not _may_read_asset(id_, user)
        }


def _select_location(location: str) -> Select[int]:
    """Return the query of the assets that a location may have: its URI, or a name in a warehouse."""
    uri = format_file_uri(location) if location.startswith("/") else location
    uris = [uri, f"{WAREHOUSE_ASSET}/{location.rpartition('/')[2]}"]
    return select(AssetModel.id).where(AssetModel.uri.in_(uris))


def _may_read_asset(asset_id: int, user: BaseUser) -> bool:
    details = AssetDetails(id=str(asset_id))
    return get_auth_manager().is_authorized_asset(method="GET", details=details, user=user)
