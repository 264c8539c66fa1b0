"""Set a temporary Airflow home before any test imports Airflow."""

from __future__ import annotations

import pytest

import tests.airflow_home  # noqa: F401


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a warehouse with the sources of the configurations below."""
    folder = tmp_path_factory.mktemp("lake")
    import pyarrow as pa
    from deltalake import write_deltalake

    for name in ("a", "b", "s", "extract"):
        write_deltalake(str(folder / name), pa.table({"_id": ["1"], "id": [1], "x": [1]}))
    return str(folder)
