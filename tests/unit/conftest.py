"""Set a temporary Airflow home before any test imports Airflow."""

from __future__ import annotations

import tests.airflow_home  # noqa: F401
