"""Fixtures: an Airflow metadata database in a temporary folder and functions that run one DAG in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.airflow_home import HOME
from tests.fakes import FakeSparkJobHook

RunDag = Callable[..., Any]


@pytest.fixture(scope="session")
def airflow_db() -> None:
    from airflow.configuration import conf
    from airflow.utils import db  # noqa: TID251 - the server side

    assert HOME in conf.get("database", "sql_alchemy_conn"), "Airflow was imported before its home was set"
    db.initdb()


@pytest.fixture
def store_dag(airflow_db: None) -> Callable[[Any], None]:
    """Store a DAG and its assets in the database, as the DAG processor does."""

    def store(dag: Any) -> None:
        from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
        from airflow.models.dagbundle import DagBundleModel  # noqa: TID251 - the server side
        from airflow.utils.session import create_session  # noqa: TID251 - the server side

        with create_session() as session:
            session.merge(DagBundleModel(name="testing"))
        bag = DagBag(os.devnull)
        bag.bag_dag(dag)
        sync_bag_to_db(bag, bundle_name="testing", bundle_version=None)

    return store


@pytest.fixture
def run_dag(store_dag: Callable[[Any], None]) -> RunDag:
    """Run a DAG as a worker does: one task after the other, in this process."""

    def run_once(dag: Any, **kwargs: Any) -> Any:
        store_dag(dag)
        return dag.test(**kwargs)

    return run_once


@pytest.fixture
def fake_hook(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], type[FakeSparkJobHook]]:
    """Replace the hook through which operators start Spark by a fake that returns one fixed answer."""

    def install_fake(answer: Any) -> type[FakeSparkJobHook]:
        fake = FakeSparkJobHook.create_fake(answer)
        monkeypatch.setattr("airflow_merge_provider.operators._spark_job.SparkJobHook", fake)
        return fake

    return install_fake


@pytest.fixture
def asset_events(airflow_db: None) -> Callable[[str], list[dict[str, Any]]]:
    """Return the payloads of the events of one asset, oldest first."""

    def list_events(uri: str) -> list[dict[str, Any]]:
        from airflow.models.asset import AssetEvent, AssetModel  # noqa: TID251 - the server side
        from airflow.utils.session import create_session  # noqa: TID251 - the server side
        from sqlalchemy import select

        statement = select(AssetEvent.extra).join(AssetModel, AssetModel.id == AssetEvent.asset_id)
        with create_session() as session:
            return list(session.scalars(statement.where(AssetModel.uri == uri).order_by(AssetEvent.id)))

    return list_events
