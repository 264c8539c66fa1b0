"""Test how a merge source chooses its run mode from the state of the previous run."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_merge_provider.core.merge_source.config import MergeSourceConfig
from airflow_merge_provider.core.merge_source.decision import (
    choose_run_mode,
    compute_signature,
    describe_scan,
)
from airflow_merge_provider.core.source_offset import SourceOffset, write_offsets

CONFIG = MergeSourceConfig.parse({"version": 2, "datasets": ["A a"]})
OFFSET = SourceOffset("/lake/A", 3, "id")


@pytest.mark.parametrize(
    ("state", "mode"),
    [
        ({"evaluated": ["A"]}, "full"),
        ({"evaluated": ["A"], **describe_scan(CONFIG)}, "noop"),
        ({"evaluated": []}, "noop"),
        ({**describe_scan(CONFIG), "sequence_column": "at"}, "full"),
    ],
    ids=["other keys", "same keys", "keys of Spark", "other sequence"],
)
def test_what_cannot_be_continued_is_computed_again(state: dict[str, Any], mode: str) -> None:
    """Keys that Python computed in another way, and positions of another column, lead to a full run."""
    previous_state = {"fingerprint": compute_signature(CONFIG), **write_offsets([OFFSET]), **state}

    assert choose_run_mode(CONFIG, previous_state, {"A": OFFSET}, full_refresh=False)[0] == mode
