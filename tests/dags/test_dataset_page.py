"""Tests of the API of the dataset page with permissions, assets and serialized DAGs of Airflow."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from airflow.api_fastapi.app import get_auth_manager, init_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.asset import AssetModel  # noqa: TID251 - the server side
from airflow.sdk import DAG, task
from airflow.utils.session import create_session  # noqa: TID251 - the server side
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import select

from airflow_merge_provider.assets import dataset_asset
from airflow_merge_provider.explain import query_process
from airflow_merge_provider.operators.merge_record import MergeRecordOperator
from airflow_merge_provider.operators.upsert import UpsertOperator
from airflow_merge_provider.plugins import dataset_api, web
from tests.unit.cli.lake import build_lake

pytestmark = pytest.mark.airflow

PATHS = ("", "/runs", "/changes?first=0&last=1", "/find?key=7", "/waiting")


class Page:
    """The API of the page over a folder with tables, and the IDs of the assets of its datasets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = TestClient(web.app, raise_server_exceptions=False)

    def get(self, address: str, role: str | None = "VIEWER", **query: Any) -> Any:
        """Return the answer for a user with a role."""
        user = SimpleAuthManagerUser(username="u", role=role)
        headers = {"Authorization": f"Bearer {get_auth_manager().generate_jwt(user)}"}
        return self.client.get(f"/api/datasets{address}", headers=headers, params=query or None)

    def find_id(self, dataset: str) -> int:
        uri = dataset_asset(dataset, warehouse=str(self.folder)).uri
        with create_session() as session:
            return session.scalars(select(AssetModel.id).where(AssetModel.uri == uri)).one()


class OwnUpsertOperator(UpsertOperator):
    """An operator of a user's module."""


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the tables of two loads and the state of a merge record."""
    folder = tmp_path_factory.mktemp("lake")
    build_lake(folder)
    return folder


@pytest.fixture
def page(lake: Path, store_dag: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> Page:
    """Return the API over a DAG with operators of this package, and a task that writes another asset."""
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "0123456789abcdef" * 8)
    # The machine of a test may be busy.
    monkeypatch.setattr(dataset_api, "LIMIT_SECONDS", 60)
    warehouse = str(lake)
    keyed: dict[str, Any] = {"source": "new_orders", "primary_key": "id", "warehouse": warehouse}
    folders = {"source": "readings", "merged": "readings_merged", "original": "done", "failure": "failed"}
    reader = {"format": "json"}
    with DAG("page_dag", schedule=None) as dag:
        UpsertOperator(task_id="load", target="orders", **keyed)
        OwnUpsertOperator(task_id="own", target="shop", **keyed)
        UpsertOperator(task_id="missing", target="nothing", **keyed)
        UpsertOperator(task_id="template", target="{{ ds }}", **keyed)
        MergeRecordOperator(
            task_id="merge", **folders, state_path="readings_state", warehouse=warehouse, reader=reader
        )

        @task(outlets=[dataset_asset("crm", warehouse=warehouse)])
        def write_crm() -> None:
            pass

        write_crm()
    store_dag(dag)
    init_auth_manager()
    return Page(lake)


def test_an_answer_needs_permission_for_the_asset(page: Page) -> None:
    """Nobody without a login, and no user without a role, gets an answer; whoever may read assets does."""
    asset_id = page.find_id("orders")

    for path in PATHS:
        assert page.client.get(f"/api/datasets/{asset_id}{path}").status_code == 401, path
        assert page.get(f"/{asset_id}{path}", role=None).status_code == 403, path
    assert page.client.get("/api/datasets?dag_id=page_dag&task_id=load").status_code == 401
    assert page.get(f"/{asset_id}/runs", role="ADMIN").status_code == 200
    before = sorted(page.folder.rglob("*"))
    answers = [page.get(f"/{asset_id}{path}") for path in PATHS]
    assert [answer.status_code for answer in answers] == [200] * len(PATHS), [
        answer.text for answer in answers
    ]
    assert answers[0].headers["cache-control"] == "no-store"
    assert answers[0].json()["name"] == dataset_asset("orders", warehouse=str(page.folder)).name
    assert [run["version"] for run in answers[1].json()["runs"]] == [1, 0]
    assert sorted(page.folder.rglob("*")) == before, "the API only reads"


def test_a_user_sees_the_datasets_whose_assets_they_may_see(page: Page) -> None:
    """Airflow's auth manager decides for each asset, also for links to sources and the datasets of a task."""
    orders, shop = page.find_id("orders"), page.find_id("shop")
    allowed = {str(orders)}

    def authorize(*, method: str, user: Any, details: Any = None) -> bool:
        return details is not None and details.id in allowed

    with mock.patch.object(get_auth_manager(), "is_authorized_asset", authorize):
        assert page.get(f"/{orders}/runs").status_code == 200
        assert page.get(f"/{shop}/runs").status_code == 403
        assert page.get("", dag_id="page_dag", task_id="own").json() == []
        assert page.get("", asset_id=shop).json() == []
        (dataset,) = page.get("", dag_id="page_dag", task_id="load").json()
        source = page.get(f"/{orders}/find?key=7").json()["explanation"]["source"]
    assert (source["rows"], source["missing"]) == ([], "you may not read the asset of this dataset")
    assert page.get(f"/{orders}/find?key=7").json()["explanation"]["source"]["rows"]
    assert dataset["asset_id"] == orders
    assert dataset["tasks"] == [{"dag_id": "page_dag", "task_id": "load"}]


