"""Test runs over a warehouse on Azure Data Lake Storage: the key is in the connection of the warehouse."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from airflow_merge_provider.core.errors import SetupError
from airflow_merge_provider.core.object_store.clients import complete_arguments
from airflow_merge_provider.hooks.spark_job import SparkJobHook
from tests.azurite import KEY, Azurite, run_azurite
from tests.e2e.store_runs import build_request, check_copies, check_exchange, check_three_runs


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    with run_azurite() as emulator:
        yield emulator


@pytest.fixture
def warehouse(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> str:
    location = f"{azurite.make_container()}/wh"
    connect(monkeypatch, azurite, location)
    return location


def connect(monkeypatch: pytest.MonkeyPatch, azurite: Azurite, location: str) -> None:
    extra = {"endpoint_url": azurite.endpoint}
    connection = {"conn_type": "merge_store", "host": location, "password": KEY, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_MERGE_STORE_DEFAULT", json.dumps(connection))


def test_first_unchanged_and_changed_run(
    azurite: Azurite, warehouse: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark and delta-rs use the key of the connection, and no output has it.

    Longer than other tests: two runs start Spark.
    """
    check_three_runs(warehouse, azurite.settings.as_delta_rs(), SparkJobHook().submit)

    assert KEY not in capsys.readouterr().out


def test_files_are_exchanged_through_the_container(azurite: Azurite, warehouse: str) -> None:
    """The worker writes the request, reads a result, and removes both."""
    check_exchange(warehouse, azurite.open_files())


# Clients of stores send large requests.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_copies_are_recognized_by_their_content(azurite: Azurite, warehouse: str) -> None:
    """A copy has another tag on Azure."""
    check_copies(warehouse, complete_arguments(warehouse, azurite.settings))


def test_a_container_that_does_not_exist(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is refused before Spark starts."""
    location = f"{azurite.make_container().replace('lake-', 'nowhere-')}/wh"
    connect(monkeypatch, azurite, location)

    with pytest.raises(SetupError, match="the container does not exist: create it"):
        SparkJobHook().submit(build_request(location, "r1"))
