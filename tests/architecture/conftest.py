"""Airflow finds a temporary home before any test imports it."""

from __future__ import annotations

import tests.airflow_home  # noqa: F401