def test_no_path_and_no_foreign_asset_names_a_dataset(page: Page) -> None:
    """A dataset is an asset that a task of this package writes; a path or another asset is not found."""
    orders, crm = page.find_id("orders"), page.find_id("crm")

    assert page.get(f"/{crm}").status_code == 404
    assert page.get("/999999").status_code == 404
    assert page.get("/%2Fetc").status_code == 404
    assert page.get("/etc").status_code == 422
    answer = page.get(f"/{orders}", target=str(page.folder / "crm"), warehouse="/", path="/etc").json()
    assert answer["location"] == str(page.folder / "orders")
    # Whatever the asset, the table itself must be one that this package has written.
    own = page.get(f"/{page.find_id('shop')}/runs")
    assert (own.status_code, "was written by another program" in own.text) == (422, True)
    assert page.get("", dag_id="page_dag", task_id="template").json() == []
    assert "is not a Delta table" in page.get(f"/{page.find_id('nothing')}/runs").json()["detail"]


def test_a_merge_record_is_read_by_its_state(page: Page) -> None:
    """The asset of a merge record is its merged folder; the task names the state beside it."""
    asset_id = page.find_id("readings_merged")

    assert page.get(f"/{asset_id}/waiting").json()["bin_count"] == 1


def test_numbers_and_texts_of_a_query_are_bounded(page: Page) -> None:
    """A page has at most 200 rows, and a key at most 2,000 characters."""
    asset_id = page.find_id("orders")

    queries = (
        "/runs?limit=201",
        "/runs?before=-1",
        "/changes?first=0",
        "/changes?first=0&last=1&kind=x",
        "/find?key=",
    )
    for query in (*queries, f"/find?key={'x' * 2001}"):
        assert page.get(f"/{asset_id}{query}").status_code == 422, query


def test_a_query_that_takes_too_long_is_ended(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends, and the answer names the command that has no such limit."""
    asset_id = page.find_id("orders")
    assert query_process.LIMIT_SECONDS == 5
    monkeypatch.setattr(dataset_api, "LIMIT_SECONDS", 0.05)
    start = time.monotonic()

    answer = page.get(f"/{asset_id}/changes?first=0&last=1")

    assert time.monotonic() - start < 2
    assert answer.status_code == 422
    assert "takes longer than 0.05 s: use the command airflow_merge_provider diff" in answer.json()["detail"]


def test_a_few_queries_run_at_a_time(page: Page) -> None:
    """Queries take no threads of Airflow's API: four run, twenty wait, and further ones are refused."""
    assert dataset_api._LIMITER.total_tokens == 4
    statistics = mock.Mock(tasks_waiting=20)

    with mock.patch.object(dataset_api, "_LIMITER", mock.Mock(statistics=lambda: statistics)):
        answer = page.get(f"/{page.find_id('orders')}/runs")

    assert (answer.status_code, answer.json()["detail"]) == (503, "Too many queries run now: try again.")


def test_no_answer_has_a_key_or_a_place_in_the_code(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of a connection reach the process in its environment, and no text that it returns."""
    asset_id, key = page.find_id("orders"), "s3cr3t"
    monkeypatch.setenv(
        "AIRFLOW_CONN_MERGE_STORE_DEFAULT",
        '{"conn_type": "merge_store", "login": "AKIA", "password": "s3cr3t"}',
    )
    calls: list[Any] = []

    def answer(*_: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        text = '{"problem": {"code": "job", "text": "denied for s3cr3t"}}'
        return mock.Mock(stdout=text, stderr="Traceback s3cr3t")

    monkeypatch.setattr("airflow_merge_provider.plugins.dataset_api.subprocess.run", answer)
    response = page.get(f"/{asset_id}/runs")

    assert calls[0]["env"]["AWS_SECRET_ACCESS_KEY"] == key
    assert "s3cr3t" not in calls[0]["input"]
    assert not any(name.startswith(("AIRFLOW_CONN_", "AIRFLOW__")) for name in calls[0]["env"])
    assert (response.status_code, response.json()) == (500, {"detail": "denied for ***"})


def test_the_api_only_reads() -> None:
    """Every route is a GET; that no file changes is a part of the first test."""
    routes = [route for route in dataset_api.router.routes if isinstance(route, APIRoute)]

    assert len(routes) == len(PATHS) + 1
    assert {method for route in routes for method in route.methods} == {"GET"}


def test_a_process_that_cannot_start_has_not_run_out_of_memory() -> None:
    """Its problem is in the log of the server; a smaller query would not help."""
    answer = dataset_api._read_answer({"name": "runs"}, {"PYTHONHOME": "/none"})

    assert answer == {"problem": {"code": "job", "text": "the query failed: see the log of the API server"}}
