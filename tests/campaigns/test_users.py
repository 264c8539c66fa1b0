"""A short campaign of user actions between runs; ``make campaign`` runs a long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.campaigns.users import UserTally, try_sequences
from tests.conformance.lean import lean_session
from tests.long import all_long_but

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("capability", all_long_but(["joiner", "merge_record"], "merge_record"))
def test_what_users_do_is_made_up_for_or_refused(
    capability: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The tables finally equal those without user actions, or an error states what to do."""
    tally = UserTally()

    try_sequences(lean_session(spark), capability, 1, tmp_path / "lake", tally)

    assert tally.failed == []
    assert tally.ended.total() == 1
    assert tally.actions
