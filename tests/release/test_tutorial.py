"""Run the tutorial with the wheel, in the environment that make release-check has installed it into.

It takes more than 20 seconds: it starts Spark, creates an Airflow and runs a DAG.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e.test_tutorial import environment, run_page  # noqa: F401 - a fixture

pytestmark = pytest.mark.spark

_ENVIRONMENT = os.environ.get("RELEASE_ENVIRONMENT")


@pytest.mark.skipif(_ENVIRONMENT is None, reason="RELEASE_ENVIRONMENT is not set: run make release-check")
def test_the_tutorial_works_with_the_wheel(tmp_path: Path, environment: Mapping[str, str]) -> None:  # noqa: F811
    """Every command of the page prints what the page shows, without this checkout."""
    outside = {name: value for name, value in environment.items() if name != "PYTHONPATH"}

    settings = outside | {"PATH": f"{_ENVIRONMENT}/bin:{os.environ['PATH']}"}
    assert run_page("tutorial.md", tmp_path, settings) == []
