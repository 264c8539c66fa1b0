"""A short campaign with damaged files; ``make campaign`` runs a long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.campaigns.files import FileTally, try_files
from tests.conformance.lean import lean_session

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", ["json", "csv", "avro"])
def test_no_file_stops_a_folder(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    """Each file is merged or rejected, and the valid files beside it are merged."""
    tally = FileTally()

    try_files(lean_session(spark), kind, 1, tmp_path / kind, tally)

    assert tally.failed == []
    assert tally.merged[kind] + tally.refused[kind] == 20
    assert tally.merged[kind]
    assert tally.refused[kind]
