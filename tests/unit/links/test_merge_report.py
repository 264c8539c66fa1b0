"""Tests of the address of the merge report button."""

from __future__ import annotations

from email.message import Message
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_merge_provider.links.merge_report import MergeReportLink, find_error_page


def build_key(**kwargs: Any) -> Any:
    return SimpleNamespace(**{"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": -1, **kwargs})


def test_the_link_leads_to_the_tab_of_the_task() -> None:
    """The link is relative to Airflow's base address, so that it works with any prefix."""
    assert MergeReportLink().get_link(None, ti_key=build_key()) == "dags/d/runs/r/tasks/t/plugin/merge-report"


def test_names_are_escaped() -> None:
    """Names in the link are escaped: a run ID contains a plus sign and colons."""
    link = MergeReportLink().get_link(None, ti_key=build_key(run_id="manual__2026-01-01T00:00:00+00:00/x"))

    assert "/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00%2Fx/tasks/" in link


def test_a_mapped_instance_has_a_link_of_its_own() -> None:
    """The link of a mapped task instance contains its index."""
    assert "tasks/t/mapped/2/plugin" in MergeReportLink().get_link(None, ti_key=build_key(map_index=2))


def test_the_page_about_errors_has_the_address_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata has the address of the documentation, unless the package was built without one."""
    metadata = Message()
    monkeypatch.setattr("importlib.metadata.metadata", lambda _: metadata)
    assert find_error_page() is None

    metadata["Project-URL"] = "Changelog, https://example.org/CHANGELOG.md"
    metadata["Project-URL"] = "Documentation, https://example.org/tree/v1/docs"
    assert find_error_page() == "https://example.org/tree/v1/docs/errors.md"
