"""What Airflow is told about this provider: the dictionary its loader reads."""

from __future__ import annotations

from typing import Any

from airflow_merge_provider import __version__


def get_provider_info() -> dict[str, Any]:
    """Describe the provider; imports nothing of Airflow, because Airflow calls it while it starts."""
    return {
        "package-name": "airflow-merge-provider",
        "name": "Merge",
        "description": "Operators that run PySpark jobs which merge data over Delta tables.",
        "versions": [__version__],
    }
