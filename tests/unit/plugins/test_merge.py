"""Tests of what the plugin registers, and of the HTTP headers of its pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse
from fastapi.testclient import TestClient

from airflow_merge_provider.plugins import web
from airflow_merge_provider.plugins.merge import MergePlugin

STATIC = Path(web.__file__).with_name("static")
PAGES = sorted(path.name for path in STATIC.iterdir())


def test_the_tab_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report tab can be disabled; the page with all merges stays."""
    monkeypatch.setenv("AIRFLOW__MERGE__SHOW_TASK_TAB", "False")

    assert [view["destination"] for view in MergePlugin().external_views] == ["nav"]


def test_airflow_has_no_place_for_pages_of_assets() -> None:
    """As soon as Airflow has one, the page of a dataset belongs there."""
    destinations = get_args(ExternalViewResponse.model_fields["destination"].annotation)

    assert "task_instance" in destinations
    assert not [name for name in destinations if "asset" in name]


def test_every_registered_address_is_served() -> None:
    """Every registered page and icon is served."""
    plugin = MergePlugin()
    (app,) = plugin.fastapi_apps
    client = TestClient(app["app"])

    for view in plugin.external_views:
        for address in (view["href"], view["icon"], view["icon_dark_mode"]):
            assert not address.startswith("/"), "it has to hold behind a prefix"
            assert client.get(address.removeprefix("merge")).status_code == 200


@pytest.mark.parametrize("name", PAGES)
def test_every_answer_forbids_what_is_not_ours(name: Any) -> None:
    """The headers forbid inline scripts, other origins and frames outside Airflow.

    A value in a report cannot run as a script.
    """
    answer = TestClient(web.app).get(f"/{name}")

    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_other_pages_do_not_need_what_is_not_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Airflow that lacks what the API of the dataset page imports starts, and serves the other pages."""
    monkeypatch.setitem(sys.modules, "airflow_merge_provider.plugins.dataset_api", None)
    client = TestClient(web.build_app())

    assert client.get("/datasets.html").status_code == 200
    assert client.get("/api/datasets/1").status_code == 404


def test_nothing_outside_the_folder_is_served() -> None:
    """Only files of the plugin's own folder are served."""
    client = TestClient(web.app)

    assert client.get("/../merge.py").status_code == 404
    assert client.get("/%2e%2e/merge.py").status_code == 404
    assert client.get("/docs").status_code == 404


@pytest.mark.parametrize("name", [name for name in PAGES if name.endswith((".js", ".html"))])
def test_no_page_writes_html_from_text_or_names_an_absolute_address(name: Any) -> None:
    """Pages insert values as text only, and use no absolute address, so that they work behind a prefix."""
    text = (STATIC / name).read_text(encoding="utf-8")

    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", text)
    # A drawing needs the name of its namespace, which is no address.
    text = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"""https?:|(fetch|URL|href|src)\W{1,3}["'`]/""", text)
