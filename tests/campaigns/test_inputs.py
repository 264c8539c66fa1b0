"""Short campaigns with random configurations and pipe files; ``make campaign`` runs long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_merge_provider.core.capabilities import CAPABILITIES
from tests.campaigns.configurations import Tally, try_configurations
from tests.campaigns.pipe_files import NAME, try_pipe_files


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_no_configuration_ends_in_a_traceback(capability: str) -> None:
    """Some configurations are accepted and most are rejected; none raises another exception."""
    tally = Tally()

    try_configurations(capability, 1, 600, tally)

    assert tally.failed == []
    assert tally.accepted[capability] > 30
    assert tally.refused[capability] > 100


def test_no_pipe_file_stops_a_folder(tmp_path: Path) -> None:
    """Each pipe file becomes DAGs, of the pipe or with its error."""
    tally = Tally()

    try_pipe_files(tmp_path / "pipes", 1, 300, tally)

    assert tally.failed == []
    assert tally.accepted[NAME] > 20
    assert tally.refused[NAME] > 50
