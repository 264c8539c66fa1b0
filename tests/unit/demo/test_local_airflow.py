"""Tests of the settings of the demo's Airflow."""

from __future__ import annotations

from pathlib import Path

from demo.local_airflow import LocalAirflow


def test_it_listens_on_this_machine_only(tmp_path: Path) -> None:
    """The demo needs no login, so no other machine may reach it."""
    airflow = LocalAirflow(tmp_path / "home", tmp_path / "warehouse")

    environment = airflow._build_environment()

    assert environment["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert airflow.url.startswith("http://127.0.0.1:")
